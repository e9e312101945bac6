"""Each source of an image on real Docker: pulled from a registry, built, loaded from a tar; each is then copied."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.bundle import bundle
from hosts.faults import Fault
from hosts.images import build_context, registry_access
from hosts.images.download import download
from hosts.images.identity import CONTEXT_LABEL, inspect, names
from hosts.ssh import lines
from providers.image_copy import Source
from providers.node_image import NodeImageProvider
from settings import parse
from tests.lab.conftest import connect, lab_settings, on
from tests.samples import registry
from tests.samples.registry import NAME, Tiny, digest

HEAD, WORKER = "spark-1", "spark-2"
FABRIC = "192.168.200.12"
BASE = "dgx-spark-lab/vllm:1"
TAG = "test-image-sources:1"
CLAIMED = 10**15
"""Bytes of a layer that no node has room for."""
SERVE = f"""
import sys, threading
architecture = sys.argv[1]
server = module.Registry()
entry = server.add(module.Tiny(architecture, (1, 2)))
server.add_list("1", [server.add(module.Tiny("s390x", (1, 3), 200_000), "other"), entry])
server.add(module.Tiny(architecture, (1, 4)), "huge", claimed={CLAIMED})
slow = module.Tiny(architecture, (1, 5))
server.add(slow, "slow")
server.stalling = {{module.digest(module.packed(slow.layers[1]))}}
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], entry["digest"], flush=True)
sys.stdin.read()
"""
REST = "sudo ls -A /var/lib/docker/tmp; pgrep -af '[d]ocker (pull|build)|[s]leep 4321'; docker ps -aq --no-trunc"


class Served:
    """The registry that runs on the head."""

    def __init__(self, heard: queue.Queue[str | None], architecture: str) -> None:
        self._heard = heard
        self._asked: list[str] = []
        port, self.digest = (heard.get(timeout=20) or "").split()
        self.prefix = f"127.0.0.1:{port}/{NAME}"
        self.architecture = architecture
        self.tiny, huge, self.slow = (Tiny(architecture, (1, top)) for top in (2, 4, 5))
        self._configs = {digest(one.config) for one in (self.tiny, huge, self.slow, Tiny("s390x", (1, 3), 200_000))}

    def layers(self) -> int:
        """How many layers have been asked for so far; the configurations are read for the room too."""
        while not self._heard.empty():
            self._asked.append(self._heard.get() or "")
        found = [
            line.rpartition("/")[2].strip() for line in self._asked if line.startswith("GET") and "/blobs/" in line
        ]
        return len([blob for blob in found if blob not in self._configs])


@pytest.fixture(scope="module")
def served(image: str) -> Iterator[Served]:  # noqa: ARG001 - what is built begins with it
    """A registry on the head, where Docker asks without TLS."""
    architecture = on(HEAD, "docker", "version", "--format", "{{.Server.Arch}}").strip()
    process = connect(HEAD).start("python3", "-u", "-c", bundle(registry) + SERVE, architecture)
    assert process.stdin
    try:
        yield Served(lines(process), architecture)
    finally:
        process.stdin.close()
        process.wait(10)


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    """The test's images on no node, before and after."""

    def remove() -> None:
        images = " ".join([TAG, digest(served.tiny.config), digest(served.slow.config)])
        prune = f"docker image prune -f --filter label={CONTEXT_LABEL}"
        for node in (HEAD, WORKER):
            on(node, "sh", "-c", f"docker image rm -f {images}; {prune}", check=False)

    remove()
    yield
    remove()


def brought(node: str, image: str, **changes: Any) -> dict[str, Any]:
    """The outputs of NodeImage on a node; the worker copies from the head."""
    source = Source(connect(HEAD), FABRIC).dump() if node == WORKER else None
    wanted = {"image": image, "identity": None, "image_id": None, "source": source, "archive": None, "build": None}
    outs = NodeImageProvider().create({"connection": connect(node).dump(), **wanted, **changes}).outs
    assert outs
    return outs


def left(node: str) -> list[str]:
    """Files, processes and containers of Docker that a run could leave."""
    return on(node, "sh", "-c", REST).splitlines()


def settled(node: str, before: list[str]) -> None:
    """Wait until nothing is left; Docker itself needs a moment to notice that nobody listens."""
    deadline = time.monotonic() + 20
    while (now := left(node)) != before:
        assert time.monotonic() < deadline, now
        time.sleep(0.5)


class Interrupt:
    """Ctrl-C once something is so."""

    def __init__(self, when: Callable[[], bool]) -> None:
        self.is_set = when


