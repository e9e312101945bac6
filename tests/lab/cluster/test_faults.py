"""The matrix: each fault is named by the preview, repaired by one `up`, and nothing that works is touched.

`make test` runs the rows that are not marked matrix; `make faults` runs all and writes docs/faults.md.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from dataclasses import dataclass, field

import pytest
import requests

from tests.lab.cluster.checks import (
    ALL,
    GPUS,
    HEAD,
    NODES,
    SERVE,
    SERVING,
    WORKER,
    containers,
    inject,
    plan_text,
)
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import ROOT, Stack, complete, on, refused


@dataclass(frozen=True)
class Row:
    """One fault and what must come of it."""

    fault: str
    target: str
    named: dict[str, str] = field(default_factory=dict)
    """What the preview must name at least, with the operation. The GPU gate may show beside it: Ray's node is back
    within seconds where Docker restarts its container, while serve loads anew."""
    replaced: frozenset[str] = frozenset()
    """Roles whose containers are new afterwards; all others are the same ones."""
    said: str = ""
    """What `up` must say."""
    refused: str = ""
    """What preview and `up` must say while they can do nothing; then the fault is taken back."""

    @property
    def name(self) -> str:
        """As the lab's command has it."""
        return f"{self.fault} {self.target}"


NEW_SERVE, NEW_WORKER = {SERVE: "create", SERVING: "create"}, {WORKER: "create"}
ONLY_SERVE, ONLY_WORKER = frozenset({"serve"}), frozenset({"ray-worker"})
STALE = {"Command spark-2-found": "update", "Command spark-2-stopped": "update"}
QUICK = (Row("raylet", "ray-worker", {SERVING: "create"}),)
MORE = (
    Row("remove", "ray-head", {HEAD: "create", WORKER: "replace", SERVE: "replace", GPUS: "create"}, ALL),
    Row("remove", "ray-worker", NEW_WORKER, ONLY_WORKER),
    Row("remove", "serve", NEW_SERVE, ONLY_SERVE),
    Row("stop", "ray-head", {HEAD: "update", GPUS: "create"}),
    Row("stop", "ray-worker", {WORKER: "update", GPUS: "create"}),
    Row("stop", "serve", {SERVE: "update", SERVING: "create"}),
    Row("kill", "ray-head", {HEAD: "update", GPUS: "create"}),
    Row("kill", "ray-worker", {WORKER: "update", GPUS: "create"}),
    Row("kill", "serve", {SERVE: "update", SERVING: "create"}),
    Row("crash", "serve", {SERVING: "create"}),
    Row("crash", "ray-worker", {SERVING: "create"}),
    Row("freeze", "serve", {SERVING: "create"}, said="restarting the serve container on spark-1"),
    Row("errors", "serve", {SERVING: "create"}, said="restarting the serve container on spark-1"),
    Row("hang", "ray-worker", {GPUS: "create"}, said="restarting the ray-worker container on spark-2"),
    Row("restart", "ray-head", {SERVING: "create"}),
    Row("link", "spark-2", refused="error: spark-2: "),
    Row("management", "spark-1", refused="error: spark-1: "),
    Row("reboot", "spark-1", {SERVING: "create"}),
    Row("reboot", "spark-2", {SERVING: "create"}),
    Row("off", "spark-2", refused="error: spark-2: "),
    Row("docker-restart", "spark-2", {SERVING: "create"}),
    Row("docker-stop", "spark-2", refused="spark-2: Docker does not answer"),
    Row("gpu", "spark-2", refused="spark-2: the GPU is held by /usr/bin/python3"),
    Row("unit", "spark-2", STALE),
    Row("foreign", "serve", NEW_SERVE, ONLY_SERVE, refused="has a name of this stack but is not ours"),
    Row("foreign", "ray-worker", NEW_WORKER, ONLY_WORKER, refused="has a name of this stack but is not ours"),
    Row("port", "serve", NEW_SERVE, ONLY_SERVE, refused="spark-1: port 30000 is taken by python3"),
    Row("untag", "spark-2", {"NodeImage spark-2": "create"}),
    Row("retag", "spark-2", {"NodeImage spark-2": "create"}),
    Row("fresh", "spark-2", NEW_WORKER, ONLY_WORKER, refused="spark-2: the host key of 192.168.200.13"),
)


