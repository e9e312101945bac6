"""Pulumi built from package registries, for networks where its releases cannot be downloaded.

`python -m toolchain` leaves a Pulumi in `.build/toolchain`: the CLI and the Docker plugin from Go modules, a small
language host and a small command plugin in Python. Where an official Pulumi is on PATH, that one is used instead.
"""
