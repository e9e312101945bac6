"""Down: another checkout's lab in the same Docker daemon keeps its daemon, devices and route."""

import pytest

from lab import daemon, docker, image, lifecycle, network, nodes
from lab.layout import OWNER

CALLS = {
    nodes: ("remove_all",),
    image: ("remove_all",),
    network: ("remove_device", "remove_route"),
    daemon: ("start", "stop"),
    docker: ("remove",),
}


@pytest.mark.parametrize("others", [[], ["0123456789ab"]], ids=["alone", "shared"])
def test_down_ends_the_daemon_that_nobody_else_uses(others: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for module, names in CALLS.items():
        for name in names:
            called = f"{module.__name__}.{name}"
            monkeypatch.setattr(module, name, lambda *_, called=called, **__: done.append(called))
    monkeypatch.setattr(docker, "answers", lambda: True)
    monkeypatch.setattr(docker, "inspect", lambda *_: None)
    monkeypatch.setattr(docker, "labelled", lambda _kind, *, owner=OWNER: others if owner is None else [])
    notes: list[str] = []
    lifecycle._down(notes.append, purge=False)
    assert "lab.nodes.remove_all" in done
    ended = {"lab.daemon.stop", "lab.network.remove_device", "lab.network.remove_route"}
    assert ended & set(done) == (set() if others else ended)
    assert any("another checkout" in note for note in notes) == bool(others)
