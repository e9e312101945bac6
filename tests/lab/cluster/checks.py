"""What several modules ask and demand of the cluster."""

from __future__ import annotations

import subprocess
import sys

from tests.lab.conftest import ROOT, lab_settings, on, ours

NODES = ("spark-1", "spark-2")
HEAD, WORKER, SERVE = "Container spark-1-ray-head", "Container spark-2-ray-worker", "Container spark-1-serve"
GPUS, SERVING = "GpuGate gpus", "ServeGate serving"
ALL = frozenset({"ray-head", "ray-worker", "serve"})


def plan_text(plan: dict[str, str]) -> str:
    """A plan in a cell of the table."""
    return ", ".join(f"{name} ({operation})" for name, operation in plan.items())


def containers() -> dict[str, str]:
    """All our containers by role."""
    return ours("spark-1") | ours("spark-2")


def copy_model(path: str) -> None:
    """The lab's model at another path of the head, as files of the ssh user."""
    copied = f"mkdir -p {path} && sudo cp -r {lab_settings()['model']}/. {path} && sudo chown -R aurora {path}"
    on("spark-1", "sh", "-c", copied)


def inject(fault: str, target: str, *more: str) -> None:
    """`python -m lab fault`."""
    subprocess.run([sys.executable, "-m", "lab", "fault", fault, target, *more], cwd=ROOT, check=True)


def assert_one_clear_error(output: str, *wanted: str) -> None:
    """One error, with the texts and a next step."""
    for text in (*wanted, "next:"):
        assert text in output, output
    assert "Traceback" not in output, output
    diagnostics = output[output.index("Diagnostics:") :]
    assert diagnostics.count("error:") == 1, output


def assert_bare() -> None:
    """No container, volume, port, GPU use or process of the stack on any node."""
    label = "label=dgx-spark-cluster.stack=lab"
    for node in NODES:
        assert on(node, "docker", "ps", "-aq", "--filter", label) == ""
        assert on(node, "docker", "volume", "ls", "-q", "--filter", label) == ""
        assert on(node, "ss", "-Hltn", "sport = :30000 or sport = :6379") == ""
        assert on(node, "nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader") == ""
        assert on(node, "pgrep", "-f", "[r]aylet|[v]llm", check=False) == ""
