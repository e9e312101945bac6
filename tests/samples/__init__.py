"""Recorded outputs of Ray and vLLM, and builders of settings and surveys like those of two DGX Sparks."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hosts.images.contents import Contents
from hosts.survey import Survey
from settings import Cluster, parse

HERE = Path(__file__).parent
STACK = "test"
IMAGE_ID = "sha256:" + "1f" * 32

MINIMAL: dict[str, Any] = {
    "nodes": [
        {"name": "spark-1", "ssh": "aurora@10.1.230.180"},
        {"name": "spark-2", "ssh": "aurora@192.168.200.13", "jump": "spark-1"},
    ],
    "image": "vllm-qwen3.5-gb10@sha256:" + "ab" * 32,
    "model": "/srv/models/Qwen3.5-122B-A10B-FP8",
}
"""The field case: a head on the management network, a worker that only the head reaches."""


def recorded(name: str) -> str:
    """Text of a recorded output."""
    return (HERE / name).read_text()


def settings(**changes: Any) -> dict[str, Any]:
    """The minimal settings as plain data, with changes."""
    return {**copy.deepcopy(MINIMAL), **changes}


def cluster(**changes: Any) -> Cluster:
    """The minimal settings, validated, with changes."""
    return parse(settings(**changes))


def interface(name: str, *addresses: str, speed: int | None = None, mtu: int = 1500) -> dict[str, Any]:
    """One interface as the survey script prints it."""
    return {"name": name, "addresses": list(addresses), "mtu": mtu, "speed": speed}


def hca(name: str, netdev: str, state: str = "4: ACTIVE", *, gids: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """One RDMA device of Ethernet as the survey script prints it; without GIDs its table is not known."""
    return {"name": name, "interfaces": [netdev], "state": state, "link_layer": "Ethernet", "gids": list(gids)}


def gids(*addresses: str) -> list[dict[str, Any]]:
    """A GID table as the kernel fills it: v1 and v2 of fe80::, then of each address, IPv4 mapped and in full length."""
    found: list[dict[str, Any]] = []
    for address in ("fe80::4ebb:47ff:fe2c:2a6", *addresses):
        text = address if ":" in address else f"::ffff:{address}"
        for version in ("IB/RoCE v1", "RoCE v2"):
            found.append({"index": len(found), "gid": ipaddress.IPv6Address(text).exploded, "type": version})
    return found


def inspected(id_: str = IMAGE_ID, *layers: str, **config: Any) -> dict[str, Any]:
    """One image as `docker image inspect` prints it; by default the id stands for its only layer too."""
    return {
        "Id": id_,
        "Os": "linux",
        "Architecture": "arm64",
        "RootFS": {"Type": "layers", "Layers": list(layers) or [id_]},
        "Config": {"Env": ["PATH=/usr/bin"], **config},
        "Size": 20_000_000_000,
    }


def model(**changes: Any) -> dict[str, Any]:
    """The model of the field case as hosts/weights/look.py prints it, complete: two shards stand for many."""
    return {
        "error": "",
        "exists": True,
        "below": "",
        "weights": True,
        "files": {"config.json": 2000, **{f"model-0000{n}-of-00002.safetensors": 5_000_000_000 for n in (1, 2)}},
        "links": {},
        "outside": {},
        "lacks": {},
        "closed": [],
        "free": 900_000_000_000,
        "writable": True,
    } | changes


def spark(number: int, **changes: Any) -> dict[str, Any]:
    """What the survey script prints on a Spark: port f1 of the QSFP cage in use, its twin up without an address."""
    return {
        "hostname": f"spark-{number:04d}",
        "architecture": "aarch64",
        "docker": {"version": "28.5.2", "driver": "overlay2", "image": inspected(), "containers": []},
        "gpus": [{"index": 0, "name": "NVIDIA GB10", "uuid": f"GPU-{number}"}],
        "gpu_error": "",
        "gpu_processes": [],
        "interfaces": [
            interface("enP7s7", f"10.1.230.{179 + number}/24", speed=10000),
            interface("enp1s0f1np1", f"192.168.200.{11 + number}/24", speed=200000),
        ],
        "hcas": [
            hca("roceP2p1s0f0", "enP2p1s0f0np0", "1: DOWN"),
            hca("roceP2p1s0f1", "enP2p1s0f1np1"),
            hca("rocep1s0f0", "enp1s0f0np0", "1: DOWN"),
            hca("rocep1s0f1", "enp1s0f1np1"),
        ],
        "listeners": [],
        "model": model(),
        "missing": [],
        "devices": ["/dev/infiniband"],
        "home": "/home/aurora",
    } | changes


def survey(number: int, **changes: Any) -> Survey:
    """The survey of a Spark, with changes."""
    return Survey.model_validate(spark(number, **changes))


def surveys(count: int = 2) -> dict[str, Survey]:
    """Surveys of so many Sparks by node name."""
    return {f"spark-{number}": survey(number) for number in range(1, count + 1)}


def contents(**changes: Any) -> Contents:
    """What was found in an image with vLLM 0.32.0 and Ray 2.53.0, with changes."""
    return Contents.model_validate_json(recorded("image_contents_vllm_0.32.0_ray_2.53.0.json")).model_copy(
        update=changes
    )


def container(name: str, role: str, *, stack: str | None = STACK, state: str = "running") -> dict[str, Any]:
    """One container as the survey script prints it; without a stack it is not ours."""
    labels = {"stack": stack, "role": role, "node": "spark-1"} if stack else {}
    return {"id": role[0] * 64, "name": name, "image": IMAGE_ID, "state": state, "labels": labels}
