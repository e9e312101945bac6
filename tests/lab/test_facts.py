"""Host facts of the two nodes over ssh, and what a preview says of nodes that are cabled or equipped wrongly."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines import vllm_ray
from hosts.fabric import choose
from hosts.faults import Fault
from hosts.findings import Findings, look
from hosts.ssh import Connection
from hosts.survey import Survey, survey_all
from settings import Cluster, parse
from tests.lab.conftest import Stack, lab_settings, on
from tests.lab.sparks import alias, cage, interface, port, rdma

NODES = ("spark-1", "spark-2")
SECOND = {"spark-1": ("enp1s0f0np0", "192.168.201.12/24"), "spark-2": ("enp1s0f0np0", "192.168.201.13/24")}
"""A second port on each node, in a subnet of its own."""

pytestmark = pytest.mark.usefixtures("image")


def settings(**changes: Any) -> Cluster:
    return parse({**lab_settings(), **changes})


def surveyed(cluster: Cluster) -> dict[str, Survey]:
    facts, faults = survey_all(cluster)
    assert not faults, [str(fault) for fault in faults]
    return facts


def findings(**changes: Any) -> Findings:
    found = settings(**changes)
    return look(found, "lab", surveyed(found))


def one(faults: list[Fault], *texts: str) -> Fault:
    (found,) = [fault for fault in faults if all(text in str(fault) for text in texts)]
    return found


def test_facts_are_those_of_the_nodes() -> None:
    before = time.time()
    facts = surveyed(settings())
    took = time.time() - before
    for node in NODES:
        found = facts[node]
        assert found.kernel == on(node, "uname", "-r").strip()
        assert found.os == on(node, "sh", "-c", '. /etc/os-release; echo "$PRETTY_NAME"').strip()
        assert found.docker.gpu_runtimes == ("hook",)
        total = int(on(node, "sh", "-c", "grep MemTotal: /proc/meminfo").split()[1])
        assert found.memory
        assert found.memory.total == 1024 * total
        size = int(on(node, "df", "-B1", "--output=size", "/var/lib/docker").split()[1])
        assert found.image_room
        assert found.image_room.path == "/var/lib/docker"
        assert 0 < found.image_room.free < size
        assert found.model_room
        assert found.model_room.free > 0
        assert "tiny-qwen3" in found.models
        assert {one.name: one.state for one in found.interfaces}["enp1s0f1np1"] == "UP"
        assert found.hcas == ()
        assert found.reached
        assert 0 < found.reached.seconds < took
        # The nodes have this machine's clock.
        assert found.reached.least_difference == 0


@contextmanager
def fabric_on_other_ports() -> Iterator[None]:
    """C07: cabled by port f0 on the head, by port f1 on the worker, where its subnet comes second."""
    with (
        interface("spark-1", "enp1s0f0np0", "192.168.201.12/24"),
        alias("spark-2", "enp1s0f1np1", "192.168.201.13/24"),
        rdma("spark-1", cage(0, "enp1s0f0np0", "192.168.201.12")),
        rdma("spark-2", cage(1, "enp1s0f1np1", "192.168.200.13", "192.168.201.13")),
    ):
        yield


def test_each_node_has_its_own_names_and_gid() -> None:
    """C07 from sysfs to the environment."""
    found = settings()
    with fabric_on_other_ports():
        ends = choose(found, surveyed(found))
    head, worker = ends["spark-1"], ends["spark-2"]
    assert (head.interface, head.hcas) == ("enp1s0f0np0", ("roceP2p1s0f0", "rocep1s0f0"))
    assert (worker.interface, worker.hcas) == ("enp1s0f1np1", ("roceP2p1s0f1", "rocep1s0f1"))
    assert {end.reason for end in ends.values()} == {"shared by all nodes over RoCE"}
    values = [vllm_ray.environment(found, node, ends[node.name], head) for node in found.nodes]
    assert [one["NCCL_SOCKET_IFNAME"] for one in values] == ["enp1s0f0np0", "enp1s0f1np1"]
    assert [one["NCCL_IB_HCA"] for one in values] == ["roceP2p1s0f0,rocep1s0f0", "roceP2p1s0f1,rocep1s0f1"]
    assert [one["VLLM_HOST_IP"] for one in values] == ["192.168.201.12", "192.168.201.13"]
    # On the worker NCCL would take 192.168.200.13, which comes first in the table.
    assert [one.get("NCCL_IB_GID_INDEX") for one in values] == [None, "5"]
    assert {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"} < set(vllm_ray.kept_variables(found, ends))


def test_second_subnet_over_roce_must_be_decided() -> None:
    both = {
        "spark-1": [*cage(0, "enp1s0f0np0", "192.168.201.12"), *cage(1, "enp1s0f1np1", "192.168.200.12")],
        "spark-2": [*cage(0, "enp1s0f0np0", "192.168.201.13"), *cage(1, "enp1s0f1np1", "192.168.200.13")],
    }
    with port(SECOND), rdma("spark-1", both["spark-1"]), rdma("spark-2", both["spark-2"]):
        found = findings()
        decided = [{**node, "fabric": f"192.168.201.1{i + 2}"} for i, node in enumerate(lab_settings()["nodes"])]
        again = findings(nodes=decided)
    fault = one(found.faults, "several subnets could be the fabric: 192.168.200.0/24, 192.168.201.0/24")
    assert "spark-2: enp1s0f0np0 192.168.201.13/24, enp1s0f1np1 192.168.200.13/24" in fault.evidence
    assert "set `fabric` of each node" in fault.remedy
    assert not again.faults
    assert {end.interface for end in again.fabric.values()} == {"enp1s0f0np0"}


def test_second_interface_in_the_fabrics_subnet_must_be_decided() -> None:
    both = [*cage(0, "enp1s0f0np0", "192.168.200.22"), *cage(1, "enp1s0f1np1", "192.168.200.12")]
    with (
        interface("spark-1", "enp1s0f0np0", "192.168.200.22/24"),
        rdma("spark-1", both),
        rdma("spark-2", cage(1, "enp1s0f1np1", "192.168.200.13")),
    ):
        found = findings()
    fault = one(found.faults, "several interfaces in the fabric's subnet 192.168.200.0/24")
    assert fault.node == "spark-1"
    assert "enp1s0f0np0 192.168.200.22" in fault.cause
    assert "enp1s0f1np1 192.168.200.12" in fault.cause


def test_port_without_a_cable_is_no_candidate_and_says_so() -> None:
    nodes = [{**node, "fabric": f"192.168.201.1{i + 2}"} for i, node in enumerate(lab_settings()["nodes"])]
    with (
        interface("spark-1", "enp1s0f0np0", "192.168.201.12/24", cable=False),
        interface("spark-2", "enp1s0f0np0", "192.168.201.13/24"),
    ):
        assert {end.interface for end in findings().fabric.values()} == {"enp1s0f1np1"}
        found = findings(nodes=nodes)
    assert one(found.faults, "192.168.201.12 is on enp1s0f0np0, which has no carrier").node == "spark-1"


def test_different_mtu_is_a_warning_with_both_values() -> None:
    """C23."""
    hcas = {node: cage(0, name, address.partition("/")[0]) for node, (name, address) in SECOND.items()}
    with port(SECOND, mtu={"spark-1": 9000}), rdma("spark-1", hcas["spark-1"]), rdma("spark-2", hcas["spark-2"]):
        found = findings()
    assert not found.faults
    warning = one(found.warnings, "the MTU of the fabric differs")
    assert "spark-1 enp1s0f0np0 9000, spark-2 enp1s0f0np0 1500" in warning.cause


@pytest.mark.parametrize("required", [False, True])
def test_missing_device_file_is_a_warning_or_an_error(required: bool) -> None:
    """C21."""
    ulimits = [{"name": "memlock", "soft": -1, "hard": -1}]
    with (
        rdma("spark-1", cage(1, "enp1s0f1np1", "192.168.200.12")),
        rdma("spark-2", cage(1, "enp1s0f1np1", "192.168.200.13"), device=False),
    ):
        found = findings(require_rdma=required, ulimits=ulimits)
    told = found.faults if required else found.warnings
    assert one(told, "NET/Socket", "no /dev/infiniband").node == "spark-2"
    assert not (found.warnings if required else found.faults)


def test_memlock_below_unlimited_is_a_warning() -> None:
    """C21; the lab's own settings leave the limit to Docker."""
    with (
        rdma("spark-1", cage(1, "enp1s0f1np1", "192.168.200.12")),
        rdma("spark-2", cage(1, "enp1s0f1np1", "192.168.200.13")),
    ):
        found = findings()
    assert [(one.node, "memlock" in one.remedy) for one in found.warnings] == [("spark-1", True), ("spark-2", True)]


