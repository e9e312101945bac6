"""An honest destroy: a dead node spares the others, what is left is named, and the commands that are named work."""

from __future__ import annotations

import re

from tests.lab.conftest import Stack, lab_settings, on, ours
from tests.lab.matrix import inject

OTHERS = ("--run-program=false", "--refresh=false", "--continue-on-error")


def test_another_stack_on_these_hosts_is_told_and_refused(stack: Stack) -> None:
    done = stack.up()
    assert done.code == 0, done.output
    before = ours("spark-1"), ours("spark-2")
    config = stack.configured(lab_settings())
    done = stack.pulumi("stack", "init", "other", "--no-select")
    assert done.code == 0, done.output
    try:
        for command in (("preview",), ("up", "--yes", "--skip-preview")):
            done = stack.pulumi(*command, "--stack", "other", *config)
            assert done.code != 0
            assert "spark-1: stack 'lab' already runs ray-head here" in done.output, done.output
            assert "next: one stack per set of hosts: pulumi destroy -s lab first" in done.output, done.output
            assert "Traceback" not in done.output, done.output
    finally:
        done = stack.pulumi("stack", "rm", "other", "--yes")
    assert done.code == 0, done.output
    assert (ours("spark-1"), ours("spark-2")) == before


def test_a_dead_worker_spares_the_head_and_the_rest_is_finished_later(stack: Stack) -> None:
    inject("off", "spark-2")
    try:
        done = stack.destroy()
        assert done.code != 0
        assert "spark-2: " in done.output, done.output
        assert "pulumi destroy --run-program=false --refresh=false --continue-on-error" in done.output, done.output
        assert set(ours("spark-1")) == {"ray-head", "serve"}, "a plain destroy asks all nodes first"

        done = stack.destroy(*OTHERS)
        assert done.code != 0
        assert "what is ours there is left" in done.output, done.output
        assert "then finish it: pulumi destroy -s lab" in done.output, done.output
        assert "Traceback" not in done.output, done.output
        assert ours("spark-1") == {}
    finally:
        inject("off", "spark-2", "--heal")
    assert set(ours("spark-2")) == {"ray-worker"}
    done = stack.destroy()
    assert done.code == 0, done.output
    assert ours("spark-2") == {}


def test_a_node_that_never_comes_back_is_forgotten_by_the_command_that_is_named(stack: Stack) -> None:
    done = stack.up()
    assert done.code == 0, done.output
    inject("off", "spark-2")
    try:
        done = stack.destroy(*OTHERS)
        assert done.code != 0
        urn = re.search(r"pulumi state delete -s lab --target-dependents '([^']+)'", done.output)
        assert urn, done.output
        done = stack.pulumi("state", "delete", "--stack", "lab", "--target-dependents", urn[1], "--yes")
        assert done.code == 0, done.output
        done = stack.destroy(*OTHERS)
        assert done.code == 0, done.output
    finally:
        inject("off", "spark-2", "--heal")
    # The host came back after all: the next up knows its own by the labels, and starts anew.
    assert set(ours("spark-2")) == {"ray-worker"}
    done = stack.up()
    assert done.code == 0, done.output
    done = stack.destroy()
    assert done.code == 0, done.output
    assert ours("spark-2") == {}
    assert on("spark-2", "docker", "volume", "ls", "-q", "--filter", "label=dgx-spark-cluster.stack=lab") == ""
