"""`up` and `destroy` killed (SIGKILL) at points spread over their duration: one more ends well, without orphans."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.lab.cluster.checks import ALL, assert_bare, containers
from tests.lab.conftest import Stack, complete

UP_SECONDS, DESTROY_SECONDS = 45.0, 7.0
"""About what each takes on the lab; points beyond the end are runs that were not killed."""
SEED = 20


def points(number: int, longest: float) -> list[float]:
    """Seconds after the start: one in each part of equal length, somewhere in it."""
    chance, part = random.Random(SEED), longest / number  # noqa: S311 - repeatable on purpose
    return [part * (index + chance.random()) for index in range(number)]


def killed(stack: Stack, command: str, seconds: float) -> None:
    """Run a command and kill Pulumi's process, which cannot clean up; then drop its lock, as a user must."""
    with stack.started(command, "--stack", "lab", "--yes", "--skip-preview") as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    done = stack.pulumi("cancel", "--stack", "lab", "--yes")
    assert done.code == 0, done.output


@pytest.mark.parametrize("number", [4, pytest.param(20, marks=pytest.mark.matrix)])
def test_killed_ups_and_destroys(bare: Stack, number: int) -> None:
    for seconds in points(number, UP_SECONDS):
        killed(bare, "up", seconds)
    done = bare.up()
    assert done.code == 0, done.output
    assert "Traceback" not in done.output
    assert set(containers()) == ALL
    outputs = bare.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4

    for seconds in points(number, DESTROY_SECONDS):
        killed(bare, "destroy", seconds)
        if number > 4:  # else each finds what the one before left
            done = bare.up()
            assert done.code == 0, done.output
    done = bare.destroy()
    assert done.code == 0, done.output
    assert_bare()
