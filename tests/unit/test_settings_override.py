"""What is in force on a node: its own values over the cluster's, by one rule for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.ssh import Connection
from settings import Cluster, Overridable
from tests.samples import MINIMAL, cluster
from tests.unit.test_settings import FULL


def pair(cluster_wide: dict[str, Any], own: dict[str, Any]) -> Cluster:
    """Two nodes, values for both, and the worker's own."""
    first, second = MINIMAL["nodes"]
    return cluster(nodes=[first, {**second, **own}], **cluster_wide)


OTHER: dict[str, Any] = {
    "interface": "eth7",
    "hcas": [],
    "gid_index": 0,
    "ssh_port": 2222,
    "identity_file": "other",
    "home": "/data",
    "environment": {"HF_HOME": "/other"},
    "mounts": [{"source": "/other", "target": "/hf"}],
    "devices": [],
    "ulimits": [{"name": "stack", "soft": 1, "hard": 2}],
    "restart": "no",
    "ipc": "host",
    "shm_size_mib": 2048,
    "labels": {"com.example.team": "other"},
    "container_prefix": "other",
    "stale_units": ["other.timer"],
    "stale_containers": [],
    "restore_units": True,
    "drop_page_cache": False,
}


@pytest.mark.parametrize("name", Overridable.model_fields)
def test_every_value_of_the_cluster_holds_and_every_one_of_a_node_wins(name: str) -> None:
    found = pair({name: FULL[name]}, {name: OTHER[name]})
    head, worker = (found.of(node).model_dump(mode="json")[name] for node in found.nodes)
    own = [{**OTHER[name][0], "read_only": True}] if name == "mounts" else OTHER[name]
    assert (head, worker) == (FULL[name], own)


def test_without_a_value_the_defaults_hold() -> None:
    found = cluster()
    assert found.of(found.workers[0]) == Overridable.model_construct(
        **{name: field.get_default(call_default_factory=True) for name, field in Overridable.model_fields.items()}
    )


def test_mappings_are_merged_and_the_nodes_entries_win() -> None:
    found = pair({"environment": {"A": "1", "B": "1"}}, {"environment": {"B": "2", "C": "2"}})
    assert found.of(found.head).environment == {"A": "1", "B": "1"}
    assert found.of(found.workers[0]).environment == {"A": "1", "B": "2", "C": "2"}


def test_mounts_and_ulimits_are_merged_by_their_key() -> None:
    one, two = {"source": "/1", "target": "/a"}, {"source": "/2", "target": "/a/"}
    limits = [{"name": "core", "soft": 0, "hard": 0}]
    found = pair({"mounts": [one, {"source": "/1", "target": "/b"}]}, {"mounts": [two], "ulimits": limits})
    own = found.of(found.workers[0])
    assert [(mount.source, mount.target) for mount in own.mounts] == [("/2", "/a/"), ("/1", "/b")]
    assert [limit.name for limit in own.ulimits] == ["memlock", "nofile", "core"]


def test_an_empty_list_or_null_on_a_node_takes_a_value_back() -> None:
    found = pair({"interface": "eth7", "identity_file": "k"}, {"interface": None, "identity_file": None, "devices": []})
    own = found.of(found.workers[0])
    assert (own.interface, own.identity_file, own.devices) == (None, None, ())


def test_port_and_key_of_each_hop_are_its_own() -> None:
    found = pair({"ssh_port": 2222, "identity_file": "~/.ssh/all"}, {"identity_file": "~/.ssh/worker", "ssh_port": 23})
    hops = Connection.of(found, found.workers[0]).hops
    assert [(hop.port, hop.identity_file) for hop in hops] == [(2222, "~/.ssh/all"), (23, "~/.ssh/worker")]


def test_port_in_the_address_wins_over_the_clusters() -> None:
    found = cluster(nodes=[{"name": "spark-1", "ssh": "aurora@spark:24"}], ssh_port=2222)
    assert Connection.of(found, found.head).hops[0].port == 24
