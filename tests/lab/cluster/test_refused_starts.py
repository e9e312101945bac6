"""Faults that only show where nothing of the stack runs yet, and the way from each of them to a serving cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.cluster.checks import assert_one_clear_error, containers
from tests.lab.conftest import Result, Stack, lab_settings, on, refused


@contextmanager
def taken(port: int) -> Iterator[None]:
    """A foreign process on a port of the head."""
    command = f"python3 -m http.server {port} >/dev/null 2>&1 & echo $!"
    pid = on("spark-1", "bash", "-c", f"setsid {command}").strip()
    try:
        until = f"until ss -Hltn 'sport = :{port}' | grep -q .; do kill -0 {pid} || exit 1; done"
        on("spark-1", "timeout", "20", "bash", "-c", until)
        yield
    finally:
        on("spark-1", "kill", pid)


@pytest.mark.parametrize("port", [30000, 6379])
def test_a_taken_port_is_named_with_its_process(bare: Stack, port: int) -> None:
    with taken(port):
        done = bare.up()
    assert done.code != 0
    assert_one_clear_error(done.output, f"spark-1: port {port} is taken by python3 (pid ")
    assert containers() == {}


def changed(stack: Stack, **changes: Any) -> Result:
    """An up with changed settings that goes as far as it can."""
    return stack.up(*stack.configured(lab_settings() | changes))


def test_an_image_that_is_nowhere_starts_nothing(bare: Stack) -> None:
    doubt = "warning: spark-1: localhost:5 does not tell whether it gives image localhost:5/absent/vllm:1"
    cause = "image localhost:5/absent/vllm:1 is on no node and cannot be pulled"
    refused(changed(bare, image="localhost:5/absent/vllm:1", image_archive=None), doubt, cause)
    assert containers() == {}


def test_fewer_gpus_in_ray_than_wanted_keep_serve_from_starting(bare: Stack) -> None:
    head, worker = lab_settings()["nodes"]
    nodes = [head, worker | {"ray_arguments": ["--num-gpus=0"]}]
    refused(changed(bare, nodes=nodes), "spark-2: Ray sees 0 GPU(s) on 192.168.200.13, 1 wanted")
    assert set(containers()) == {"ray-head", "ray-worker"}


def test_configuration_that_the_engine_refuses_leaves_the_head_alone(stack: Stack) -> None:
    head = containers()["ray-head"]
    cause = "the engine refuses its configuration: User-specified max_model_len (999999) is greater than"
    refused(changed(stack, engine_arguments=["--enforce-eager", "--max-model-len=999999"]), cause)
    assert containers()["ray-head"] == head


def test_the_next_up_converges(stack: Stack) -> None:
    head = containers()["ray-head"]
    done = stack.up()
    assert done.code == 0, done.output
    assert containers()["ray-head"] == head
    assert stack.preview() == {}
