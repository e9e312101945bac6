"""The pack as the engine starts it, and the names it relies on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf import empty_pb2, struct_pb2  # type: ignore[import-untyped]
from pulumi.runtime import proto
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

import policies
from hosts.ownership import labels
from policies import registered
from policies.pack import LAB_STACK, NAME
from providers.gpu_gate import GpuGate
from providers.node_image import NodeImage
from providers.serve_gate import ServeGate
from tests.policies.recorded import head, node_image, serve

FOLDER = Path(policies.__file__).parent


@pytest.fixture
def pack(tmp_path: Path) -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    """The running pack, started from a directory that has nothing to do with the checkout."""
    command = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", str(FOLDER)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield analyzer_pb2_grpc.AnalyzerStub(channel)
        finally:
            process.kill()


def test_the_pack_starts_anywhere_and_is_mandatory_but_on_the_lab(pack: Any) -> None:
    info = pack.GetAnalyzerInfo(empty_pb2.Empty())
    assert info.name == NAME
    levels = {policy.name: policy.enforcementLevel for policy in info.policies}
    assert {name for name, level in levels.items() if level != proto.MANDATORY} == {"image-pinned-lab", "api-key-lab"}
    assert {levels["image-pinned-lab"], levels["api-key-lab"]} == {proto.ADVISORY}


@pytest.mark.parametrize(("stack", "level"), [("spark", proto.MANDATORY), (LAB_STACK, proto.ADVISORY)])
def test_leniency_follows_from_the_name_of_the_stack(pack: Any, stack: str, level: int) -> None:
    for resource in (node_image("vllm:1", stack=stack), serve(envs=[], stack=stack)):
        properties = struct_pb2.Struct()
        properties.update(json.loads(json.dumps(resource.props)))
        request = analyzer_pb2.AnalyzeRequest(
            type=resource.type,
            name=resource.name,
            urn=resource.urn,
            properties=properties,
            provider=analyzer_pb2.AnalyzerProviderResource(
                type="pulumi:providers:docker", name=resource.provider or ""
            ),
        )
        assert [found.enforcementLevel for found in pack.Analyze(request).diagnostics] == [level]


@pytest.mark.parametrize(
    ("token", "resource"),
    [(registered.GPU_GATE, GpuGate), (registered.SERVE_GATE, ServeGate), (registered.NODE_IMAGE, NodeImage)],
)
def test_type_tokens_are_those_of_the_providers(token: str, resource: type) -> None:
    assert token == f"pulumi-python:{resource._resource_type_name}"  # type: ignore[attr-defined]


def test_labels_are_those_of_ownership() -> None:
    recorded = {row["label"]: row["value"] for row in head().props["labels"]}
    assert recorded.items() >= labels("spark", "spark-1", "ray-head").items()
