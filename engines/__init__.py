"""Per engine: command line and environment of each role, readiness, and what its log lines mean."""
