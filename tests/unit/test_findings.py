"""Findings: everything at once, and the line of readings of each node."""

from __future__ import annotations

import dataclasses
from typing import Any

from hosts.fabric import Fabric
from hosts.findings import look
from hosts.readings import line
from tests.samples import STACK, cluster, gids, hca, inspected, interface, model, survey, surveys

GIB = 2**30


def test_good_nodes_are_decided_without_a_word() -> None:
    found = look(cluster(), STACK, surveys())
    assert (found.faults, found.warnings) == ([], [])
    assert found.image
    assert found.image.seed == "spark-1"
    assert found.weights
    assert found.weights.seed == "spark-1"
    assert set(found.fabric) == {"spark-1", "spark-2"}


def test_faults_of_node_image_and_fabric_come_together() -> None:
    """One run tells of a model that cannot be read or is not whole, of two images, and of no shared subnet."""
    other: dict[str, Any] = {"version": "28", "image": inspected("sha256:" + "2e" * 32), "containers": []}
    lonely = [interface("enp1s0f1np1", "172.16.0.1/24")]
    closed = {"error": "Permission denied"}
    lacks = {"config.json": {"name": "config.json"}}
    found = look(
        cluster(),
        STACK,
        {
            "spark-1": survey(1, model=model(lacks=lacks)),
            "spark-2": survey(2, docker=other, interfaces=lonely, model=closed),
        },
    )
    assert [fault.cause.split(":")[0] for fault in found.faults] == [
        "model directory /srv/models/Qwen3.5-122B-A10B-FP8",
        "model directory /srv/models/Qwen3.5-122B-A10B-FP8 is not complete, nor is it elsewhere",
        "image vllm-qwen3.5-gb10@sha256",
        "no subnet is shared by all nodes",
    ]
    assert (found.fabric, found.image) == ({}, None)


def test_nothing_is_decided_while_a_node_does_not_answer() -> None:
    found = look(cluster(), STACK, {"spark-1": survey(1, missing=["/a"])})
    assert (len(found.faults), found.warnings, found.fabric) == (1, [], {})
    assert (found.image, found.weights) == (None, None), "the other may have what is missing"


def test_archive_that_is_absent_is_told_beside_a_node_that_does_not_answer() -> None:
    found = look(cluster(image="vllm:1", image_archive="/nowhere/vllm.tar"), STACK, {"spark-1": survey(1)})
    assert ["/nowhere/vllm.tar" in str(fault) for fault in found.faults] == [True]


def test_devices_that_a_node_does_not_have_are_told_together_beside_one_that_does_not_answer() -> None:
    found = look(cluster(interface="eth9", hcas=["mlx5_9"]), STACK, {"spark-1": survey(1)})
    assert [fault.cause for fault in found.faults] == [
        "has no RDMA device mlx5_9",
        "has no interface eth9 that is up with an address",
    ]


def test_missing_rdma_is_a_warning_or_a_fault_as_the_settings_say() -> None:
    """C21."""
    known = {"spark-1": survey(1), "spark-2": survey(2, devices=[])}
    found = look(cluster(), STACK, known)
    assert (found.faults, [one.node for one in found.warnings]) == ([], ["spark-2"])
    found = look(cluster(require_rdma=True), STACK, known)
    assert ([one.node for one in found.faults], found.warnings) == (["spark-2"], [])


def test_fabric_that_cannot_be_chosen_hides_nothing_that_does_not_depend_on_it() -> None:
    alone = {"interfaces": [interface("enp1s0f1np1", "172.16.0.1/24")], "reached": {"seconds": 0.1, "ahead": 60}}
    found = look(cluster(require_rdma=True), STACK, {"spark-1": survey(1), "spark-2": survey(2, devices=[], **alone)})
    assert [(one.node, one.cause.split(",")[0][:40]) for one in found.faults] == [
        ("spark-1, spark-2", "no subnet is shared by all nodes"),
        ("spark-2", "NCCL cannot use RDMA here and falls back"),
    ]
    assert [(one.node, one.cause.split(":")[0]) for one in found.warnings] == [
        ("spark-2", "its clock is 60 s ahead of this machine's")
    ]


def test_line_shows_what_was_read() -> None:
    facts = survey(
        1,
        os="Ubuntu 24.04.3 LTS",
        kernel="6.14.0-1013-nvidia",
        docker={"version": "28.5.2", "driver": "overlay2", "gpu_runtimes": ["runtime", "hook"], "containers": []},
        memory={"total": 120 * GIB, "available": 110 * GIB},
        image_room={"path": "/var/lib/docker", "free": 812_000_000_000},
        model_room={"path": "/srv/models", "free": 900_000_000},
        reached={"seconds": 0.214, "ahead": -0.018},
        hcas=[hca("rocep1s0f1", "enp1s0f1np1", gids=gids("192.168.200.12"))],
    )
    end = Fabric("192.168.200.12", "enp1s0f1np1", ("rocep1s0f1",), "test")
    assert line("spark-1", facts, end) == (
        "spark-1: answered in 0.21 s; Ubuntu 24.04.3 LTS 6.14.0-1013-nvidia aarch64; Docker 28.5.2 (overlay2, GPUs by "
        "runtime and hook); 1 × NVIDIA GB10; memory 110.0 of 120.0 GiB available; 812.0 GB free for images, 900.0 MB "
        "free for the model; clock -0.02 s; fabric 192.168.200.12 on enp1s0f1np1 (200 Gb/s, MTU 1500), rocep1s0f1 "
        "GID 3 RoCE v2"
    )
    told = line("spark-1", facts, dataclasses.replace(end, gid_index=2))
    assert told.endswith("rocep1s0f1 GID 2 IB/RoCE v1 by NCCL_IB_GID_INDEX=2")


def test_line_of_a_node_with_little_to_say() -> None:
    facts = survey(1, docker={"error": "Docker is not installed"}, gpus=[])
    assert line("spark-1", facts, None) == "spark-1: answered; aarch64; Docker is not installed; no GPU"