SMALL = ("sudo", "unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o size=8m small /var/lib/docker; exec "$@"', "sh")


@contextmanager
def small_disk() -> Iterator[None]:
    """Surveys see a disk of 8 MB where Docker keeps images; Docker itself keeps its own."""
    plain = Connection.run

    def run(self: Connection, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return plain(self, *SMALL, *argv, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "run", run)
        yield


@contextmanager
def images(tag: str, bases: dict[str, str]) -> Iterator[None]:
    """An image under a tag on some nodes, each with a label's value of its own."""
    try:
        for node, value in bases.items():
            dockerfile = f"FROM {lab_settings()['image']}\nLABEL test-facts={value}\n"
            on(node, "sh", "-c", f"printf %s '{dockerfile}' | docker build --quiet --tag {tag} -")
        yield
    finally:
        for node in bases:
            on(node, "docker", "image", "rm", tag, check=False)


def test_small_disk_is_told_where_an_image_is_to_be_copied() -> None:
    with images("test-facts:small", {"spark-1": "1"}), small_disk():
        found = findings(image="test-facts:small", image_archive=None)
    warning = one(found.warnings, "there may be no room", "it is unpacked")
    assert warning.node == "spark-2"
    assert "needed in /var/lib/docker, where it is unpacked, 8.4 MB free" in warning.cause
    assert one(found.warnings, "there may be no room", "`docker save` writes it").node == "spark-1"


def test_different_images_under_one_tag_are_named() -> None:
    """C06."""
    with images("test-facts:tag", {"spark-1": "1", "spark-2": "2"}):
        found = findings(image="test-facts:tag", image_archive=None)
    fault = one(found.faults, "image test-facts:tag is a different one on each node")
    assert fault.node == "spark-1, spark-2"
    assert "same layers, other Labels" in fault.evidence


@contextmanager
def cabled_wrongly() -> Iterator[None]:
    """A fabric with two sizes of packets, and devices whose character files are missing."""
    with ExitStack() as all_of_them:
        all_of_them.enter_context(port(SECOND, mtu={"spark-1": 9000}))
        for node, (name, address) in SECOND.items():
            all_of_them.enter_context(rdma(node, cage(0, name, address.partition("/")[0]), device=False))
        yield


def test_preview_shows_everything_at_once(tmp_path: Path) -> None:
    """Two faults and a missing requirement on each node, and a warning across them, in one run."""
    stack = Stack(tmp_path)
    wrong = {**lab_settings(), "model": "/opt/models/absent", "require_rdma": True}
    wrong["nodes"] = [{**node, "gpus": 2} for node in wrong["nodes"]]
    wrong["tensor_parallel_size"] = 4
    with cabled_wrongly():
        done = stack.pulumi("preview", "--stack", "lab", *stack.configured(wrong))
    assert done.code != 0
    for node in NODES:
        assert f"{node}: model directory /opt/models/absent: No such file" in done.output, done.output
        assert f"{node}: 2 GPU(s) wanted, nvidia-smi shows 1" in done.output
        assert f"{node}: NCCL cannot use RDMA here" in done.output
        assert f"{node}: answered in " in done.output
    assert "models there: " in done.output
    assert "warning: spark-1, spark-2: the MTU of the fabric differs" in done.output
    assert "fabric 192.168.201.13 on enp1s0f0np0 (10 Gb/s, MTU 1500), roceP2p1s0f0 GID 3 RoCE v2" in done.output
    assert "Traceback" not in done.output
