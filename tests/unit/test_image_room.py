"""Room for the image: an error where it is certain that it does not fit, a warning where it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hosts.findings import look
from hosts.images.plan import plan
from hosts.images.room import image_room
from hosts.survey import Survey
from tests.samples import IMAGE_ID, STACK, archives, cluster, inspected, survey


def docker(*, there: bool = False, images: int | None = 3, **changes: Any) -> dict[str, Any]:
    image = inspected() if there else None
    return {"version": "28", "containers": [], "image": image, "images": images} | changes


def nodes(head: float, worker: float, *, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Survey]:
    """Two nodes with so many GB free."""
    rooms = [{"path": "/var/lib/docker", "free": int(free * 1e9)} for free in (head, worker)]
    return {
        "spark-1": survey(1, docker=first, image_room=rooms[0]),
        "spark-2": survey(2, docker=second, image_room=rooms[1]),
    }


def told(known: dict[str, Survey]) -> list[tuple[bool, str, str]]:
    found = cluster()
    return [(certain, fault.node, fault.cause) for certain, fault in image_room(found, known, plan(found, known))]


@pytest.mark.parametrize(("images", "certain"), [(0, True), (3, False), (None, False)])
def test_node_that_lacks_the_image_needs_twice_its_size(images: int | None, certain: bool) -> None:
    """Certain only where no layer of it, under whatever name, can be there."""
    absent = docker(images=images)
    assert told(nodes(99, 42.1, first=docker(there=True), second=absent)) == []
    ((really, node, cause),) = told(nodes(99, 41.9, first=docker(there=True), second=absent))
    assert (really, node) == (certain, "spark-2")
    assert f"{'needed' if certain else 'up to'}" in cause
    assert "42.0 GB needed in /var/lib/docker, where it is unpacked, 41.9 GB free" in cause
    assert cause.startswith("no room" if certain else "there may be no room")


def test_copy_without_a_name_is_told_by_the_container_that_runs_it() -> None:
    """Of an image that is pinned by digest."""
    container = {"id": "c1", "name": "serve", "image": IMAGE_ID, "state": "running", "labels": {}}
    assert told(nodes(1, 1, first=docker(there=True), second=docker(containers=[container]))) == []
    other = docker(containers=[container | {"image": "sha256:" + "2e" * 32}])
    assert [node for _, node, _ in told(nodes(1, 1, first=docker(there=True), second=other))] == ["spark-1", "spark-2"]


@pytest.mark.parametrize("images", [0, 3])
def test_node_that_sends_the_image_needs_its_size_for_docker_save(images: int) -> None:
    absent = docker(images=images)
    assert told(nodes(21.1, 99, first=docker(there=True), second=absent)) == []
    ((certain, node, cause),) = told(nodes(20.9, 99, first=docker(there=True), second=absent))
    assert (certain, node) == (images == 0, "spark-1")
    assert "21.0 GB needed in /var/lib/docker, where `docker save` writes it for the other nodes" in cause
    assert told(nodes(1, 99, first=docker(there=True), second=docker(there=True))) == []


def test_containerd_store_writes_no_copy_and_its_sizes_are_no_certainty() -> None:
    source = docker(there=True, containerd=True)
    ((certain, node, _),) = told(nodes(1, 1, first=source, second=docker(images=0)))
    assert (certain, node) == (False, "spark-2")


def test_room_that_is_not_known_is_not_told() -> None:
    assert told({"spark-1": survey(1), "spark-2": survey(2, docker=docker(images=0))}) == []


def test_image_of_an_archive_has_the_size_of_its_layers(tmp_path: Path) -> None:
    archives.oci(tmp_path / "image.tar", "one:1", [b"a" * 6_000_000, b"b" * 4_000_000])
    known = nodes(0.0209, 0.0211, first=docker(images=0), second=docker(images=0))
    found = look(cluster(image="one:1", image_archive=str(tmp_path / "image.tar")), STACK, known)
    assert [(fault.node, "21.0 MB needed" in fault.cause) for fault in found.faults] == [("spark-1", True)]


def test_what_is_certain_is_a_fault_and_the_rest_a_warning() -> None:
    found = look(cluster(), STACK, nodes(99, 1, first=docker(there=True), second=docker(images=0)))
    assert ([fault.node for fault in found.faults], found.warnings) == (["spark-2"], [])
    found = look(cluster(), STACK, nodes(99, 1, first=docker(there=True), second=docker(images=2)))
    assert (found.faults, [fault.node for fault in found.warnings]) == ([], ["spark-2"])


def test_directory_of_a_build_must_fit_where_the_image_is_built(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM vllm:1\n")
    (tmp_path / "wheel").write_bytes(b"x" * 10_000_000)
    (tmp_path / "the same").hardlink_to(tmp_path / "wheel")
    settings = cluster(image="ours:1", image_build={"context": str(tmp_path)})
    (fault,) = look(settings, STACK, nodes(0.0104, 1, first=docker(), second=docker())).faults
    assert fault.node == "spark-1"
    assert "is built from: 10.5 MB needed in /var/lib/docker, 10.4 MB free" in fault.cause
    assert not look(settings, STACK, nodes(0.0106, 0, first=docker(), second=docker())).faults
    elsewhere = docker(containerd=True)
    assert not look(settings, STACK, nodes(0, 0, first=elsewhere, second=elsewhere)).faults