@pytest.mark.parametrize("pinned", [False, True])
def test_image_is_pulled_once_and_then_copied(served: Served, pinned: bool) -> None:
    name = served.prefix + (f"@{served.digest}" if pinned else ":1")
    before = served.layers()
    first = brought(HEAD, name)
    assert first["image_id"] == digest(served.tiny.config), "of the node's platform"
    deadline = time.monotonic() + 20  # the registry's words come over ssh
    while served.layers() < before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # The worker has a loopback of its own, on which nobody answers.
    copied = brought(WORKER, name, identity=first["identity"])
    assert (copied["identity"], copied["image_id"]) == (first["identity"], first["image_id"])
    assert brought(HEAD, name) == first
    assert served.layers() == before + 2
    if pinned:  # a copy has no registry's digest, and is found all the same where the first one is lost
        own, tag = names(name)
        assert inspect(connect(WORKER), own) is None
        assert (inspect(connect(WORKER), tag) or pytest.fail("no name")).id == copied["image_id"]
        assert inspect(connect(HEAD), tag) is None, "the digest does for it"


def test_download_that_does_not_fit_is_known_before_the_first_layer(served: Served) -> None:
    before = served.layers()
    name = f"{served.prefix}:huge"
    assert download(connect(HEAD), name) == 2 * CLAIMED + len(served.tiny.config)
    with pytest.raises(Fault, match=r"no room for image .*:huge, a download of 2000000\.0 GB before it is unpacked"):
        brought(HEAD, name)
    assert served.layers() == before
    assert inspect(connect(HEAD), name) is None


def test_registry_that_does_not_have_the_image_says_so_itself(served: Served) -> None:
    assert download(connect(HEAD), f"{served.prefix}:none") is None
    with pytest.raises(Fault, match=r":none is on no node and cannot be pulled") as caught:
        brought(HEAD, f"{served.prefix}:none")
    assert "manifest unknown" in caught.value.evidence


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        (":1", ""),
        ("@", ""),
        (":none", "has no image {prefix}:none"),
        ("/none:1", "has no image {prefix}/none:1"),
        (":other", "image {prefix}:other is not for linux/{architecture}, only for linux/s390x"),
    ],
)
def test_registry_is_asked_before_anything_is_registered(served: Served, tag: str, told: str) -> None:
    name = served.prefix + (tag if tag != "@" else f"@{served.digest}")
    cluster = parse(lab_settings() | {"image": name, "image_archive": None})
    found = list(registry_access.check(cluster, HEAD))
    assert len(found) == bool(told)
    for certain, fault in found:
        assert certain
        assert told.format(prefix=served.prefix, architecture=served.architecture) in fault.cause


def test_interrupted_pull_leaves_nothing_and_is_repeated(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    name, before, rest = f"{served.prefix}:slow", served.layers(), left(HEAD)
    monkeypatch.setattr("providers.transfer.CANCELLED", Interrupt(lambda: served.layers() == before + 2))
    with pytest.raises(Fault, match="interrupted while the image was on its way"):
        brought(HEAD, name)
    monkeypatch.undo()
    settled(HEAD, rest)
    assert inspect(connect(HEAD), name) is None
    assert brought(HEAD, name)["image_id"] == digest(served.slow.config)


def build(folder: Path, *steps: str) -> dict[str, Any]:
    """A directory to build from."""
    (folder / "Dockerfile").write_text("\n".join([f"FROM {BASE}", *steps, ""]))
    return {"context": str(folder), "dockerfile": "Dockerfile", "digest": build_context.digest(folder, "Dockerfile")}


def test_interrupted_build_leaves_nothing_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = left(HEAD)
    monkeypatch.setattr("providers.transfer.CANCELLED", Interrupt(lambda: "sleep 4321" in " ".join(left(HEAD))))
    with pytest.raises(Fault, match="interrupted while the image was on its way"):
        brought(HEAD, TAG, build=build(tmp_path, "RUN sleep 4321"))
    monkeypatch.undo()
    settled(HEAD, rest)
    made = brought(HEAD, TAG, build=build(tmp_path, "COPY Dockerfile /from", "RUN test -f /from"))
    copied = brought(WORKER, TAG, identity=made["identity"])
    assert (copied["identity"], copied["image_id"]) == (made["identity"], made["image_id"])
    assert left(HEAD) == rest


def test_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    rest = left(HEAD)
    with pytest.raises(Fault, match="docker build failed") as caught:
        brought(HEAD, TAG, build=build(tmp_path, "RUN echo begun && exit 7"))
    assert "returned a non-zero code: 7" in caught.value.evidence
    assert left(HEAD) == rest


def test_image_is_loaded_from_a_tar_and_then_copied(served: Served, tmp_path: Path) -> None:
    saved = served.tiny.save(tmp_path / "image.tar", TAG)
    first = brought(HEAD, TAG, archive=str(saved))
    assert first["image_id"] == digest(served.tiny.config)
    saved.unlink()  # so the other one is no second load
    copied = brought(WORKER, TAG, identity=first["identity"], archive=str(saved))
    assert (copied["identity"], copied["image_id"]) == (first["identity"], first["image_id"])
