"""Fabric: the address, interface and HCAs of each node, found from facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hosts.fabric import Fabric, choose, port_hcas
from hosts.faults import Fault, Faults
from hosts.survey import Survey
from settings import Cluster
from tests.samples import MINIMAL, cluster, hca, interface, survey, surveys

Surveys = Mapping[str, Survey]
MANAGEMENT = "10.1.230.{}/24"
FABRIC = "192.168.200.{}/24"


def facts(*interfaces: dict[str, Any], hcas: list[dict[str, Any]] | None = None) -> Survey:
    return survey(1, interfaces=list(interfaces), hcas=hcas or [])


def pair(*subnets: tuple[str, str, int | None]) -> dict[str, Survey]:
    """Two nodes without RDMA that share subnets: interface, address with `{}` for the node's number, speed."""
    return {
        f"spark-{number}": facts(*(interface(name, text.format(number), speed=speed) for name, text, speed in subnets))
        for number in (1, 2)
    }


def refused(text: str, found: Cluster, known: Surveys) -> list[Fault]:
    """The faults of the choice, which say `text`."""
    with pytest.raises(Faults, match=text) as caught:
        choose(found, known)
    return caught.value.faults


def on_head(**changes: Any) -> list[dict[str, Any]]:
    """The two nodes, the head with changes."""
    return [{**MINIMAL["nodes"][0], **changes}, MINIMAL["nodes"][1]]


def given(*addresses: str | None) -> list[dict[str, Any]]:
    return [
        {**node, **({"fabric": address} if address else {})}
        for node, address in zip(MINIMAL["nodes"], addresses, strict=True)
    ]


def test_shared_roce_subnet_is_chosen_over_the_management_network() -> None:
    assert choose(cluster(), surveys()) == {
        "spark-1": Fabric(
            "192.168.200.12", "enp1s0f1np1", ("roceP2p1s0f1", "rocep1s0f1"), "shared by all nodes over RoCE"
        ),
        "spark-2": Fabric(
            "192.168.200.13", "enp1s0f1np1", ("roceP2p1s0f1", "rocep1s0f1"), "shared by all nodes over RoCE"
        ),
    }


def test_roce_wins_over_a_faster_network_without_it() -> None:
    found = surveys()
    for number, name in ((1, "spark-1"), (2, "spark-2")):
        bond = interface("bond0", f"172.16.0.{number}/16", speed=400000)
        found[name] = survey(number, interfaces=[bond, *(i.model_dump() for i in found[name].interfaces)])
    assert {end.interface for end in choose(cluster(), found).values()} == {"enp1s0f1np1"}


def test_given_addresses_win_over_roce() -> None:
    ends = choose(cluster(nodes=given("10.1.230.180", "10.1.230.181")), surveys())
    assert [(end.address, end.interface, end.hcas) for end in ends.values()] == [
        ("10.1.230.180", "enP7s7", ()),
        ("10.1.230.181", "enP7s7", ()),
    ]
    assert {end.reason for end in ends.values()} == {"given as `fabric`"}


def test_one_given_address_decides_the_subnet_of_all() -> None:
    ends = choose(cluster(nodes=given(None, "10.1.230.181")), surveys())
    assert [end.address for end in ends.values()] == ["10.1.230.180", "10.1.230.181"]


def test_given_address_that_the_node_lacks_is_a_fault_with_those_it_has() -> None:
    (caught,) = refused(".", cluster(nodes=given(None, "192.168.200.99")), {**surveys()})
    assert caught.node == "spark-2"
    assert "192.168.200.99" in caught.cause
    assert "192.168.200.13" in caught.remedy


def test_all_given_and_one_absent_names_the_node_and_what_is_up() -> None:
    (caught,) = refused(".", cluster(nodes=given("192.168.200.12", "192.168.200.99")), surveys())
    assert caught.node == "spark-2"
    assert "192.168.200.99" in caught.cause
    assert "enp1s0f1np1 192.168.200.13/24" in caught.remedy


def test_without_roce_the_fastest_shared_subnet_is_chosen() -> None:
    ends = choose(cluster(), pair(("eth0", MANAGEMENT, 1000), ("eth1", FABRIC, 25000)))
    assert {(end.interface, end.reason) for end in ends.values()} == {("eth1", "fastest shared")}


def test_speed_of_a_subnet_is_that_of_its_slowest_end() -> None:
    found = pair(("eth0", MANAGEMENT, 10000), ("eth1", FABRIC, 25000))
    found["spark-2"] = facts(interface("eth0", "10.1.230.2/24", speed=10000), interface("eth1", "192.168.200.2/24"))
    assert {end.interface for end in choose(cluster(), found).values()} == {"eth0"}


