"""What the settings of a node do to its containers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pulumi.runtime import rpc

from tests.program.stack import CONTAINER, KEY, VOLUME, Program
from tests.samples import MINIMAL, STACK, settings, survey

TOKEN = "hf_very_secret"
SHARED = "/dev/shm"  # noqa: S108 - in the containers
WORKER, HEAD, SERVE = "spark-2-ray-worker", "spark-1-ray-head", "spark-1-serve"


def on_worker(own: dict[str, Any], **changes: Any) -> dict[str, Any]:
    first, second = MINIMAL["nodes"]
    return settings(nodes=[first, {**second, **own}], **changes)


def test_node_values_reach_the_containers_of_that_node_only(program: Program) -> None:
    own = {
        "restart": "no",
        "ulimits": [{"name": "memlock", "soft": 1, "hard": 2}],
        "mounts": [{"source": "/srv/b", "target": "/b", "read_only": False}],
        "environment": {"NCCL_DEBUG": "INFO"},
        "labels": {"com.example.rack": "2"},
    }
    found = program.run(on_worker(own, mounts=[{"source": "/srv/a", "target": "/a"}], labels={"com.example.team": "t"}))
    worker, head = found[WORKER], found[HEAD]
    assert (worker.inputs["restart"], head.inputs["restart"]) == ("no", "unless-stopped")
    assert {limit["name"]: limit["soft"] for limit in worker.inputs["ulimits"]} == {"memlock": 1, "nofile": 1048576}
    assert [volume.get("hostPath") for volume in worker.inputs["volumes"]][-2:] == ["/srv/a", "/srv/b"]
    assert "/srv/b" not in [volume.get("hostPath") for volume in head.inputs["volumes"]]
    assert worker.environment["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in head.environment
    assert (worker.labels["com.example.rack"], worker.labels["com.example.team"]) == ("2", "t")
    assert "com.example.rack" not in head.labels


def test_prefix_names_containers_and_volumes(program: Program) -> None:
    found = program.run(on_worker({"container_prefix": "two"}, container_prefix="desk"))
    assert {one.name: one.inputs["name"] for one in found.of(CONTAINER) + found.of(VOLUME)} == {
        HEAD: f"desk-{STACK}-ray-head",
        SERVE: f"desk-{STACK}-serve",
        WORKER: f"two-{STACK}-ray-worker",
        "spark-1-shm": f"desk-{STACK}-shm",
        "spark-1-ray": f"desk-{STACK}-ray",
        "spark-1-cache": f"desk-{STACK}-cache",
        "spark-2-shm": f"two-{STACK}-shm",
        "spark-2-ray": f"two-{STACK}-ray",
        "spark-2-cache": f"two-{STACK}-cache",
    }


def test_shared_memory_is_a_volume_of_the_node_unless_it_is_the_hosts(program: Program) -> None:
    found = program.run(on_worker({"ipc": "host"}, shm_size_mib=4096))
    memory = found["spark-1-shm"].inputs
    assert memory["driverOpts"] == {"type": "tmpfs", "device": "tmpfs", "o": "size=4096m,mode=1777"}
    for name in (HEAD, SERVE):
        assert found[name].inputs["ipcMode"] == "private"
        assert {"volumeName": memory["name"], "containerPath": SHARED} in found[name].inputs["volumes"]
    assert found[WORKER].inputs["ipcMode"] == "host"
    assert SHARED not in [volume["containerPath"] for volume in found[WORKER].inputs["volumes"]]


def test_model_in_the_home_directories_has_one_path_in_all_containers(program: Program) -> None:
    facts = {"spark-1": survey(1), "spark-2": survey(2, home="/home/other")}
    mounts = [{"source": "~/cache", "target": "/cache"}]
    found = program.run(settings(model="~/models/qwen", mounts=mounts), facts=facts)
    assert found[SERVE].inputs["command"][1] == "/home/aurora/models/qwen"
    for name, home in ((HEAD, "/home/aurora"), (WORKER, "/home/other")):
        first, *_, last = found[name].inputs["volumes"]
        assert (first["hostPath"], first["containerPath"]) == (f"{home}/models/qwen", "/home/aurora/models/qwen")
        assert last["hostPath"] == f"{home}/cache"


def test_own_mount_takes_the_place_of_a_volume(program: Program) -> None:
    found = program.run(on_worker({"mounts": [{"source": "/srv/ray", "target": "/tmp/ray/"}]}))  # noqa: S108 - Ray's
    assert {one.name for one in found.of(VOLUME)} == {
        f"spark-{node}" for node in ("1-ray", "1-cache", "1-shm", "2-cache", "2-shm")
    }


def test_secret_environment_reaches_every_container_and_nothing_else(program: Program) -> None:
    found = program.run(key=KEY, secrets={"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"})
    for one in found.of(CONTAINER):
        assert rpc.is_rpc_secret(one.inputs["envs"])
        assert (one.environment["HF_TOKEN"], one.environment["HF_HUB_OFFLINE"]) == (TOKEN, "0")
        assert one.environment.get("VLLM_API_KEY") == (KEY if one.name == SERVE else None)
    for one in found.resources:
        plain = {name: value for name, value in one.inputs.items() if not rpc.is_rpc_secret(value)}
        assert TOKEN not in json.dumps(plain, default=str), one.urn
    assert TOKEN not in json.dumps(found.outputs)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"key": KEY, "encrypted": False}, "dgx-spark-cluster:apiKey: stands in the stack's file as plain text"),
        ({"secrets": {"HF_TOKEN": TOKEN}, "encrypted": False}, "set --secret --path secretEnvironment.NAME"),
        ({"secrets": {"HF-TOKEN": TOKEN}}, "dgx-spark-cluster:secretEnvironment.HF-TOKEN: must be text under"),
        ({"secrets": TOKEN}, "dgx-spark-cluster:secretEnvironment: must be text under the name of a variable"),
    ],
)
def test_wrong_secrets_are_one_error_that_does_not_show_them(
    program: Program, given: dict[str, Any], wanted: str
) -> None:
    found = program.run(**given)
    assert found.exit_code == 32
    (error,) = found.errors
    assert wanted in error
    assert TOKEN not in error
    assert KEY not in error
    assert not found.resources
