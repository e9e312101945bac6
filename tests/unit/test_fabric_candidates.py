"""Fabric: several candidates in one subnet, ports without a cable, and the GID that NCCL must be told."""

from __future__ import annotations

from typing import Any

from hosts.advice import advise
from hosts.fabric import choose
from hosts.survey import Survey
from tests.samples import cluster, gids, hca, interface, survey, surveys
from tests.unit.test_fabric import facts, given, on_head, pair, refused

TWO_CABLES = [
    interface("enp1s0f0np0", "192.168.200.22/24", speed=200000),
    interface("enp1s0f1np1", "192.168.200.12/24", speed=200000),
]
BOTH_CAGES = [
    hca("roceP2p1s0f0", "enP2p1s0f0np0"),
    hca("roceP2p1s0f1", "enP2p1s0f1np1"),
    hca("rocep1s0f0", "enp1s0f0np0"),
    hca("rocep1s0f1", "enp1s0f1np1"),
]


def test_two_candidates_in_one_subnet_are_named_with_the_setting_that_decides() -> None:
    found = {"spark-1": survey(1, interfaces=TWO_CABLES, hcas=BOTH_CAGES), "spark-2": survey(2)}
    (caught,) = refused("several interfaces in the fabric's subnet", cluster(), found)
    assert caught.node == "spark-1"
    assert "enp1s0f0np0 192.168.200.22, enp1s0f1np1 192.168.200.12" in caught.cause
    assert "set `fabric` of spark-1" in caught.remedy
    ends = choose(cluster(nodes=on_head(fabric="192.168.200.22")), found)
    assert (ends["spark-1"].interface, ends["spark-1"].hcas) == ("enp1s0f0np0", ("roceP2p1s0f0", "rocep1s0f0"))


def test_two_candidates_are_named_on_every_node_at_once() -> None:
    found = {name: survey(i + 1, interfaces=TWO_CABLES, hcas=BOTH_CAGES) for i, name in enumerate(surveys())}
    assert [fault.node for fault in refused("several interfaces", cluster(), found)] == ["spark-1", "spark-2"]


def test_twins_in_one_subnet_are_one_cable() -> None:
    twins = [interface("enP2p1s0f1np1", "192.168.200.22/24"), interface("enp1s0f1np1", "192.168.200.12/24")]
    found = {"spark-1": survey(1, interfaces=twins), "spark-2": survey(2)}
    assert choose(cluster(), found)["spark-1"].interface == "enp1s0f1np1"


def test_roce_wins_over_another_interface_in_the_same_subnet() -> None:
    other = interface("wlP9s9", "192.168.200.22/24", speed=400000)
    found = {"spark-1": survey(1, interfaces=[other, TWO_CABLES[1]]), "spark-2": survey(2)}
    assert choose(cluster(), found)["spark-1"].interface == "enp1s0f1np1"


def test_several_addresses_on_one_interface_are_no_choice() -> None:
    aliases = [interface("enp1s0f1np1", "192.168.200.12/24", "192.168.200.112/24")]
    found = {"spark-1": survey(1, interfaces=aliases), "spark-2": survey(2)}
    assert choose(cluster(), found)["spark-1"].address == "192.168.200.12"


def test_slower_cable_in_the_subnet_of_the_fabric_is_told() -> None:
    """Linux answers ARP on either, whichever was chosen."""
    slow = interface("enp1s0f0np0", "192.168.200.22/24", speed=100000)
    found = {"spark-1": survey(1, interfaces=[slow, TWO_CABLES[1]], hcas=BOTH_CAGES), "spark-2": survey(2)}
    ends = choose(cluster(), found)
    (warning,) = advise(cluster(), "test", found, ends)
    assert (warning.node, ends["spark-1"].address) == ("spark-1", "192.168.200.12")
    assert "subnet 192.168.200.0/24 is on enp1s0f0np0 192.168.200.22 (100000 Mb/s)" in warning.cause
    twin = interface("enP2p1s0f1np1", "192.168.200.23/24", speed=200000)
    found["spark-1"] = survey(1, interfaces=[twin, TWO_CABLES[1]], hcas=BOTH_CAGES)
    assert advise(cluster(), "test", found, choose(cluster(), found)) == [], "a twin is the same cable"


def test_single_node_without_a_cable_has_no_fabric_to_advise_on() -> None:
    alone = cluster(nodes=[{"name": "spark-1", "ssh": "a"}])
    found = {"spark-1": facts({**interface("eth0", "10.1.230.180/24"), "state": "DOWN"})}
    assert advise(alone, "test", found, choose(alone, found)) == []


def link_local(number: int, *names: str) -> Survey:
    """A Spark whose QSFP ports have what netplan's `link-local: [ ipv4 ]` gives: addresses of one subnet."""
    ends = [interface(name, f"169.254.{at}.{number}/16", speed=200000) for at, name in enumerate(names, 3)]
    return survey(
        number, interfaces=[interface("enP7s7", f"10.1.230.{number}/24", speed=10000), *ends], hcas=BOTH_CAGES
    )


def test_link_local_cable_of_nvidias_playbook_is_the_fabric_whichever_port_it_is_in() -> None:
    found = {"spark-1": link_local(1, "enp1s0f1np1"), "spark-2": link_local(2, "enp1s0f0np0")}
    assert [(end.address, end.interface, end.reason) for end in choose(cluster(), found).values()] == [
        ("169.254.3.1", "enp1s0f1np1", "shared by all nodes over RoCE"),
        ("169.254.3.2", "enp1s0f0np0", "shared by all nodes over RoCE"),
    ]


