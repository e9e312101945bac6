"""Images between the two nodes: built on one, copied over the fabric, and only what is missing goes over the wire."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.images import build_context
from hosts.images import stock as image_stock
from hosts.images.identity import CONTEXT_LABEL, inspect
from providers import image_copy, transfer
from providers.image_copy import Source
from providers.node_image import NodeImageProvider
from providers.plugin import CANCELLED
from tests.lab.conftest import connect, on

HEAD, WORKER = "spark-1", "spark-2"
FABRIC = "192.168.200.12"
BASE = "dgx-spark-lab/vllm:1"
IMAGE = "test-images:1"
LAYER = 30_000_000
"""Bytes of the top layer: random, so that nothing makes it smaller."""
COUNTER = "cat /sys/class/net/enp1s0f1np1/statistics/tx_bytes"
REST = "ls -A /var/lib/docker/tmp; pgrep -af 'docker (save|load)|[h]osts.images.(sender|receiver)'; true"


@pytest.fixture(scope="module", autouse=True)
def clean(image: str) -> Iterator[None]:  # noqa: ARG001 - the layers below
    """The test's image on no node, before and after."""

    def remove() -> None:
        for node in (HEAD, WORKER):
            on(
                node,
                "sh",
                "-c",
                f"docker image rm -f {IMAGE}; docker image prune -f --filter label={CONTEXT_LABEL}",
                check=False,
            )

    remove()
    yield
    remove()


def props(node: str, identity: str | None = None, **changes: Any) -> dict[str, Any]:
    source = Source(connect(HEAD), FABRIC).dump() if node == WORKER else None
    return {
        "connection": connect(node).dump(),
        "image": IMAGE,
        "identity": identity,
        "image_id": None,
        "source": source,
        "archive": None,
        "build": None,
    } | changes


def built(folder: Path, seed: int, base: str = BASE) -> dict[str, Any]:
    """The outputs of NodeImage on the head, with a top layer that depends on the seed."""
    (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY content /content\n")
    (folder / "content").write_bytes(random.Random(seed).randbytes(LAYER))  # noqa: S311 - no secret
    build = {"context": str(folder), "dockerfile": "Dockerfile"}
    build["digest"] = build_context.digest(folder, "Dockerfile")
    outs = NodeImageProvider().create(props(HEAD, build=build)).outs
    assert outs
    return outs


def brought(identity: str) -> tuple[dict[str, Any], int]:
    """The outputs of NodeImage on the worker, and the bytes that left the head over the fabric meanwhile."""
    before = int(on(HEAD, "sh", "-c", COUNTER))
    outs = NodeImageProvider().create(props(WORKER, identity)).outs
    assert outs
    return outs, int(on(HEAD, "sh", "-c", COUNTER)) - before


def test_only_the_layer_that_is_missing_goes_over_the_fabric(tmp_path: Path) -> None:
    first = built(tmp_path, 1)
    copied, wire = brought(first["identity"])
    assert LAYER < wire <= 1.1 * LAYER
    assert (copied["identity"], copied["image_id"]) == (first["identity"], first["image_id"])
    again, wire = brought(first["identity"])
    assert again == copied
    assert wire < 100_000, "what ssh itself needs, which passes through the head"
    assert NodeImageProvider().read("x", copied).outs == copied


def test_other_image_of_the_same_tag_is_replaced_by_its_top_layer(tmp_path: Path) -> None:
    first = built(tmp_path, 1)
    brought(first["identity"])
    second = built(tmp_path, 2)
    assert second["identity"] != first["identity"]
    copied, wire = brought(second["identity"])
    assert LAYER < wire <= 1.1 * LAYER
    assert on(WORKER, "docker", "image", "inspect", "--format", "{{.Id}}", IMAGE).strip() == copied["image_id"]
    # The former one is still there without a name: back to it costs nothing.
    _, wire = brought(first["identity"])
    assert wire < 100_000


def test_moved_tag_is_drift(tmp_path: Path) -> None:
    copied, _ = brought(built(tmp_path, 1)["identity"])
    on(WORKER, "docker", "tag", BASE, IMAGE)
    assert NodeImageProvider().read("x", copied).outs == {}


def test_interrupted_copy_leaves_nothing_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third = built(tmp_path, 3)
    update = transfer.Meter.update

    def press(meter: transfer.Meter, sent: int) -> None:
        update(meter, sent)
        if not CANCELLED.is_set() and meter.seconds > 1:
            CANCELLED.set()

    monkeypatch.setattr(transfer.Meter, "update", press)
    try:
        with pytest.raises(Fault, match="interrupted while the image was on its way"):
            brought(third["identity"])
    finally:
        CANCELLED.clear()
    monkeypatch.undo()
    found = inspect(connect(WORKER), IMAGE)
    assert found is None or found.identity != third["identity"]
    deadline = time.monotonic() + 15  # Docker itself needs a moment to notice that nobody listens
    while (rest := "".join(on(node, "sudo", "sh", "-c", REST) for node in (HEAD, WORKER))).strip():
        assert time.monotonic() < deadline, rest
        time.sleep(0.5)
    copied, wire = brought(third["identity"])
    assert copied["identity"] == third["identity"]
    assert wire <= 1.1 * LAYER


def test_no_room_is_known_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fourth = built(tmp_path, 4)
    monkeypatch.setattr(image_stock, "SLACK", 1e9)
    monkeypatch.setattr(image_copy, "started", None)
    with pytest.raises(Fault, match=r"no room for image .* needed in /var/lib/docker, [\d.]+ GB free") as caught:
        brought(fourth["identity"])
    assert caught.value.node == WORKER


def test_source_that_is_not_reached_over_the_fabric_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifth = built(tmp_path, 5)
    # The receiver looks for the sender where it is not.
    monkeypatch.setattr(image_copy, "RECEIVER", image_copy.RECEIVER.replace('question["port"])', "1)"))
    with pytest.raises(Fault, match=r"spark-1 is not reached on 192\.168\.200\.12 \(fabric\)") as caught:
        brought(fifth["identity"])
    assert caught.value.node == WORKER