def test_only_shared_subnet_is_chosen_whatever_its_speed() -> None:
    ends = choose(cluster(), pair(("eth0", MANAGEMENT, None)))
    assert {end.reason for end in ends.values()} == {"the only subnet shared"}


def test_bridge_with_one_address_on_all_nodes_is_no_fabric_unless_there_is_no_other() -> None:
    bridge = ("virbr0", "192.168.122.1/24", 25000)
    ends = choose(cluster(), pair(bridge, ("eth0", MANAGEMENT, 1000)))
    assert {end.interface for end in ends.values()} == {"eth0"}
    refused("both have the fabric address 192.168.122.1", cluster(), pair(bridge))


def test_equally_fast_subnets_are_ambiguous() -> None:
    (caught,) = refused(
        "several subnets could be the fabric", cluster(), pair(("eth0", MANAGEMENT, 10000), ("eth1", FABRIC, 10000))
    )
    assert "10.1.230.0/24, 192.168.200.0/24" in caught.cause
    assert "eth1 192.168.200.1/24" in caught.evidence
    assert "set `fabric`" in caught.remedy


def test_no_shared_subnet_lists_what_each_node_has() -> None:
    found = {"spark-1": survey(1), "spark-2": facts(interface("eth0", "172.20.0.5/16"))}
    (caught,) = refused("no subnet is shared by all nodes", cluster(), found)
    assert "spark-2: eth0 172.20.0.5/16" in caught.evidence


def test_addresses_of_one_range_in_networks_of_different_size_are_not_shared() -> None:
    found = {
        "spark-1": facts(interface("eth0", "10.0.0.1/24")),
        "spark-2": facts(interface("eth0", "10.0.0.2/16")),
    }
    assert refused("no subnet is shared", cluster(), found)


def test_subnet_of_two_nodes_of_three_is_not_shared() -> None:
    nodes = [{"name": f"spark-{i}", "ssh": f"h{i}"} for i in (1, 2, 3)]
    found = surveys(2) | {"spark-3": facts(interface("eth0", "10.1.230.9/24"))}
    assert {end.address for end in choose(cluster(nodes=nodes), found).values()} == {
        "10.1.230.180",
        "10.1.230.181",
        "10.1.230.9",
    }


def test_single_node_uses_its_first_address() -> None:
    ends = choose(cluster(nodes=[{"name": "spark-1", "ssh": "local"}]), surveys(1))
    assert (ends["spark-1"].address, ends["spark-1"].interface) == ("10.1.230.180", "enP7s7")


def test_single_node_may_say_which_address() -> None:
    nodes = [{"name": "spark-1", "ssh": "local", "fabric": "192.168.200.12"}]
    assert choose(cluster(nodes=nodes), surveys(1))["spark-1"].interface == "enp1s0f1np1"


def test_single_node_without_network_is_a_fault() -> None:
    assert refused(
        "no interface with an address", cluster(nodes=[{"name": "spark-1", "ssh": "local"}]), {"spark-1": facts()}
    )


def test_both_twins_of_the_cage_are_listed_and_the_other_cage_is_not() -> None:
    assert set(port_hcas(survey(1), "enp1s0f1np1")) == {"rocep1s0f1", "roceP2p1s0f1"}
    assert set(port_hcas(survey(1), "enP2p1s0f1np1")) == {"rocep1s0f1", "roceP2p1s0f1"}


def test_inactive_twin_is_left_out() -> None:
    found = survey(1, hcas=[hca("rocep1s0f1", "enp1s0f1np1"), hca("roceP2p1s0f1", "enP2p1s0f1np1", "1: DOWN")])
    assert port_hcas(found, "enp1s0f1np1") == ("rocep1s0f1",)


def test_rdma_is_for_all_nodes_or_for_none() -> None:
    known = surveys() | {"spark-2": surveys()["spark-2"].model_copy(update={"hcas": ()})}
    assert [(bool(end.hcas), end.rdma) for end in choose(cluster(), known).values()] == [(True, False), (False, False)]


def test_interface_without_hca_has_none() -> None:
    assert port_hcas(survey(1), "enP7s7") == ()


def test_names_of_other_hcas_do_not_make_twins() -> None:
    found = survey(1, hcas=[hca("mlx5_0", "eth0"), hca("mlx5_1", "eth1")])
    assert port_hcas(found, "eth0") == ("mlx5_0",)


