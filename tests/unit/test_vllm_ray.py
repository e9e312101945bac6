"""vLLM over Ray: the command lines and environments of every rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engines import vllm_ray
from hosts.fabric import Fabric, choose
from settings import RESERVED_ENVIRONMENT, Cluster
from tests.samples import MINIMAL, cluster, hca, interface, survey

HEAD = Fabric("192.168.200.12", "enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1"), "test")
WORKER = Fabric("192.168.200.13", "enp1s0f0np0", ("rocep1s0f0", "roceP2p1s0f0"), "test")
PER_INTERFACE = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
)


def environment(found: Cluster, index: int, fabric: Fabric) -> dict[str, str]:
    return vllm_ray.environment(found, found.nodes[index], fabric, HEAD)


def nodes(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The two nodes, each with changes."""
    return [{**node, **change} for node, change in zip(MINIMAL["nodes"], changes, strict=True)]


def test_head_command() -> None:
    found = cluster()
    assert vllm_ray.ray_command(found, found.head, HEAD, HEAD) == [
        "ray",
        "start",
        "--block",
        "--head",
        "--port=6379",
        "--include-dashboard=false",
        "--node-ip-address=192.168.200.12",
        "--object-store-memory=1073741824",
        "--disable-usage-stats",
    ]


def test_worker_command_joins_the_head_from_its_own_address() -> None:
    found = cluster()
    command = vllm_ray.ray_command(found, found.workers[0], WORKER, HEAD)
    assert command[:4] == ["ray", "start", "--block", "--address=192.168.200.12:6379"]
    assert "--node-ip-address=192.168.200.13" in command
    assert not [part for part in command if part.startswith(("--head", "--port", "--include-dashboard"))]


def test_ray_settings_reach_every_node_and_node_arguments_come_last() -> None:
    found = cluster(
        ray={"port": 6380, "dashboard": True, "object_store_bytes": 80_000_000, "arguments": ["--num-gpus=1"]},
        nodes=nodes({}, {"ray_arguments": ["--num-cpus=4"]}),
    )
    head = vllm_ray.ray_command(found, found.head, HEAD, HEAD)
    worker = vllm_ray.ray_command(found, found.workers[0], WORKER, HEAD)
    assert {"--port=6380", "--include-dashboard=true", "--object-store-memory=80000000"} < set(head)
    assert head[-1] == "--num-gpus=1"
    assert worker[-2:] == ["--num-gpus=1", "--num-cpus=4"]
    assert "--address=192.168.200.12:6380" in worker


def test_serve_command() -> None:
    found = cluster(engine_arguments=["--max-model-len=256", "--seed=1"], port=8000, listen="::")
    assert vllm_ray.serve_command(found, "/srv/models/Qwen3.5-122B-A10B-FP8") == [
        "vllm",
        "serve",
        "/srv/models/Qwen3.5-122B-A10B-FP8",
        "--served-model-name=Qwen3.5-122B-A10B-FP8",
        "--host=::",
        "--port=8000",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=1",
        "--distributed-executor-backend=ray",
        "--max-model-len=256",
        "--seed=1",
    ]


def test_serve_command_with_given_sizes_and_name() -> None:
    command = vllm_ray.serve_command(cluster(pipeline_parallel_size=2, served_model_name="qwen"), "/m")
    assert {"--tensor-parallel-size=1", "--pipeline-parallel-size=2", "--served-model-name=qwen"} < set(command)


def test_each_node_gets_its_own_address_interface_and_hcas() -> None:
    """C07: interface names differ between the nodes; vLLM copies few of these from the driver."""
    found = cluster()
    for index, fabric in enumerate((HEAD, WORKER)):
        values = environment(found, index, fabric)
        assert values["VLLM_HOST_IP"] == fabric.address
        assert {values[name] for name in PER_INTERFACE} == {fabric.interface}
        assert values["NCCL_IB_HCA"] == ",".join(fabric.hcas)
        assert values["RAY_ADDRESS"] == "192.168.200.12:6379"


def test_interface_names_come_from_each_survey() -> None:
    """C07 from facts to environment: cabled by port f1 on the head and by port f0 on the worker."""
    found = cluster()
    worker = survey(
        2,
        interfaces=[interface("enP7s7", "10.1.230.181/24"), interface("enp1s0f0np0", "192.168.200.13/24")],
        hcas=[hca("rocep1s0f0", "enp1s0f0np0"), hca("roceP2p1s0f0", "enP2p1s0f0np0")],
    )
    ends = choose(found, {"spark-1": survey(1), "spark-2": worker})
    values = [environment(found, index, ends[node.name]) for index, node in enumerate(found.nodes)]
    assert [one["GLOO_SOCKET_IFNAME"] for one in values] == ["enp1s0f1np1", "enp1s0f0np0"]
    assert [set(one["NCCL_IB_HCA"].split(",")) for one in values] == [
        {"rocep1s0f1", "roceP2p1s0f1"},
        {"rocep1s0f0", "roceP2p1s0f0"},
    ]


def test_no_hca_variable_without_rdma() -> None:
    assert "NCCL_IB_HCA" not in environment(cluster(), 0, Fabric("10.0.0.1", "eth0", (), "test"))


def test_ray_memory_monitor_is_off_and_load_deadline_reaches_the_engine() -> None:
    values = environment(cluster(deadlines={"load": 1800}), 0, HEAD)
    assert values["RAY_memory_monitor_refresh_ms"] == "0"
    assert values["RAY_raylet_liveness_self_check_interval_ms"] == "5000"
    assert values["VLLM_ENGINE_READY_TIMEOUT_S"] == "1800"


