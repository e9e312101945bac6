"""Faults, plans and times: what the tests of the fault matrix share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.conftest import ROOT, Stack, ours
from tests.lab.report import Report

HEAD, WORKER, SERVE = "Container spark-1-ray-head", "Container spark-2-ray-worker", "Container spark-1-serve"
GPUS, SERVING = "GpuGate gpus", "ServeGate serving"
ALL = frozenset({"ray-head", "ray-worker", "serve"})


@contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of a block, in a list when it has ended."""
    seconds: list[float] = []
    began = time.monotonic()
    yield seconds
    seconds.append(time.monotonic() - began)


def plan_text(plan: dict[str, str]) -> str:
    """A plan in a cell of the table."""
    return ", ".join(f"{name} ({operation})" for name, operation in plan.items())


def containers() -> dict[str, str]:
    """All our containers by role."""
    return ours("spark-1") | ours("spark-2")


def inject(fault: str, target: str, *more: str) -> None:
    """`python -m lab fault`."""
    subprocess.run([sys.executable, "-m", "lab", "fault", fault, target, *more], cwd=ROOT, check=True)


def start(stack: Stack, report: Report, *settings: str) -> Stack:
    """A stack that serves, and what a full start and a clean preview take."""
    with timed() as up:
        done = stack.up(*settings)
    assert done.code == 0, done.output
    with timed() as clean:
        assert stack.preview(*settings) == {}
    report.starts += up
    report.clean += clean
    return stack