def test_twins_that_the_kernel_named_are_known_by_their_interfaces() -> None:
    """rdma-core may be told not to rename (NAME_KERNEL)."""
    names = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")
    found = survey(1, hcas=[hca(f"mlx5_{number}", name) for number, name in enumerate(names)])
    assert port_hcas(found, "enp1s0f1np1") == ("mlx5_1", "mlx5_3")


def test_addressed_twins_of_one_cage_are_one_fabric() -> None:
    found = {
        f"spark-{number}": survey(
            number,
            interfaces=[
                interface("enP2p1s0f1np1", f"192.168.101.{9 + number}/24", speed=100000),
                interface("enp1s0f1np1", f"192.168.100.{9 + number}/24", speed=100000),
            ],
        )
        for number in (1, 2)
    }
    ends = choose(cluster(), found)
    assert [(end.address, end.interface) for end in ends.values()] == [
        ("192.168.100.10", "enp1s0f1np1"),
        ("192.168.100.11", "enp1s0f1np1"),
    ]


def test_both_ip_versions_on_one_port_are_one_fabric() -> None:
    found = {
        f"spark-{number}": survey(
            number,
            interfaces=[interface("enp1s0f1np1", f"192.168.200.{11 + number}/24", f"fd00:200::{11 + number}/64")],
        )
        for number in (1, 2)
    }
    assert [end.address for end in choose(cluster(), found).values()] == ["192.168.200.12", "192.168.200.13"]


def test_two_nodes_with_one_address_are_refused() -> None:
    same = survey(1)
    assert refused(".", cluster(), {"spark-1": same, "spark-2": same})


def test_named_interface_decides_the_subnet() -> None:
    ends = choose(cluster(nodes=on_head(interface="enP7s7")), surveys())
    assert [(end.address, end.interface) for end in ends.values()] == [
        ("10.1.230.180", "enP7s7"),
        ("10.1.230.181", "enP7s7"),
    ]


def test_named_interface_that_is_not_up_is_a_fault_with_those_that_are() -> None:
    caught, other = refused(".", cluster(interface="enp1s0f0np0"), surveys())
    assert other.node == "spark-2", "all at once"
    assert (caught.node, caught.cause) == (
        "spark-1",
        "has no interface enp1s0f0np0 that is up with an address",
    )
    assert "enp1s0f1np1 192.168.200.12/24" in caught.remedy


def test_given_address_must_be_on_the_named_interface() -> None:
    nodes = [{**node, "interface": "enP7s7"} for node in given("192.168.200.12", "192.168.200.13")]
    found = refused("no interface that is up with the fabric address", cluster(nodes=nodes), surveys())
    assert [fault.node for fault in found] == ["spark-1", "spark-2"]


def test_named_hcas_take_the_place_of_the_ports_and_a_node_has_its_own() -> None:
    ends = choose(cluster(hcas=["rocep1s0f1"], nodes=on_head(hcas=[])), surveys())
    assert [end.hcas for end in ends.values()] == [(), ("rocep1s0f1",)]


def test_named_hca_that_is_absent_is_a_fault_with_those_there_are() -> None:
    caught, other = refused(".", cluster(hcas=["mlx5_0"]), surveys())
    assert {caught.cause, other.cause} == {"has no RDMA device mlx5_0"}
    assert "rocep1s0f1" in caught.remedy


def test_named_hca_that_is_down_is_a_fault_on_its_node() -> None:
    """NCCL would be told of a device that carries nothing, and `require_rdma` be content with it."""
    caught = refused(
        "`hcas` names RDMA devices that are not active: rocep1s0f0 1: DOWN",
        cluster(nodes=on_head(hcas=["rocep1s0f0", "rocep1s0f1"])),
        surveys(),
    )
    assert [fault.node for fault in caught] == ["spark-1"]
    assert caught[0].remedy.endswith("these are active: roceP2p1s0f1, rocep1s0f1")


def test_infiniband_is_not_called_roce() -> None:
    ports = [{**hca("mlx5_0", "enp1s0f1np1"), "link_layer": "InfiniBand"}]
    ends = choose(cluster(), {f"spark-{number}": survey(number, hcas=ports) for number in (1, 2)})
    assert {end.reason for end in ends.values()} == {"shared by all nodes over InfiniBand"}


def test_hcas_of_a_single_node_are_the_named_ones() -> None:
    found = cluster(nodes=[{"name": "spark-1", "ssh": "local", "hcas": ["rocep1s0f1"]}])
    assert choose(found, surveys(1))["spark-1"].hcas == ("rocep1s0f1",)
