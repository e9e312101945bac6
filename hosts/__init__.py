"""How to reach a host and ask it: ssh, the survey, containers, and what evidence means."""