def test_ranks_of_two_containers_share_the_socket_directory() -> None:
    assert environment(cluster(), 0, HEAD)["VLLM_RPC_BASE_PATH"] == vllm_ray.RAY_DIRECTORY


def test_node_overrides_cluster_overrides_program() -> None:
    found = cluster(
        environment={"NCCL_DEBUG": "WARN", "HF_HUB_OFFLINE": "0", "NCCL_IB_HCA": "mine"},
        nodes=nodes({}, {"environment": {"NCCL_DEBUG": "INFO"}}),
    )
    head, worker = environment(found, 0, HEAD), environment(found, 1, WORKER)
    assert (head["NCCL_DEBUG"], worker["NCCL_DEBUG"]) == ("WARN", "INFO")
    assert (head["HF_HUB_OFFLINE"], head["NCCL_IB_HCA"]) == ("0", "mine")


@pytest.mark.parametrize("name", sorted(RESERVED_ENVIRONMENT - {"VLLM_API_KEY"}))
def test_reserved_names_are_those_the_program_sets(name: str) -> None:
    assert name in environment(cluster(), 0, HEAD)


def test_ipv6_fabric_address_is_bracketed_before_a_port() -> None:
    found, end = cluster(), Fabric("fd00::c", "enp1s0f1np1", (), "test")
    assert "--address=[fd00::c]:6379" in vllm_ray.ray_command(found, found.workers[0], WORKER, end)
    assert vllm_ray.environment(found, found.head, end, end)["RAY_ADDRESS"] == "[fd00::c]:6379"


def test_gid_index_is_said_only_where_it_is_given() -> None:
    found = cluster(nodes=nodes({}, {"gid_index": 3}))
    head, worker = environment(found, 0, HEAD), environment(found, 1, WORKER)
    assert "NCCL_IB_GID_INDEX" not in head
    assert worker["NCCL_IB_GID_INDEX"] == "3"


@pytest.mark.parametrize("end", [Fabric("10.0.0.1", "eth0", (), "test"), dataclasses.replace(HEAD, rdma=False)])
@pytest.mark.parametrize("count", [1, 2])
def test_rdma_is_off_on_all_nodes_where_one_has_none(end: Fabric, count: int) -> None:
    """NCCL itself would take any active device, also one on another cable. A node that comes changes no other's."""
    values = environment(cluster(nodes=MINIMAL["nodes"][:count]), 0, end)
    assert values["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in values


def test_gid_index_of_the_survey_gives_way_to_the_users() -> None:
    found = cluster(nodes=nodes({}, {"gid_index": 7}))
    head = dataclasses.replace(HEAD, gid_index=5)
    worker = dataclasses.replace(WORKER, gid_index=5)
    assert environment(found, 0, head)["NCCL_IB_GID_INDEX"] == "5"
    assert environment(found, 1, worker)["NCCL_IB_GID_INDEX"] == "7"


def test_ip_version_is_said_to_nccl_where_it_is_not_its_default() -> None:
    six = dataclasses.replace(HEAD, address="fd00::c")
    assert environment(cluster(), 0, six)["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert "NCCL_IB_ADDR_FAMILY" not in environment(cluster(), 0, HEAD)
    assert "NCCL_IB_ADDR_FAMILY" not in environment(cluster(), 0, dataclasses.replace(six, hcas=()))


def test_required_rdma_leaves_nccl_no_sockets() -> None:
    """C21."""
    assert environment(cluster(require_rdma=True), 1, WORKER)["NCCL_NET"] == "IB"
    assert "NCCL_NET" not in environment(cluster(), 1, WORKER)
    alone = cluster(nodes=[{"name": "spark-1", "ssh": "local"}], require_rdma=True)
    assert "NCCL_NET" not in environment(alone, 0, HEAD), "NCCL would refuse sockets and shared memory alike"


def kept(found: Cluster, head: Fabric = HEAD, worker: Fabric = WORKER) -> set[str]:
    """What is kept besides the API key."""
    names = set(vllm_ray.kept_variables(found, {"spark-1": head, "spark-2": worker}))
    assert "VLLM_API_KEY" in names
    return names - {"VLLM_API_KEY"}


def test_variables_that_differ_are_kept_from_the_workers() -> None:
    """C07: the head's names never reach a worker."""
    assert kept(cluster()) == {"VLLM_HOST_IP", "NCCL_IB_HCA", *PER_INTERFACE}
    same = dataclasses.replace(HEAD, address="192.168.200.13")
    assert kept(cluster(), worker=same) == {"VLLM_HOST_IP"}


def test_variable_of_one_node_only_is_kept_too() -> None:
    same = dataclasses.replace(HEAD, address="192.168.200.13")
    own = nodes({"environment": {"NCCL_DEBUG": "INFO"}}, {"environment": {"UCX_TLS": "tcp"}})
    assert kept(cluster(nodes=own), worker=same) == {"VLLM_HOST_IP", "NCCL_DEBUG", "UCX_TLS"}
    pinned = dataclasses.replace(same, gid_index=5)
    assert kept(cluster(), worker=pinned) == {"VLLM_HOST_IP", "NCCL_IB_GID_INDEX"}


def test_single_node_keeps_the_key() -> None:
    alone = cluster(nodes=[{"name": "spark-1", "ssh": "local"}])
    assert vllm_ray.kept_variables(alone, {"spark-1": HEAD}) == ["VLLM_API_KEY"]
