"""`up` and `destroy` killed (SIGKILL) at points spread over their duration: one more ends well, without orphans."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.lab.cluster.checks import ALL, assert_bare, containers
from tests.lab.cluster.report import timed
from tests.lab.conftest import Stack, complete

UP_SECONDS, DESTROY_SECONDS = 45.0, 7.0
"""About what each takes on the lab; points beyond the end are runs that were not killed."""
SEED = 20


def points(number: int, longest: float) -> list[float]:
    """Seconds after the start: one in each part of equal length, somewhere in it."""
    chance, part = random.Random(SEED), longest / number  # noqa: S311 - repeatable on purpose
    return [part * (index + chance.random()) for index in range(number)]


def killed(stack: Stack, command: str, seconds: float) -> None:
    """Run a command and kill Pulumi's process, which cannot clean up."""
    with stack.started(command, "--stack", "lab", "--yes", "--skip-preview") as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def unlock(stack: Stack) -> None:
    """Drop the lock that a killed run left, as a user must."""
    done = stack.pulumi("cancel", "--stack", "lab", "--yes")
    assert done.code == 0, done.output


def assert_up_converges(stack: Stack) -> None:
    done = stack.up()
    assert done.code == 0, done.output
    assert "Traceback" not in done.output
    assert set(containers()) == ALL
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4


def assert_destroy_leaves_nothing(stack: Stack) -> None:
    done = stack.destroy()
    assert done.code == 0, done.output
    assert_bare()


def test_killed_ups_and_destroys_in_a_row(bare: Stack) -> None:
    """Each goes on from what the one before left."""
    for seconds in points(4, UP_SECONDS):
        killed(bare, "up", seconds)
        unlock(bare)
    assert_up_converges(bare)
    for seconds in points(4, DESTROY_SECONDS):
        killed(bare, "destroy", seconds)
        unlock(bare)
    assert_destroy_leaves_nothing(bare)


def test_the_lock_of_a_killed_run_is_explained(bare: Stack) -> None:
    killed(bare, "up", UP_SECONDS / 4)
    done = bare.up()
    assert done.code != 0
    assert "pulumi cancel" in done.output, done.output
    assert "Traceback" not in done.output, done.output
    unlock(bare)
    assert_destroy_leaves_nothing(bare)


@pytest.mark.matrix
def test_one_command_converges_after_each_killed_one(bare: Stack) -> None:
    """20 ups and 20 destroys, spread over what each takes here and now."""
    with timed() as up:
        assert_up_converges(bare)
    with timed() as destroy:
        assert_destroy_leaves_nothing(bare)
    for begun, ended in zip(points(20, up[0]), points(20, destroy[0]), strict=True):
        killed(bare, "up", begun)
        unlock(bare)
        assert_up_converges(bare)
        killed(bare, "destroy", ended)
        unlock(bare)
        assert_destroy_leaves_nothing(bare)
