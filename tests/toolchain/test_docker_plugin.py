"""The Docker plugin against the SDK that programs are written with."""

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import pulumi_docker as docker
import pytest
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from tests.toolchain.sdk_types import differences
from toolchain.layout import DOCKER_PLUGIN
from toolchain.property_values import to_struct
from toolchain.versions import DOCKER

pytestmark = pytest.mark.toolchain

CONTAINER = "docker:index/container:Container"
RESOURCES = [
    (docker.ContainerArgs, CONTAINER),
    (docker.RemoteImageArgs, "docker:index/remoteImage:RemoteImage"),
    (docker.NetworkArgs, "docker:index/network:Network"),
    (docker.VolumeArgs, "docker:index/volume:Volume"),
    (docker.TagArgs, "docker:index/tag:Tag"),
    (docker.ServiceArgs, "docker:index/service:Service"),
    (docker.ServiceConfigArgs, "docker:index/serviceConfig:ServiceConfig"),
    (docker.SecretArgs, "docker:index/secret:Secret"),
    (docker.PluginArgs, "docker:index/plugin:Plugin"),
    (docker.RegistryImageArgs, "docker:index/registryImage:RegistryImage"),
    (docker.BuildxBuilderArgs, "docker:index/buildxBuilder:BuildxBuilder"),
]


@pytest.fixture(scope="session")
def plugin(pulumi_environment: dict[str, str]) -> Iterator[provider_pb2_grpc.ResourceProviderStub]:
    """The built plugin, at work."""
    if not DOCKER_PLUGIN.exists():
        pytest.skip("an official Pulumi is used: its Docker plugin is not ours")
    with subprocess.Popen([str(DOCKER_PLUGIN)], stdout=subprocess.PIPE, env=pulumi_environment) as process:
        try:
            assert process.stdout is not None
            with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
                yield provider_pb2_grpc.ResourceProviderStub(channel)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def schema(plugin: provider_pb2_grpc.ResourceProviderStub) -> dict[str, Any]:
    """The schema that the plugin tells."""
    return dict(json.loads(plugin.GetSchema(provider_pb2.GetSchemaRequest()).schema))


@pytest.mark.parametrize(("arguments", "token"), RESOURCES, ids=lambda value: str(value).rpartition(":")[2])
def test_every_argument_of_the_sdk_is_understood(schema: dict[str, Any], arguments: type, token: str) -> None:
    assert differences(arguments, token, schema) == []


def test_every_argument_of_the_provider_is_understood(schema: dict[str, Any]) -> None:
    provider = {"resources": {"provider": schema["provider"]}, "types": schema["types"]}
    assert differences(docker.ProviderArgs, "provider", provider) == []


def test_removed_and_retyped_properties_are_reported(schema: dict[str, Any]) -> None:
    damaged = copy.deepcopy(schema)
    properties = damaged["resources"][CONTAINER]["inputProperties"]
    del properties["gpus"]
    properties["memory"] = {"type": "string"}
    properties["envs"] = {"type": "array", "items": {"type": "integer"}}
    properties["capabilities"] = {"type": "array", "items": {"type": "string"}}
    mount = properties["mounts"]["items"]["$ref"].removeprefix("#/types/")
    del damaged["types"][mount]["properties"]["source"]
    assert set(differences(docker.ContainerArgs, CONTAINER, damaged)) == {
        f"{CONTAINER}.gpus: the plugin has no such property",
        f"{CONTAINER}.memory: the SDK has int, the plugin string",
        f"{CONTAINER}.envs[]: the SDK has str, the plugin integer",
        f"{CONTAINER}.capabilities: the SDK has an object, the plugin array",
        f"{CONTAINER}.mounts[].source: the plugin has no such property",
    }


def test_a_missing_resource_is_reported(schema: dict[str, Any]) -> None:
    damaged = copy.deepcopy(schema)
    del damaged["resources"][CONTAINER]
    assert differences(docker.ContainerArgs, CONTAINER, damaged) == [f"{CONTAINER}: the plugin has no such resource"]


def test_required_inputs_are_those_of_the_sdk(schema: dict[str, Any]) -> None:
    assert schema["resources"][CONTAINER]["requiredInputs"] == ["image"]  # the name is made where it is not given


def test_the_plugin_tells_the_version_of_the_sdk(schema: dict[str, Any]) -> None:
    assert schema["version"] == DOCKER
    answer = subprocess.run(
        [str(DOCKER_PLUGIN), "-version"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert answer.stdout.strip() == DOCKER


def test_a_container_is_deleted_before_it_is_replaced(plugin: provider_pb2_grpc.ResourceProviderStub) -> None:
    # Nothing is asked of this host: the provider dials an ssh host when it first needs it.
    plugin.Configure(provider_pb2.ConfigureRequest(args=to_struct({"host": "ssh://nobody@127.0.0.1:1"})))
    old = {"name": "ray-head", "image": "sha256:old"}
    request = provider_pb2.DiffRequest(
        id="1", urn=f"urn:pulumi:test::project::{CONTAINER}::ray-head", olds=to_struct(old), old_inputs=to_struct(old)
    )
    request.news.CopyFrom(to_struct(old | {"image": "sha256:new"}))
    difference = plugin.Diff(request)
    assert "image" in difference.replaces
    assert difference.deleteBeforeReplace
