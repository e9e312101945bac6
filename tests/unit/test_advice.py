"""Warnings: what costs speed or fails later, each with values, effect and next step."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.advice import advise, fallback, utilization, without_rdma
from hosts.fabric import choose
from hosts.facts import Reached
from hosts.faults import Fault
from hosts.survey import Survey
from settings import Cluster
from tests.samples import (
    IMAGE_ID,
    MINIMAL,
    STACK,
    cluster,
    container,
    gids,
    hca,
    inspected,
    interface,
    model,
    survey,
    surveys,
)

GIB = 2**30
TWIN = hca("roceP2p1s0f1", "enP2p1s0f1np1")


def warnings(known: dict[str, Survey] | None = None, found: Cluster | None = None) -> list[Fault]:
    known, found = known or surveys(), found or cluster()
    return advise(found, STACK, known, choose(found, known))


def worker(**changes: Any) -> dict[str, Survey]:
    """Two good Sparks, the second with changes."""
    return {"spark-1": survey(1), "spark-2": survey(2, **changes)}


def only(found: list[Fault]) -> Fault:
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def test_good_nodes_have_no_warning() -> None:
    assert warnings() == []


def test_different_mtu_is_told_with_both_values_and_the_effect() -> None:
    """C23."""
    ends = [interface("enP7s7", "10.1.230.181/24", mtu=1234), interface("enp1s0f1np1", "192.168.200.13/24", mtu=9000)]
    warning = only(warnings(worker(interfaces=ends)))
    assert warning.node == "spark-1, spark-2"
    assert "spark-1 enp1s0f1np1 1500, spark-2 enp1s0f1np1 9000" in warning.cause
    assert "drops larger packets" in warning.cause
    assert "ssh -t aurora@10.1.230.180 'sudo ip link set enp1s0f1np1 mtu 9000'" in warning.remedy


def test_different_mtu_of_a_twin_without_an_address_is_told() -> None:
    """C23: both twins are in NCCL_IB_HCA."""

    def ends(twin: int) -> list[dict[str, Any]]:
        return [
            hca("roceP2p1s0f1", "enP2p1s0f1np1") | {"mtus": {"enP2p1s0f1np1": twin}},
            hca("rocep1s0f1", "enp1s0f1np1") | {"mtus": {"enp1s0f1np1": 1500}},
            hca("rocep1s0f0", "enp1s0f0np0", "1: DOWN") | {"mtus": {"enp1s0f0np0": 9000}},
        ]

    assert warnings({"spark-1": survey(1, hcas=ends(1500)), "spark-2": survey(2, hcas=ends(1500))}) == []
    warning = only(warnings({"spark-1": survey(1, hcas=ends(1500)), "spark-2": survey(2, hcas=ends(1400))}))
    assert "spark-2 enp1s0f1np1 1500, spark-2 enP2p1s0f1np1 1400;" in warning.cause
    assert warning.remedy.count("ip link set") == 1
    assert "'sudo ip link set enP2p1s0f1np1 mtu 1500'" in warning.remedy


def test_addresses_given_in_several_subnets_are_routed() -> None:
    first, second = MINIMAL["nodes"]
    found = cluster(nodes=[{**first, "fabric": "192.168.200.12"}, {**second, "fabric": "192.168.201.13"}])
    known = worker(interfaces=[interface("enp1s0f1np1", "192.168.201.13/24")])
    warning = only(warnings(known, found))
    assert "spark-1 192.168.200.12 in 192.168.200.0/24, spark-2 192.168.201.13 in 192.168.201.0/24" in warning.cause


@pytest.mark.parametrize(
    ("stack", "state", "told"), [(STACK, "restarting", 1), (STACK, "running", 0), ("b", "restarting", 0)]
)
def test_container_that_fails_over_and_over_is_told(stack: str, state: str, told: int) -> None:
    serve = container("dgx-spark-cluster-desk-serve", "serve", stack=stack, state=state)
    found = warnings(worker(docker={"version": "28", "image": inspected(), "containers": [serve]}))
    assert ["docker logs --tail 50 dgx-spark-cluster-desk-serve" in fault.remedy for fault in found] == [True] * told


@pytest.mark.parametrize(
    ("seconds", "ahead", "told"), [(0.2, 6, "6 s ahead of"), (0.2, -90, "90 s behind"), (0.2, 4, None), (4, 6.5, None)]
)
def test_clock_is_told_beyond_what_the_round_trip_may_hide(seconds: float, ahead: float, told: str | None) -> None:
    found = warnings(worker(reached={"seconds": seconds, "ahead": ahead}))
    assert [str(told) in warning.cause for warning in found] == ([True] if told else [])


def test_clock_difference_is_taken_between_asking_and_answer() -> None:
    """Asked at 100, answered at 104 here; the node worked from 131 to 133 by its own clock: 2 s of way, 30 s ahead."""
    known = survey(1, clock={"started": 131, "ended": 133})
    assert known.clock
    found = Reached.between(100, 104, known.clock)
    assert (found.seconds, found.ahead, found.least_difference) == (2, 30, 29)


UTILIZATION = "--gpu-memory-utilization=0.8"


def test_shards_of_another_version_than_the_index_are_told() -> None:
    told = only(warnings(worker(model=model(mismatched=["model-1.safetensors", "model-2.safetensors"]))))
    assert told.node == "spark-2"
    assert "model-1.safetensors and 1 more: other tensors than the index gives" in str(told)


def memory(available: float, total: float = 120) -> dict[str, int]:
    return {"total": int(total * GIB), "available": int(available * GIB)}


def test_memory_below_what_the_engine_asks_is_told_with_numbers() -> None:
    """C13."""
    warning = only(warnings(worker(memory=memory(90)), cluster(engine_arguments=[UTILIZATION])))
    assert warning.node == "spark-2"
    assert "90.0 of 120.0 GiB" in warning.cause
    assert "--gpu-memory-utilization=0.8 asks (96.0 GiB)" in warning.cause


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        pytest.param({"memory": memory(97)}, [UTILIZATION], id="enough"),
        pytest.param({"memory": memory(90)}, [], id="not said how much"),
        pytest.param({"memory": None}, [UTILIZATION], id="not known"),
        pytest.param(
            {"memory": memory(9), "gpus": [{"index": 0, "name": "NVIDIA RTX PRO 6000", "uuid": "GPU-1"}]},
            [UTILIZATION],
            id="GPU with memory of its own",
        ),
        pytest.param(
            {"memory": memory(9), "docker": {"containers": [container("w", "ray-worker")], "image": inspected()}},
            [UTILIZATION],
            id="held by ourselves",
        ),
        pytest.param(
            {
                "memory": memory(9),
                "units": [{"name": "vllm-cluster.service", "active": "active", "enabled": "enabled"}],
            },
            [UTILIZATION],
            id="held by a unit that will be stopped",
        ),
    ],
)
def test_memory_is_not_told_where_nothing_is_wrong(changes: dict[str, Any], arguments: list[str]) -> None:
    assert warnings(worker(**changes), cluster(engine_arguments=arguments)) == []


def test_memory_is_told_where_what_is_stale_holds_none() -> None:
    enabled = {"name": "vllm-cluster.service", "active": "inactive", "enabled": "enabled"}
    gone = {
        "version": "28",
        "image": inspected(),
        "containers": [container("vllm_node", "x", stack=None, state="exited")],
    }
    known = worker(memory=memory(9), units=[enabled], docker=gone)
    assert "vLLM will refuse" in only(warnings(known, cluster(engine_arguments=[UTILIZATION]))).cause


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        (["--gpu-memory-utilization=0.8"], 0.8),
        (["--gpu_memory_utilization", "0.7"], 0.7),
        (["--gpu-memory-utilization=much"], None),
        (["--max-model-len=8"], None),
    ],
)
def test_utilization_is_read_as_the_engine_does(arguments: list[str], share: float | None) -> None:
    assert utilization(arguments) == share


def own_gids(number: int) -> list[dict[str, Any]]:
    """The field case: one fabric address, and a twin without any."""
    return [
        hca("roceP2p1s0f1", "enP2p1s0f1np1", gids=gids()),
        hca("rocep1s0f1", "enp1s0f1np1", gids=gids(f"192.168.200.{11 + number}")),
    ]


def test_twins_without_an_address_on_both_ends_reach_each_other() -> None:
    assert warnings({f"spark-{n}": survey(n, hcas=own_gids(n)) for n in (1, 2)}) == []


def test_twin_without_an_address_on_one_end_only_is_told() -> None:
    both = [
        hca("roceP2p1s0f1", "enP2p1s0f1np1", gids=gids("192.168.201.12")),
        hca("rocep1s0f1", "enp1s0f1np1", gids=gids("192.168.200.12")),
    ]
    warning = only(warnings({"spark-1": survey(1, hcas=both), "spark-2": survey(2, hcas=own_gids(2))}))
    assert warning.node == "spark-1, spark-2"
    assert "spark-1 roceP2p1s0f1 GID 3 (192.168.201.12, RoCE v2 of IPv4), rocep1s0f1 GID 3 (192.168" in warning.cause
    assert "; spark-2 roceP2p1s0f1 GID 0 (fe80::4ebb:47ff:fe2c:2a6, IB/RoCE v1 of IPv6 link-local), " in warning.cause


def test_end_whose_table_is_not_known_or_that_has_fewer_devices_is_not_compared() -> None:
    assert warnings(worker(hcas=own_gids(2))) == []
    one = own_gids(1)[1:]
    assert warnings({"spark-1": survey(1, hcas=one), "spark-2": survey(2, hcas=[TWIN, own_gids(2)[1]])}) == []


def test_infiniband_has_no_gids_of_addresses() -> None:
    infiniband = {**own_gids(2)[0], "link_layer": "InfiniBand"}
    known = {"spark-1": survey(1, hcas=own_gids(1)[1:]), "spark-2": survey(2, hcas=[infiniband, own_gids(2)[1]])}
    assert warnings(known) == []


def test_gid_that_no_index_can_reach_is_told() -> None:
    found = [
        hca("roceP2p1s0f1", "enP2p1s0f1np1", gids=gids("192.168.201.13")),
        hca("rocep1s0f1", "enp1s0f1np1", gids=gids("10.0.0.5", "192.168.200.13")),
    ]
    warning = only(warnings(worker(hcas=found)))
    assert "GID 3 of rocep1s0f1 (10.0.0.5, RoCE v2) and not that of the fabric address 192.168.200.13" in warning.cause
    assert "remove 10.0.0.5" in warning.remedy


def test_gid_that_the_user_chose_is_left_alone() -> None:
    found = [TWIN, hca("rocep1s0f1", "enp1s0f1np1", gids=gids("10.0.0.5", "192.168.200.13"))]
    assert warnings(worker(hcas=found), cluster(gid_index=5)) == []
    for index, what in ((7, "empty"), (4, "192.168.200.13, IB/RoCE v1")):
        (said,) = warnings(worker(hcas=found), cluster(gid_index=index))
        assert f"`gid_index` {index} of rocep1s0f1 is {what}" in said.cause
        assert "192.168.200.13 is GID 5 now" in said.remedy


def missed(known: dict[str, Survey], found: Cluster | None = None) -> list[tuple[str, str]]:
    found = found or cluster()
    return [(node.name, why) for node, why, _ in without_rdma(found, known, choose(found, known))]


DOWN = [hca("rocep1s0f1", "enp1s0f1np1", "1: DOWN"), hca("roceP2p1s0f1", "enP2p1s0f1np1", "1: DOWN")]


@pytest.mark.parametrize(
    ("changes", "settings", "why"),
    [
        ({"devices": []}, {}, "there is no /dev/infiniband"),
        ({"hcas": []}, {}, "the node has no RDMA device"),
        ({"hcas": DOWN}, {}, "there are: rocep1s0f1 (enp1s0f1np1 192.168.200.13/24) 1: DOWN"),
    ],
)
def test_node_without_rdma_is_named_with_the_reason(
    changes: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    """C21."""
    found = missed(worker(**changes), cluster(**settings))
    assert [(node, why in text) for node, text in found] == [("spark-2", True)]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"devices": []}, "leaves /dev/infiniband out"),
        ({"ulimits": [{"name": "memlock", "soft": 65536, "hard": 65536}]}, "lock only 65536 bytes"),
        ({"ulimits": []}, "lock only what Docker's default allows"),
    ],
)
def test_settings_that_keep_rdma_out_of_the_containers_are_named(settings: dict[str, Any], why: str) -> None:
    """C21."""
    found = missed(surveys(), cluster(**settings))
    assert [(node, why in text) for node, text in found] == [("spark-1", True), ("spark-2", True)]


def bare() -> dict[str, Survey]:
    return {name: survey(i + 1, hcas=[], devices=[]) for i, name in enumerate(surveys())}


def test_where_no_node_has_rdma_none_is_missed_unless_it_is_required() -> None:
    assert missed(bare()) == []
    assert [node for node, _ in missed(bare(), cluster(require_rdma=True))] == ["spark-1", "spark-2"]


def test_rdma_turned_off_on_purpose_is_no_warning_but_contradicts_the_requirement() -> None:
    assert missed(surveys(), cluster(hcas=[])) == []
    assert len(missed(surveys(), cluster(hcas=[], require_rdma=True))) == 2


def test_rdma_turned_off_on_one_node_is_off_on_all() -> None:
    nodes = [{**MINIMAL["nodes"][0], "hcas": []}, MINIMAL["nodes"][1]]
    ((node, why),) = missed(surveys(), cluster(nodes=nodes))
    assert (node, why) == ("spark-1", "`hcas` is empty, which turns RDMA off on all nodes")


def test_single_node_needs_no_rdma() -> None:
    alone = cluster(nodes=[{"name": "spark-1", "ssh": "local"}], require_rdma=True)
    assert missed({"spark-1": survey(1, hcas=[])}, alone) == []


def test_only_the_node_that_is_off_the_cable_of_the_others_is_told() -> None:
    known = surveys(4) | {"spark-3": survey(3, interfaces=[interface("enP7s7", "10.1.230.182/24")])}
    nodes = [{"name": f"spark-{number}", "ssh": f"host-{number}"} for number in range(1, 5)]
    ((name, why),) = missed(known, cluster(nodes=nodes))
    assert name == "spark-3"
    assert "those of spark-1, spark-2, spark-4 are in 192.168.200.0/24" in why


def test_fallback_names_the_transport() -> None:
    text = str(fallback(cluster().head, "because", "do this"))
    assert text.startswith("spark-1: NCCL cannot use RDMA here and falls back to sockets (NET/Socket)")
    assert text.endswith("because\n  next: do this")
    assert IMAGE_ID not in text
