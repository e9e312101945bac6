"""The serving image on a host: what it is made of, where it comes from, what a copy sends."""
