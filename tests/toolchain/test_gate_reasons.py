"""What a preview of the real engine shows of a gate that is gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.toolchain.stack import Stack
from tests.unit.fake_docker import FakeDocker, reading, says, state
from toolchain.versions import ROOT

pytestmark = pytest.mark.toolchain

HEAD, ADDRESS = "head0123456789", "192.168.200.12"
PROGRAM = f"""
from hosts.ssh import Connection
from providers.gate import Watched
from providers.gpu_gate import GpuGate

GpuGate(
    "gpus",
    address="{ADDRESS}:6379",
    nodes=[{{"name": "spark-1", "address": "{ADDRESS}", "gpus": 1}}],
    watched=[Watched(Connection("spark-1", ()), "{HEAD}", "ray-head").dump()],
    former={{}},
    stack="lab",
    grace=1,
    deadline=60,
)
"""


def node(*, alive: bool) -> dict[str, object]:
    """What the probe reads of Ray with one node."""
    row = {"address": ADDRESS, "alive": alive, "gpus": 1.0, "reason": "health check failed"}
    return {"ray": "2.53.0", "nodes": [row]}


def test_preview_names_the_node_and_the_words_of_ray(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path / "docker")
    docker.answer(f"inspect {HEAD}", state())
    docker.answer(f"logs {HEAD}", says("Ray runtime started\n"))
    docker.answer(f"exec {HEAD}", reading(node(alive=True)))
    stack = make_stack(PROGRAM)
    stack.environment["PATH"] = os.pathsep.join((str(docker.program.parent), stack.environment["PATH"]))
    stack.environment["PYTHONPATH"] = str(ROOT)
    assert stack.up().code == 0
    open_ = stack.pulumi("preview", "--refresh")
    assert (open_.code, "GPU gate" in open_.output) == (0, False)

    docker.answer(f"exec {HEAD}", reading(node(alive=False)))
    gone = stack.pulumi("preview", "--refresh")
    assert gone.code == 0
    assert "GPU gate is gone: 0 of 1 GPUs on 0 of 1 nodes; spark-1 dead: health check failed" in gone.output
