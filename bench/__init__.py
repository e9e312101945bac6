"""Measures the program on the lab against a plain script of the same ssh and docker commands."""
