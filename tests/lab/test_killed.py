"""`up` and `destroy` killed (SIGKILL) at points spread over their duration: one more ends well, without orphans."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.lab.conftest import Stack, complete, on, ours

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
def test_killed_ups_and_destroys(stack: Stack, number: int) -> None:
    for seconds in points(number, UP_SECONDS):
        killed(stack, "up", seconds)
    done = stack.up()
    assert done.code == 0, done.output
    assert "Traceback" not in done.output
    assert (set(ours("spark-1")), set(ours("spark-2"))) == ({"ray-head", "serve"}, {"ray-worker"})
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4

    for seconds in points(number, DESTROY_SECONDS):
        killed(stack, "destroy", seconds)
        if number > 4:  # else each finds what the one before left
            done = stack.up()
            assert done.code == 0, done.output
    done = stack.destroy()
    assert done.code == 0, done.output
    for node in ("spark-1", "spark-2"):
        label = "label=dgx-spark-cluster.stack=lab"
        assert on(node, "docker", "ps", "-aq", "--filter", label) == ""
        assert on(node, "docker", "volume", "ls", "-q", "--filter", label) == ""
        assert on(node, "pgrep", "-f", "[r]aylet|[v]llm", check=False) == ""
