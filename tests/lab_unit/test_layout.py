"""Definitions: the same things have the same hash, and any change another."""

import ipaddress
from pathlib import Path

from lab import engine, image, layout, model, network
from lab.layout import FABRIC, MANAGEMENT, NODES, SPARKS


def test_digest_tells_content_name_and_order(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_text("same")
    first = layout.digest("a", one)
    assert layout.digest("a", one) == first
    assert layout.digest("a", other) != first
    assert layout.digest(one, "a") != first
    one.write_text("changed")
    assert layout.digest("a", one) != first


def test_digest_of_a_folder_skips_byte_code(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1")
    first = layout.digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "module.pyc").write_bytes(b"x")
    assert layout.digest(tmp_path) == first


def test_definitions_are_stable_and_distinct() -> None:
    made = [engine.definition(), model.definition(), image.node_definition(), image.serving_definition()]
    made += [network.definition(each) for each in layout.NETWORKS]
    again = [engine.definition(), model.definition(), image.node_definition(), image.serving_definition()]
    assert len(set(made)) == len(made)
    assert made[:4] == again


def test_addresses_lie_in_their_networks() -> None:
    for node in SPARKS:
        assert ipaddress.ip_address(node.fabric) in ipaddress.ip_network(FABRIC.subnet)
        if node.management:
            assert ipaddress.ip_address(node.management) in ipaddress.ip_network(MANAGEMENT.subnet)
    assert [bool(node.management) for node in SPARKS] == [True, *[False] * 7]
    assert len({address for node in SPARKS for address in node.addresses}) == len(SPARKS) + 1
    assert [node.name for node in NODES] == ["spark-1", "spark-2"]


def test_no_network_leaves_the_machine() -> None:
    assert all("--internal" in network.create_arguments(each) for each in layout.NETWORKS)
    assert "com.docker.network.bridge.inhibit_ipv4=true" in network.create_arguments(FABRIC)
    # Names of kernel devices have 15 characters at most.
    assert all(len(each.bridge) <= 15 for each in layout.NETWORKS)
