"""An honest destroy: a dead node spares the others, what is left is named, and the commands that are named work."""

from __future__ import annotations

import re

import pytest

from tests.lab.cluster.checks import ALL, assert_bare, containers, inject
from tests.lab.cluster.killing import DESTROY_SECONDS, killed, points, unlock
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, lab_settings, ours, refused

OTHERS = ("--run-program=false", "--refresh=false", "--continue-on-error")
WAY_ON = f"pulumi destroy {' '.join(OTHERS)}"


def test_another_stack_on_these_hosts_is_told_and_refused(serving: Stack, report: Report) -> None:
    before = containers()
    config = serving.configured(lab_settings())
    done = serving.pulumi("stack", "init", "other", "--no-select")
    assert done.code == 0, done.output
    try:
        for command in (("up", "--yes", "--skip-preview"), ("preview",)):
            with timed() as seconds:
                done = serving.pulumi(*command, "--stack", "other", *config)
            refused(
                done,
                "spark-1: stack 'lab' already runs ray-head here",
                "next: one stack per set of hosts: pulumi destroy -s lab first",
            )
    finally:
        done = serving.pulumi("stack", "rm", "other", "--yes")
    assert done.code == 0, done.output
    assert containers() == before
    report.repairs.append(Repair("a second stack on these hosts", "error on each node", "", seconds[0], None))


def test_destroy_leaves_nothing_also_after_killed_ones(stack: Stack) -> None:
    assert set(containers()) == ALL
    for seconds in points(4, DESTROY_SECONDS):
        killed(stack, "destroy", seconds)
        unlock(stack)
    done = stack.destroy()
    assert done.code == 0, done.output
    assert_bare()


@pytest.fixture(scope="module")
def ray_alone(stack: Stack) -> Stack:
    """The stack without serve: it starts in a third of the time."""
    done = stack.up(*stack.configured(lab_settings() | {"serve": False}))
    assert done.code == 0, done.output
    return stack


def test_docker_that_does_not_answer_ends_a_plain_destroy_with_the_way_on(ray_alone: Stack) -> None:
    before = containers()
    inject("docker-stop", "spark-2")
    try:
        done = ray_alone.destroy()
    finally:
        inject("docker-stop", "spark-2", "--heal")
    refused(done, "error: spark-2: Docker does not answer", WAY_ON)
    assert containers() == before


def test_a_dead_worker_spares_the_head_and_the_rest_is_finished_later_or_forgotten(
    ray_alone: Stack, report: Report
) -> None:
    stack = ray_alone
    inject("off", "spark-2")
    try:
        refused(stack.destroy(), "spark-2: ", WAY_ON)
        assert set(ours("spark-1")) == {"ray-head"}, "a plain destroy asks all nodes first"

        with timed() as seconds:
            done = stack.destroy(*OTHERS)
        refused(done, "what is ours there is left", "then finish it: pulumi destroy -s lab")
        assert ours("spark-1") == {}
        report.repairs.append(Repair("destroy, spark-2 off", "error: spark-2", "the rest removed", None, seconds[0]))
        saved = stack.pulumi("stack", "export", "--stack", "lab", "--file", str(stack.folder / "left.json"))
        assert saved.code == 0, saved.output
        forget(stack, done.output)
    finally:
        inject("off", "spark-2", "--heal")

    # It came back after all, and the state of before is there.
    assert set(ours("spark-2")) == {"ray-worker"}
    done = stack.pulumi("stack", "import", "--stack", "lab", "--file", str(stack.folder / "left.json"))
    assert done.code == 0, done.output
    done = stack.destroy()
    assert done.code == 0, done.output
    assert_bare()


def forget(stack: Stack, told: str) -> None:
    """The command that the error named for a node that never comes back; then nothing is left to destroy."""
    urn = re.search(r"pulumi state delete -s lab --target-dependents '([^']+)'", told)
    assert urn, told
    done = stack.pulumi("state", "delete", "--stack", "lab", "--target-dependents", urn[1], "--yes")
    assert done.code == 0, done.output
    done = stack.destroy(*OTHERS)
    assert done.code == 0, done.output
