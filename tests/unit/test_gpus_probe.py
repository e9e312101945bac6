"""The GPU probe as it runs in the head's container: a process, with Ray's GCS client replaced by one from a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.gpu_gate import judge
from providers.probes import GPUS

RAY = '__version__ = "2.53.0"\n'
RAYLET = '''
import os
from types import SimpleNamespace as Record

FAILURES = int(os.environ.get("FAILURES", "0"))
calls = 0


class GcsClient:
    """Of the shape of Ray 2.53: get_all_node_info() gives GcsNodeInfo messages by node id."""

    def __init__(self, address):
        assert address == "192.168.200.12:6379", address

    def get_all_node_info(self, timeout=None):
        global calls
        calls += 1
        if calls <= FAILURES:
            raise RuntimeError("Timed out while waiting for GCS to become available." + "!" * 500)
        dead = Record(reason_message="Expected termination: received SIGTERM")
        node = lambda address, state, death: Record(
            node_manager_address=address, state=state, resources_total={"CPU": 20.0, "GPU": 1.0}, death_info=death,
            start_time_ms=1764500000123,
        )
        return {
            b"1": node("192.168.200.12", 0, Record(reason_message="")),
            b"2": node("192.168.200.13", 1, dead),
            b"3": Record(node_manager_address="192.168.200.13", state=0, resources_total={"CPU": 20.0}),
        }
'''

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the probe with a fake Ray; ends what is left of it."""
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").write_text(RAY)
    (package / "_raylet.py").write_text(RAYLET)
    running: list[subprocess.Popen[str]] = []

    def begin(pause: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", GPUS, "192.168.200.12:6379", pause],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        with process:
            process.kill()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_pause_of_zero_gives_one_reading_and_ends_though_the_input_is_open(start: Start) -> None:
    process = start("0")
    assert line(process) == {
        "ray": "2.53.0",
        "nodes": [
            {"address": "192.168.200.12", "alive": True, "gpus": 1.0, "started": 1764500000.123, "reason": ""},
            {
                "address": "192.168.200.13",
                "alive": False,
                "gpus": 1.0,
                "started": 1764500000.123,
                "reason": "Expected termination: received SIGTERM",
            },
            {"address": "192.168.200.13", "alive": True, "gpus": 0, "started": 0.0, "reason": ""},
        ],
    }
    assert process.wait(20) == 0


def test_errors_at_first_are_readings_and_the_probe_goes_on(start: Start) -> None:
    process = start("0.01", FAILURES="2")
    first, second, third = line(process), line(process), line(process)
    assert first == second
    assert first["error"].startswith("RuntimeError: Timed out while waiting for GCS")
    assert len(first["error"]) <= 200
    assert len(third["nodes"]) == 3


def test_end_of_input_ends_the_probe(start: Start) -> None:
    process = start("3600")
    line(process)
    assert process.stdin
    process.stdin.close()
    assert process.wait(20) == 0


def test_image_without_ray_is_seen_in_the_output(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ray" / "_raylet.py").write_text("raise ImportError('no ray here')")
    output, _ = start("0").communicate(timeout=20)
    assert "no ray here" in output


def test_reading_is_what_the_gate_judges(start: Start) -> None:
    expected = [
        {"name": "spark-1", "address": "192.168.200.12", "gpus": 1},
        {"name": "spark-2", "address": "192.168.200.13", "gpus": 1},
    ]
    fault = judge(expected, line(start("0"))).fault
    assert fault
    assert fault.node == "spark-2", "its living entry has no GPU"