def test_link_local_twins_are_one_cable() -> None:
    found = {f"spark-{n}": link_local(n, "enP2p1s0f1np1", "enp1s0f1np1") for n in (1, 2)}
    assert {end.interface for end in choose(cluster(), found).values()} == {"enp1s0f1np1"}


def test_two_link_local_cables_are_named_with_the_settings_that_decide() -> None:
    found = {f"spark-{n}": link_local(n, "enp1s0f0np0", "enp1s0f1np1") for n in (1, 2)}
    caught, _ = refused("several interfaces in the fabric's subnet 169.254.0.0/16", cluster(), found)
    assert "set `fabric` of spark-1" in caught.remedy
    ends = choose(cluster(interface="enp1s0f0np0"), found)
    assert [end.address for end in ends.values()] == ["169.254.3.1", "169.254.3.2"]
    ends = choose(cluster(nodes=given("169.254.4.1", "169.254.4.2")), found)
    assert {end.interface for end in ends.values()} == {"enp1s0f1np1"}


def test_assigned_addresses_win_over_link_local_ones() -> None:
    """Nodes with link-local addresses need not be on one cable."""
    found = {
        f"spark-{n}": survey(
            n,
            interfaces=[
                interface("enp1s0f0np0", f"169.254.3.{n}/16"),
                interface("enp1s0f1np1", f"192.168.200.{11 + n}/24"),
            ],
            hcas=BOTH_CAGES,
        )
        for n in (1, 2)
    }
    assert choose(cluster(), found)["spark-1"].address == "192.168.200.12"


def test_without_rdma_a_faster_link_local_network_is_left_alone_unless_it_is_the_only_one() -> None:
    link, lan = ("usb0", "169.254.3.{}/16", 20000), ("eth0", "10.1.230.{}/24", 10000)
    assert {end.interface for end in choose(cluster(), pair(link, lan)).values()} == {"eth0"}
    assert {end.interface for end in choose(cluster(), pair(link)).values()} == {"usb0"}


def test_single_node_uses_an_assigned_address_before_a_link_local_one() -> None:
    alone = cluster(nodes=[{"name": "spark-1", "ssh": "local"}])
    found = facts(interface("enp1s0f1np1", "169.254.3.4/16"), interface("enP7s7", "10.1.230.180/24"))
    assert choose(alone, {"spark-1": found})["spark-1"].address == "10.1.230.180"


def test_both_ip_versions_of_a_network_without_rdma_are_one_fabric_over_ipv4() -> None:
    found = {f"spark-{n}": facts(interface("eth0", f"2001:db8::{n}/64", f"10.1.230.{n}/24")) for n in (1, 2)}
    assert [end.address for end in choose(cluster(), found).values()] == ["10.1.230.1", "10.1.230.2"]


def test_ip_versions_on_several_interfaces_are_a_choice_without_rdma() -> None:
    found = {
        f"spark-{n}": facts(interface("eth0", f"10.1.230.{n}/24"), interface("eth1", f"2001:db8::{n}/64"))
        for n in (1, 2)
    }
    assert refused("several subnets could be the fabric: 10.1.230.0/24, 2001:db8::/64", cluster(), found)


def down(*ends: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**end, "state": "DOWN"} for end in ends]


def test_port_without_a_cable_is_no_candidate() -> None:
    """networkd keeps a static address while the port has no carrier."""
    found = {name: survey(i + 1) for i, name in enumerate(surveys())}
    ends = [*down(interface("enp1s0f0np0", "192.168.200.22/24", speed=200000)), TWO_CABLES[1]]
    found["spark-1"] = survey(1, interfaces=ends, hcas=BOTH_CAGES)
    assert choose(cluster(), found)["spark-1"].address == "192.168.200.12"


def test_no_carrier_on_one_end_is_shown_where_no_subnet_is_shared() -> None:
    found = {"spark-1": facts(*down(TWO_CABLES[1])), "spark-2": facts(interface("enp1s0f1np1", "192.168.200.13/24"))}
    (caught,) = refused("no subnet is shared by all nodes", cluster(), found)
    assert "spark-1: enp1s0f1np1 192.168.200.12/24 (no carrier)" in caught.evidence


def test_given_address_without_carrier_asks_for_the_cable() -> None:
    found = {"spark-1": facts(*down(TWO_CABLES[1])), "spark-2": survey(2)}
    nodes = given("192.168.200.12", "192.168.200.13")
    (caught,) = refused("which has no carrier", cluster(nodes=nodes), found)
    assert (caught.node, "plug the cable in" in caught.remedy) == ("spark-1", True)


def test_gid_index_is_left_to_nccl_where_it_finds_the_address() -> None:
    table = gids("192.168.200.12")
    found = {"spark-1": survey(1, hcas=[hca("rocep1s0f1", "enp1s0f1np1", gids=table)]), "spark-2": survey(2)}
    assert choose(cluster(), found)["spark-1"].gid_index is None


def test_gid_index_is_given_where_another_address_comes_first() -> None:
    table = gids("169.254.7.7", "192.168.200.12")
    found = {"spark-1": survey(1, hcas=[hca("rocep1s0f1", "enp1s0f1np1", gids=table)]), "spark-2": survey(2)}
    assert [end.gid_index for end in choose(cluster(), found).values()] == [5, None]
    assert [end.gid_index for end in choose(cluster(gid_index=7), found).values()] == [7, 7]
