"""The resource graph: what is registered, in which order, on which node, and how it is replaced and removed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from providers.host import FOUND_URN
from tests.program.stack import CONTAINER, PROVIDER, VOLUME, Outcome, Program
from tests.samples import IMAGE_ID, STACK, hca, interface, settings, survey, surveys

PREFIX = "dgx-spark-cluster"


@pytest.fixture
def up(program: Program) -> Outcome:
    """The field case: two Sparks."""
    found = program.run()
    assert not found.errors
    return found


def three(**changes: Any) -> dict[str, Any]:
    nodes = [{"name": f"spark-{number}", "ssh": f"aurora@10.1.230.{179 + number}"} for number in (1, 2, 3)]
    return settings(nodes=nodes, **changes)


def test_everything_of_the_field_case_is_registered_and_nothing_else(up: Outcome) -> None:
    assert sorted(f"{one.type.rpartition(':')[2]} {one.name}" for one in up.resources) == [
        "Cluster cluster",
        "Command spark-1-found",
        "Command spark-1-stopped",
        "Command spark-2-found",
        "Command spark-2-stopped",
        "Container spark-1-ray-head",
        "Container spark-1-serve",
        "Container spark-2-ray-worker",
        "GpuGate gpus",
        "Host spark-1",
        "Host spark-2",
        "ImageGate image",
        "Members members",
        "ModelWeights spark-1",
        "ModelWeights spark-2",
        "Node spark-1",
        "Node spark-2",
        "NodeImage spark-1",
        "NodeImage spark-2",
        "Preparation spark-1",
        "Preparation spark-2",
        "Ray ray",
        "Serve serve",
        "ServeGate serving",
        "Volume spark-1-cache",
        "Volume spark-1-ray",
        "Volume spark-1-shm",
        "Volume spark-2-cache",
        "Volume spark-2-ray",
        "Volume spark-2-shm",
        "docker spark-1",
        "docker spark-2",
    ]


def test_order_of_creation(up: Outcome) -> None:
    chain = ["ServeGate serving", "spark-1-serve", "gpus", "spark-2-ray-worker", "spark-1-ray-head", "ImageGate image"]
    chain += ["NodeImage spark-1", "Host spark-1"]
    for later, sooner in itertools.pairwise(chain):
        assert up.reaches(up[later], up[sooner]), f"{later} does not wait for {sooner}"
        assert not up.reaches(up[sooner], up[later])


def test_nodes_are_prepared_independently_of_each_other(up: Outcome) -> None:
    for kind in ("Host", "docker"):
        assert not up.reaches(up[f"{kind} spark-2"], up[f"{kind} spark-1"])
        assert not up.reaches(up[f"{kind} spark-1"], up[f"{kind} spark-2"])


def test_containers_wait_for_the_host_and_image_of_their_node(up: Outcome) -> None:
    for one in up.of(CONTAINER):
        node = one.labels[f"{PREFIX}.node"]
        assert up.reaches(one, up[f"Host {node}"])
        assert up.reaches(one, up[f"NodeImage {node}"])
        assert up.reaches(one, up[f"ModelWeights {node}"])


def test_everything_in_docker_is_pinned_to_its_own_node(up: Outcome) -> None:
    providers = {one.name: one for one in up.of(PROVIDER)}
    docker = up.of(CONTAINER) + up.of(VOLUME)
    assert len(docker) == 9
    for one in docker:
        node = providers[one.labels[f"{PREFIX}.node"]]
        assert one.provider == f"{node.urn}::id-of-{node.name}"


def test_providers_reach_their_node_over_ssh(up: Outcome) -> None:
    head, worker = up["docker spark-1"], up["docker spark-2"]
    assert head.inputs["host"] == "ssh://aurora@10.1.230.180"
    assert worker.inputs["host"] == "ssh://aurora@192.168.200.13"
    assert "ProxyCommand=" in str(worker.inputs["sshOpts"])
    assert "ProxyCommand=" not in str(head.inputs["sshOpts"])


def test_everything_in_docker_is_labelled_as_ours(up: Outcome) -> None:
    for one in up.of(CONTAINER) + up.of(VOLUME):
        node, role = one.labels[f"{PREFIX}.node"], one.labels[f"{PREFIX}.role"]
        assert one.name == f"{node}-{role}"
        assert one.labels[f"{PREFIX}.stack"] == STACK
        assert one.inputs["name"] == f"{PREFIX}-{STACK}-{role}"


def test_what_is_on_a_node_goes_with_its_host(up: Outcome) -> None:
    """One dead node spares the others on destroy."""
    for one in up.of(CONTAINER) + up.of(VOLUME) + up.of(":NodeImage") + up.of(":ModelWeights"):
        node = one.name if one.name in ("spark-1", "spark-2") else one.labels[f"{PREFIX}.node"]
        assert one.deleted_with == up[f"Host {node}"].urn
    for gate in up.of("Gate"):
        assert gate.deleted_with == up["Host spark-1"].urn


def test_upstream_label_replaces_workers_and_serve_with_the_head(up: Outcome) -> None:
    upstream = f"{PREFIX}.upstream"
    assert up["spark-1-ray-head"].labels[upstream] == ""
    assert up["spark-2-ray-worker"].labels[upstream] == "id-of-spark-1-ray-head"
    assert up["spark-1-serve"].labels[upstream] == "id-of-spark-1-ray-head"


def test_containers_are_deleted_before_their_replacement_and_names_are_freed(up: Outcome) -> None:
    for one in up.of(CONTAINER):
        assert one.delete_before_replace
        assert one.before_create == (f"{one.labels[f'{PREFIX}.node']}-claim",)


def test_containers_run_as_gpu_serving_needs(up: Outcome) -> None:
    for one in up.of(CONTAINER):
        inputs = one.inputs
        assert (inputs["image"], inputs["gpus"], inputs["restart"]) == (IMAGE_ID, "all", "unless-stopped")
        assert (inputs["networkMode"], inputs["ipcMode"], inputs["mustRun"]) == ("host", "private", True)
        assert inputs["destroyGraceSeconds"] == 10
        assert {limit["name"]: (limit["soft"], limit["hard"]) for limit in inputs["ulimits"]} == {
            "memlock": (-1, -1),
            "nofile": (1048576, 1048576),
        }
        assert [device["hostPath"] for device in inputs["devices"]] == ["/dev/infiniband"]


def test_image_entrypoint_is_overridden(up: Outcome) -> None:
    starts = {one.name: one.inputs["entrypoints"] + one.inputs["command"][:2] for one in up.of(CONTAINER)}
    assert starts == {
        "spark-1-ray-head": ["ray", "start", "--block"],
        "spark-2-ray-worker": ["ray", "start", "--block"],
        "spark-1-serve": ["vllm", "serve", "/srv/models/Qwen3.5-122B-A10B-FP8"],
    }


def test_model_is_mounted_read_only_at_the_same_path(up: Outcome) -> None:
    model = "/srv/models/Qwen3.5-122B-A10B-FP8"
    for one in up.of(CONTAINER):
        first, *others = one.inputs["volumes"]
        assert first == {"hostPath": model, "containerPath": model, "readOnly": True}
        assert [(other["volumeName"], other["containerPath"]) for other in others] == [
            (f"{PREFIX}-{STACK}-ray", "/tmp/ray"),  # noqa: S108 - Ray's own
            (f"{PREFIX}-{STACK}-cache", "/root/.cache"),
            (f"{PREFIX}-{STACK}-shm", "/dev/shm"),  # noqa: S108 - in the container
        ]


def test_each_container_has_the_environment_of_its_node(program: Program) -> None:
    """C07."""
    worker = survey(
        2,
        interfaces=[interface("enp1s0f0np0", "192.168.200.13/24")],
        hcas=[hca("rocep1s0f0", "enp1s0f0np0")],
    )
    found = program.run(facts={"spark-1": survey(1), "spark-2": worker})
    ends = {name: found[name].environment for name in ("spark-1-ray-head", "spark-2-ray-worker", "spark-1-serve")}
    assert {name: (one["VLLM_HOST_IP"], one["GLOO_SOCKET_IFNAME"]) for name, one in ends.items()} == {
        "spark-1-ray-head": ("192.168.200.12", "enp1s0f1np1"),
        "spark-2-ray-worker": ("192.168.200.13", "enp1s0f0np0"),
        "spark-1-serve": ("192.168.200.12", "enp1s0f1np1"),
    }


def test_gates_watch_the_containers_and_know_their_deadlines(program: Program) -> None:
    found = program.run(settings(deadlines={"gpus": 60, "load": 900, "completion": 30, "probe": 4}))
    gpus, serving = found["gpus"].inputs, found["serving"].inputs
    assert gpus["address"] == "192.168.200.12:6379"
    assert [(node["name"], node["address"], node["gpus"]) for node in gpus["nodes"]] == [
        ("spark-1", "192.168.200.12", 1),
        ("spark-2", "192.168.200.13", 1),
    ]
    roles = [("ray-head", "id-of-spark-1-ray-head"), ("ray-worker", "id-of-spark-2-ray-worker")]
    assert [(one["role"], one["container"]) for one in gpus["watched"]] == roles
    assert [(one["role"], one["container"]) for one in serving["watched"]] == [
        ("serve", "id-of-spark-1-serve"),
        *roles,
    ]
    assert (gpus["deadline"], serving["deadline"], serving["completion"], serving["probe"]) == (60, 900, 30, 4)
    assert serving["url"] == "http://127.0.0.1:30000/v1"
    assert serving["addresses"] == ["192.168.200.12", "192.168.200.13"]


def test_single_node_has_no_worker(program: Program) -> None:
    found = program.run(settings(nodes=[{"name": "spark-1", "ssh": "local"}]), facts=surveys(1))
    assert {one.name for one in found.of(CONTAINER)} == {"spark-1-ray-head", "spark-1-serve"}
    assert found["docker spark-1"].inputs["host"] == "unix:///var/run/docker.sock"
    assert found.reaches(found["spark-1-serve"], found["gpus"])
    assert "--tensor-parallel-size=1" in found["spark-1-serve"].inputs["command"]


def test_three_nodes_have_two_workers_behind_one_gate(program: Program) -> None:
    found = program.run(three(), facts=surveys(3))
    workers = [found["spark-2-ray-worker"], found["spark-3-ray-worker"]]
    for worker in workers:
        assert found.reaches(worker, found["spark-1-ray-head"])
        assert found.reaches(found["gpus"], worker)
    assert not found.reaches(workers[1], workers[0])
    assert len(found["gpus"].inputs["nodes"]) == 3
    assert "--tensor-parallel-size=3" in found["spark-1-serve"].inputs["command"]


def test_cache_of_the_users_own_takes_the_place_of_ours(program: Program) -> None:
    mount = {"source": "/srv/cache", "target": "/root/.cache", "read_only": False}
    found = program.run(settings(mounts=[mount]))
    assert not [one for one in found.of(VOLUME) if one.name.endswith("-cache")]
    targets = [volume["containerPath"] for volume in found["spark-1-serve"].inputs["volumes"]]
    assert len(targets) == len(set(targets))
    assert "/root/.cache" in targets


def test_devices_are_those_that_the_node_has(program: Program) -> None:
    found = program.run(facts={"spark-1": survey(1), "spark-2": survey(2, devices=[])})
    assert found["spark-1-ray-head"].inputs["devices"]
    assert not found["spark-2-ray-worker"].inputs.get("devices")


def test_serve_knows_which_variables_are_each_nodes_own(program: Program) -> None:
    """C07: the engine's driver reads the file where VLLM_CONFIG_ROOT says."""
    worker = survey(
        2, interfaces=[interface("enp1s0f0np0", "192.168.200.13/24")], hcas=[hca("rocep1s0f0", "enp1s0f0np0")]
    )
    found = program.run(facts={"spark-1": survey(1), "spark-2": worker})
    (file,) = found["spark-1-serve"].inputs["uploads"]
    root = found["spark-1-serve"].environment["VLLM_CONFIG_ROOT"]
    assert file["file"] == f"{root}/ray_non_carry_over_env_vars.json"
    assert {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"} < set(json.loads(file["content"]))
    assert not found["spark-1-ray-head"].inputs.get("uploads")
    assert not found["spark-2-ray-worker"].inputs.get("uploads")


def test_name_by_which_a_node_is_forgotten_is_that_of_its_first_resource(up: Outcome) -> None:
    for node in ("spark-1", "spark-2"):
        inner = up[f"{node}-found"].urn.split("::", 2)[2]  # the mocks' names go no further up than the parent
        assert FOUND_URN.format(stack=STACK, node=node).endswith(f"${inner}")
