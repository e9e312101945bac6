"""The matrix: each fault is named by the preview, repaired by one `up`, and nothing that works is touched.

`make test` runs the rows that are not marked matrix; `make faults` runs all and writes docs/faults.md.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.conftest import ROOT, Stack, complete, ours

HEAD, WORKER, SERVE = "Container spark-1-ray-head", "Container spark-2-ray-worker", "Container spark-1-serve"
GPUS, SERVING = "GpuGate gpus", "ServeGate serving"


@dataclass(frozen=True)
class Row:
    """One fault and what must come of it."""

    fault: str
    target: str
    named: dict[str, str]
    """What the preview must name at least, with the operation. The GPU gate may show beside it: Ray's node is back
    within seconds where Docker restarts its container, while serve loads anew."""
    replaced: frozenset[str] = frozenset()
    """Roles whose containers are new afterwards; all others are the same ones."""
    said: str = ""
    """What `up` must say."""

    @property
    def name(self) -> str:
        """As the lab's command has it."""
        return f"{self.fault} {self.target}"


ALL = frozenset({"ray-head", "ray-worker", "serve"})
QUICK = (
    Row("raylet", "ray-worker", {SERVING: "create"}),
    Row("reboot", "spark-2", {SERVING: "create"}),
)
MORE = (
    Row("remove", "ray-head", {HEAD: "create", WORKER: "replace", SERVE: "replace", GPUS: "create"}, ALL),
    Row("freeze", "serve", {SERVING: "create"}, said="restarting the serve container on spark-1"),
    Row("remove", "serve", {SERVE: "create", SERVING: "create"}, frozenset({"serve"})),
    Row("remove", "ray-worker", {WORKER: "create", SERVE: "replace"}, frozenset({"ray-worker", "serve"})),
    Row("stop", "serve", {SERVE: "update", SERVING: "create"}),
    Row("stop", "ray-worker", {WORKER: "update", GPUS: "create"}),
    Row("stop", "ray-head", {HEAD: "update", GPUS: "create"}),
    Row("kill", "serve", {SERVE: "update", SERVING: "create"}),
    Row("crash", "serve", {SERVING: "create"}),
    Row("crash", "ray-worker", {SERVING: "create"}),
    Row("restart", "ray-head", {SERVING: "create"}),
    Row("link", "spark-2", {}),
    Row("reboot", "spark-1", {SERVING: "create"}),
    Row("docker-restart", "spark-2", {SERVING: "create"}),
)


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[float, Row]]]:
    """Seconds of each repair; written to the file that --faults-report names."""
    found: dict[str, tuple[float, Row]] = {}
    yield found
    report = request.config.getoption("--faults-report")
    if report:
        Path(report).write_text(table(found))


def table(found: dict[str, tuple[float, Row]]) -> str:
    """The matrix as Markdown."""
    lines = [
        "# Faults and their repair",
        "",
        "Made by `make faults` on the lab: each is injected into a serving cluster (`python -m lab fault …`), then one",
        "`pulumi up` must bring back a completion; seconds are those of that `up`.",
        f"A full start took {found['start'][0]:.0f} s in the same run.",
        "",
        "| fault | preview names | replaced | up, s |",
        "|---|---|---|---|",
    ]
    for name, (seconds, row) in found.items():
        if name != "start":
            named = ", ".join(f"{key} ({value})" for key, value in row.named.items()) or "what died, if anything"
            replaced = ", ".join(sorted(row.replaced)) or "nothing"
            lines.append(f"| {name} | {named} | {replaced} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def serving(stack: Stack, measured: dict[str, tuple[float, Row]]) -> Stack:
    """A stack that serves."""
    began = time.monotonic()
    done = stack.up()
    assert done.code == 0, done.output
    measured["start"] = (time.monotonic() - began, Row("start", "", {}))
    return stack


def containers() -> dict[str, str]:
    """All our containers by role."""
    return ours("spark-1") | ours("spark-2")


@pytest.mark.parametrize(
    "row",
    [*(pytest.param(row, id=row.name) for row in QUICK)]
    + [pytest.param(row, id=row.name, marks=pytest.mark.matrix) for row in MORE],
)
def test_fault_is_named_and_repaired_and_nothing_else_is_touched(
    serving: Stack, measured: dict[str, tuple[float, Row]], row: Row
) -> None:
    before = containers()
    subprocess.run([sys.executable, "-m", "lab", "fault", row.fault, row.target], cwd=ROOT, check=True)
    plan = serving.preview()
    assert {name: plan.get(name) for name in row.named} == row.named, plan
    assert not [name for name in plan if not name.startswith(("Container", "GpuGate", "ServeGate"))], plan

    began = time.monotonic()
    done = serving.up()
    measured[row.name] = (time.monotonic() - began, row)
    assert done.code == 0, done.output
    assert row.said in done.output
    after = containers()
    assert {role for role in before if after[role] != before[role]} == row.replaced
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview() == {}
