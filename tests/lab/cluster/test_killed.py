"""`up` and `destroy` killed at any point: one more ends well, without orphans."""

from __future__ import annotations

import pytest

from tests.lab.cluster.checks import ALL, assert_bare, containers
from tests.lab.cluster.killing import killed, points, unlock
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, complete


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


@pytest.mark.matrix
def test_one_command_converges_after_each_killed_one(bare: Stack, report: Report) -> None:
    """20 ups and 20 destroys, spread over what each takes here and now."""
    with timed() as up:
        assert_up_converges(bare)
    with timed() as destroy:
        assert_destroy_leaves_nothing(bare)
    report.starts += up
    ups: list[float] = []
    destroys: list[float] = []
    for begun, ended in zip(points(20, up[0]), points(20, destroy[0]), strict=True):
        killed(bare, "up", begun)
        unlock(bare)
        with timed() as again:
            assert_up_converges(bare)
        ups += again
        killed(bare, "destroy", ended)
        unlock(bare)
        with timed() as again:
            assert_destroy_leaves_nothing(bare)
        destroys += again
    report.repairs.append(Repair("up killed, the slowest of 20", "pending operations", "nothing", None, max(ups)))
    left = "what was left removed"
    report.repairs.append(Repair("destroy killed, the slowest of 20", "pending operations", left, None, max(destroys)))