@pytest.mark.parametrize(
    "row",
    [*(pytest.param(row, id=row.name) for row in QUICK)]
    + [pytest.param(row, id=row.name, marks=pytest.mark.matrix) for row in MORE],
)
def test_fault_is_named_and_repaired_and_nothing_else_is_touched(serving: Stack, report: Report, row: Row) -> None:
    done = serving.up()  # nothing to do, unless the row before failed
    assert done.code == 0, done.output
    before = containers()
    inject(row.fault, row.target)
    refusal = refuse(serving, row) if row.refused else None
    with timed() as preview:
        plan = serving.preview()
    assert {name: plan.get(name) for name in row.named} == row.named, plan
    others = [
        name for name in plan if name not in row.named and not name.startswith(("Container", "GpuGate", "ServeG"))
    ]
    assert not others or row.fault == "fresh", plan

    with timed() as up:
        done = serving.up()
    assert done.code == 0, done.output
    assert row.said in done.output
    after = containers()
    assert {role for role in after if after[role] != before[role]} == row.replaced
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview() == {}
    if row.fault == "unit":
        inject(row.fault, row.target, "--heal")
    named = f"error: {row.refused.removeprefix('error: ').strip(' :')}" if row.refused else plan_text(row.named)
    report.repairs.append(Repair(row.name, named, ", ".join(sorted(row.replaced)), refusal or preview[0], up[0]))


@pytest.mark.matrix
def test_a_crash_loop_ends_up_with_its_cause(serving: Stack, report: Report) -> None:
    """Docker says running or restarting all the while, and that there is nothing to change."""
    before = containers()
    inject("loop", "serve")
    with timed() as preview:
        assert serving.preview() == {SERVING: "create"}
    refused(serving.up(), "error: spark-1: Serve gate: the serve container ", "model type `qwen9`", "next: ")
    assert containers() == before
    later = serving.pulumi("preview", "--stack", "lab").output
    assert "Serve gate was not verified yet: " in later, later
    assert "model type `qwen9`" in later, later
    inject("loop", "serve", "--heal")
    with timed() as up:
        done = serving.up()
    assert done.code == 0, done.output
    assert containers() == before
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview() == {}
    report.repairs.append(Repair("loop serve", plan_text({SERVING: "create"}), "", preview[0], up[0]))


@pytest.mark.matrix
def test_what_a_reboot_brings_is_told_and_stopped_before_the_rest(serving: Stack, report: Report) -> None:
    """A stale unit that is enabled, and a foreign process on the GPU, which is the user's to stop."""
    before = containers()
    inject("unit", "spark-2")
    inject("reboot", "spark-2")
    inject("gpu", "spark-2")
    refused(serving.pulumi("preview", "--stack", "lab"), "spark-2: the GPU is held by /usr/bin/python3", "next: ")
    inject("gpu", "spark-2", "--heal")
    with timed() as preview:
        plan = serving.preview()
    assert plan.get("Command spark-2-stopped") == "update", plan  # what was found, a row before may have recorded
    with timed() as up:
        done = serving.up()
    assert done.code == 0, done.output
    assert on("spark-2", "systemctl", "is-active", "vllm-cluster.service", check=False).strip() == "inactive"
    assert containers() == before
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview() == {}
    inject("unit", "spark-2", "--heal")
    named = f"error: spark-2: the GPU is held by /usr/bin/python3; then {plan_text(plan)}"
    report.repairs.append(Repair("reboot spark-2, a stale unit and a foreign process", named, "", preview[0], up[0]))


def test_a_power_cut_ends_in_a_serving_cluster_without_the_operator(serving: Stack, report: Report) -> None:
    """Docker's restart policy is the first line of repair; `up` then finds nothing to do."""
    before, outputs = containers(), serving.outputs()
    with timed() as cut:
        inject("reboot", "both")
        deadline = time.monotonic() + 300
        while not answers(outputs["endpoint"], outputs["model"]):
            assert time.monotonic() < deadline
            time.sleep(1)
    done = serving.up("--expect-no-changes")
    assert done.code == 0, done.output
    assert containers() == before
    report.repairs.append(Repair("reboot both, no `up`", "", "", None, cut[0]))


def answers(endpoint: str, model: str) -> bool:
    """Whether a completion comes back."""
    try:
        return complete(endpoint, model) == 4
    except requests.RequestException:
        return False


def refuse(serving: Stack, row: Row) -> float:
    """A fault that the operator must end: told, and nothing is done; then it has ended. Seconds of the preview."""
    left = everything() if row.fault in ("gpu", "foreign", "port") else ""  # elsewhere Docker cannot be asked
    with timed() as preview:
        refused(serving.pulumi("preview", "--stack", "lab"), row.refused, "next: ")
    done = serving.up()
    refused(done, row.refused, "next: ")
    assert not left or everything() == left
    if row.fault == "fresh":
        accept(serving, done.output)
    inject(row.fault, row.target, "--heal")
    return preview[0]


def everything() -> str:
    """All containers of both nodes, also those that are not ours."""
    return "".join(on(node, "docker", "ps", "-aq", "--no-trunc") for node in NODES)


def accept(serving: Stack, output: str) -> None:
    """The command that the error names makes ssh forget the former key; the new one is then the user's to accept."""
    command = re.search(r"ssh-keygen -R \S+ -f \S+(?=,)", output)
    assert command, output
    subprocess.run(shlex.split(command[0]), cwd=ROOT, check=True)
    refused(serving.up(), "the host key of 192.168.200.13 is not known", "next: ")
