"""From bare hosts to tokens, drift and repair, in order; the way back is test_honest_destroy.py."""

from __future__ import annotations

from tests.lab.cluster.checks import containers
from tests.lab.cluster.killing import UP_SECONDS, killed, points, unlock
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import NOW, Stack, complete, on, ours, refused


def test_interrupt_ends_a_wait_with_a_clear_word(bare: Stack) -> None:
    done = bare.interrupted("up", *NOW, at="Serve gate: loading")
    refused(done, "Serve gate: interrupted; last reading: loading", "run pulumi up again: it goes on from here")
    assert set(ours("spark-1")) == {"ray-head", "serve"}


def test_second_interrupt_ends_pulumi_at_once_and_the_next_up_goes_on(stack: Stack, report: Report) -> None:
    before = containers()
    done = stack.interrupted("up", *NOW, at="Serve gate: loading", times=2)
    refused(done)
    assert containers() == before
    unlock(stack)
    with timed() as up:
        assert stack.up().code == 0
    assert containers() == before
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    report.repairs.append(Repair("Ctrl-C, then twice, while serve loads", "", "", None, up[0]))


def test_killed_ups_leave_a_lock_that_is_explained_and_what_the_next_one_goes_on_from(stack: Stack) -> None:
    done = stack.destroy()
    assert done.code == 0, done.output
    for seconds in points(4, UP_SECONDS):
        killed(stack, "up", seconds)
        if seconds < UP_SECONDS / 4:  # for sure before its end
            refused(stack.up(), "pulumi cancel")
        unlock(stack)


def test_next_up_goes_on_from_all_of_them_and_ends_with_a_completion(stack: Stack) -> None:
    before = containers()
    done = stack.up("--policy-pack", "policies")
    assert containers() == before
    assert done.code == 0, done.output
    outputs = stack.outputs()
    assert outputs["endpoint"] == "http://10.1.230.180:30000/v1"
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert [node["fabric"].split()[0] for node in outputs["nodes"]] == ["192.168.200.12", "192.168.200.13"]
    assert outputs["ray"]["address"] == "192.168.200.12:6379"
    assert outputs["tokens_per_second"] > 0
    assert outputs["first_token_seconds"] > 0
    assert set(ours("spark-1")) == {"ray-head", "serve"}
    assert set(ours("spark-2")) == {"ray-worker"}


def test_the_curl_line_of_the_outputs_works_as_pasted(stack: Stack) -> None:
    # spark-1 has curl, the machine that runs the test may not.
    assert '"choices"' in on("spark-1", "bash", "-c", stack.outputs()["curl"])


def test_second_up_changes_nothing(stack: Stack) -> None:
    before = containers()
    done = stack.up("--expect-no-changes")
    assert done.code == 0, done.output
    assert containers() == before


def test_preview_of_a_healthy_cluster_is_clean(stack: Stack) -> None:
    assert stack.preview() == {}


def test_a_removed_worker_is_named_and_repaired_and_serve_comes_back_with_it(stack: Stack) -> None:
    """Serve's container is the same one: the engine ended with the worker, and starts anew by itself (ADR 16)."""
    before = ours("spark-1")
    on("spark-2", "docker", "rm", "-f", ours("spark-2")["ray-worker"])

    plan = stack.preview()
    assert plan["Container spark-2-ray-worker"] == "create"
    assert plan["GpuGate gpus"] == "create"
    assert not any("ray-head" in name or "Host" in name or "NodeImage" in name for name in plan)

    done = stack.up()
    assert done.code == 0, done.output
    after = ours("spark-1")
    assert after == before
    assert set(ours("spark-2")) == {"ray-worker"}
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert stack.preview() == {}
