"""The dynamic providers as the engine runs them: `python -m pulumi.dynamic`, asked over gRPC."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dill  # type: ignore[import-untyped]
import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.dynamic import ResourceProvider
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from hosts.ssh import Connection
from providers.base import Provider
from providers.gpu_gate import GpuGateProvider
from providers.host import HostProvider
from providers.node_image import NodeImageProvider
from providers.serve_gate import ServeGateProvider

ROOT = Path(__file__).parents[2]
FAILING = '''
"""Providers that fail in known ways."""
import os

from hosts.faults import Fault, Faults
from providers.base import Provider


class Failing(Provider):
    def create(self, props):
        faults = [Fault("spark-2", "ist aus – „tot“", "switch it on", "raw output"), Fault("spark-1", "b", "c")]
        if props["how"] == "one":
            raise faults[0]
        if props["how"] == "several":
            raise Faults(faults, "a note")
        if props["how"] == "while handling":
            try:
                {}["inner"]
            except KeyError:
                raise faults[0]
        return {}["a programming error"]


class Waiting(Provider):
    def create(self, props):
        from providers.plugin import CANCELLED

        os.write(1, b"waiting\\n")  # in one piece, whoever else writes
        CANCELLED.wait()
        raise Fault("spark-1", "interrupted", "run it again")
'''
FAULT = "spark-2: ist aus – „tot“\n  next: switch it on\n  evidence:\n    raw output"


def properties(provider: ResourceProvider, **props: Any) -> Any:
    """Properties with the provider in them, as Pulumi stores it."""
    pickled = base64.b64encode(dill.dumps(provider)).decode()
    loop = asyncio.new_event_loop()  # asyncio.run() would leave the thread without one, which Pulumi's mocks need
    try:
        return loop.run_until_complete(rpc.serialize_properties({"__provider": pickled, **props}, {}))
    finally:
        loop.close()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The plugin process of dynamic providers, with a module of failing providers, and a client for it."""
    home = tmp_path_factory.mktemp("plugin")
    with started(home) as (_, client):
        yield client


@contextmanager
def started(home: Path) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A plugin process of its own, and a client for it."""
    (home / "failing.py").write_text(FAILING)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "pulumi.dynamic", "127.0.0.1:1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(home), "PATH": f"{home}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        try:
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield process, provider_pb2_grpc.ResourceProviderStub(channel)
        finally:
            process.kill()


@pytest.fixture
def failing(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Creates a resource that fails; returns the error that the engine shows."""
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("failing")

    def create(how: str) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            plugin.Create(provider_pb2.CreateRequest(properties=properties(module.Failing(), how=how)), timeout=30)
        details: str = caught.value.details()
        return details

    return create


def test_fault_is_answered_with_exactly_its_text(failing: Callable[[str], str]) -> None:
    assert failing("one") == FAULT


def test_several_faults_are_answered_with_exactly_their_text(failing: Callable[[str], str]) -> None:
    assert failing("several") == f"{FAULT}\nspark-1: b\n  next: c\na note"


def test_fault_raised_while_another_error_is_handled_is_still_its_text(failing: Callable[[str], str]) -> None:
    assert failing("while handling") == FAULT


def test_programming_error_keeps_its_traceback(failing: Callable[[str], str]) -> None:
    text = failing("bug")
    assert text.startswith("Traceback (most recent call last):")
    assert "KeyError: 'a programming error'" in text
    assert "failing.py" in text


@pytest.mark.usefixtures("failing")  # the module that the properties are made from
def test_cancel_ends_what_waits(tmp_path: Path) -> None:
    waiting = properties(__import__("failing").Waiting())
    with started(tmp_path) as (process, client):
        answer = client.Create.future(provider_pb2.CreateRequest(properties=waiting), timeout=30)
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        client.Cancel(empty_pb2.Empty(), timeout=30)
        assert answer.exception().details() == "spark-1: interrupted\n  next: run it again"


@pytest.mark.usefixtures("failing")
def test_many_nodes_wait_at_once_and_cancel_gets_through(tmp_path: Path) -> None:
    """The SDK's pool has four threads: a fifth call would wait for one of them, and so would Cancel."""
    waiting = properties(__import__("failing").Waiting())
    with started(tmp_path) as (process, client):
        answers = [client.Create.future(provider_pb2.CreateRequest(properties=waiting), timeout=60) for _ in range(16)]
        assert process.stdout
        assert [process.stdout.readline() for _ in answers] == ["waiting\n"] * len(answers)
        client.Cancel(empty_pb2.Empty(), timeout=30)
        assert {answer.exception().details() for answer in answers} == {"spark-1: interrupted\n  next: run it again"}


def test_fault_of_a_real_provider_reaches_the_engine(plugin: Any) -> None:
    hop = {"node": "spark-2", "host": "127.0.0.1", "user": "nobody", "port": 1, "identity_file": None}
    connection = {"node": "spark-2", "hops": [hop], "config_file": "/dev/null", "connect_timeout": 5}
    request = provider_pb2.DeleteRequest(
        id="lab/spark-2", properties=properties(HostProvider(), connection=connection, stack="lab", grace=1)
    )
    with pytest.raises(grpc.RpcError) as caught:
        plugin.Delete(request, timeout=30)
    assert caught.value.details().startswith(
        "spark-2: 127.0.0.1 refuses connections: sshd is not running; what is ours "
    )
    assert "Traceback" not in caught.value.details()


def test_state_and_inputs_with_floats_and_nothing_are_no_change(plugin: Any) -> None:
    connection = Connection("spark-1", ()).dump()
    inputs = properties(
        HostProvider(), connection=connection, stack="lab", facts={"gpus": ["NVIDIA GB10"]}, grace=10, timeout=30
    )
    answer = plugin.Diff(provider_pb2.DiffRequest(id="x", olds=inputs, news=inputs), timeout=30)
    assert answer.changes == provider_pb2.DiffResponse.DIFF_NONE


PROVIDERS = (HostProvider, NodeImageProvider, GpuGateProvider, ServeGateProvider)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_provider_is_stored_by_reference_and_not_as_a_secret(provider: type[Provider]) -> None:
    stored = dill.dumps(provider())
    assert len(stored) < 120, "pickled by value: every change of code would be a diff"
    assert provider.serialize_as_secret_always is False


@pytest.mark.parametrize("provider", PROVIDERS)
def test_diff_always_decides(provider: type[Provider]) -> None:
    same: Mapping[str, Any] = dict.fromkeys((*provider.compared, *provider.identity), 1)
    assert provider().diff("x", same, {**same, "deadline": 5}).changes is False
    for key in provider.compared:
        found = provider().diff("x", same, {**same, key: 2})
        assert (found.changes, found.replaces) == (True, [])
    for key in provider.identity:
        assert provider().diff("x", same, {**same, key: 2}).replaces == [key]
