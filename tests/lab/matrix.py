"""Faults and plans: what the tests of the fault matrix share."""

from __future__ import annotations

import subprocess
import sys

from tests.lab.conftest import ROOT, ours

HEAD, WORKER, SERVE = "Container spark-1-ray-head", "Container spark-2-ray-worker", "Container spark-1-serve"
GPUS, SERVING = "GpuGate gpus", "ServeGate serving"
ALL = frozenset({"ray-head", "ray-worker", "serve"})


def plan_text(plan: dict[str, str]) -> str:
    """A plan in a cell of the table."""
    return ", ".join(f"{name} ({operation})" for name, operation in plan.items())


def containers() -> dict[str, str]:
    """All our containers by role."""
    return ours("spark-1") | ours("spark-2")


def inject(fault: str, target: str, *more: str) -> None:
    """`python -m lab fault`."""
    subprocess.run([sys.executable, "-m", "lab", "fault", fault, target, *more], cwd=ROOT, check=True)
