"""Pulumi killed (SIGKILL) at points spread over what a command takes."""

from __future__ import annotations

import random
import subprocess

from tests.lab.conftest import NOW, Stack

UP_SECONDS, DESTROY_SECONDS = 45.0, 7.0
"""About what each takes on the lab; points beyond the end are runs that were not killed."""
SEED = 20


def points(number: int, longest: float) -> list[float]:
    """Seconds after the start: one in each part of equal length, somewhere in it."""
    chance, part = random.Random(SEED), longest / number  # noqa: S311 - repeatable on purpose
    return [part * (index + chance.random()) for index in range(number)]


def killed(stack: Stack, command: str, seconds: float) -> None:
    """Run a command and kill Pulumi's process, which cannot clean up: its lock stays."""
    with stack.started(command, *NOW) as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def unlock(stack: Stack) -> None:
    """Drop the lock that a killed run left, as a user must."""
    done = stack.pulumi("cancel", "--stack", "lab", "--yes")
    assert done.code == 0, done.output
