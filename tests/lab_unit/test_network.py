"""Networks: those of another checkout take its nodes with them, and that is said."""

from typing import Any

import pytest

from lab import docker, network
from lab.layout import MANAGEMENT, OWNER, OWNER_LABEL


@pytest.mark.parametrize(
    ("owner", "nodes", "own_nodes"),
    [("0123456789ab", ["a", "b"], []), (OWNER, ["a", "b"], ["a", "b"]), ("0123456789ab", [], [])],
    ids=["another checkout's", "own", "another checkout's without nodes"],
)
def test_nodes_of_another_checkout_are_not_removed_in_silence(
    owner: str, nodes: list[str], own_nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[tuple[str, list[str]]] = []
    found: dict[str, Any] = {"Labels": {OWNER_LABEL: owner}}
    monkeypatch.setattr(docker, "inspect", lambda *_: found)
    monkeypatch.setattr(docker, "labelled", lambda _kind, *, owner=OWNER: nodes if owner is None else own_nodes)
    monkeypatch.setattr(docker, "remove", lambda kind, names: removed.append((kind, names)))
    monkeypatch.setattr(network, "remove_device", lambda _network: None)
    notes: list[str] = []
    network.remove(MANAGEMENT, notes.append)
    assert removed == [("container", nodes), ("network", [MANAGEMENT.name])]
    assert any("another checkout's" in note for note in notes) == (nodes != own_nodes)
