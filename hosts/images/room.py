"""Whether the image fits on the nodes that lack it, as far as the surveys tell; the copy itself asks again.

Of a pull the preview knows nothing, of a build the directory alone (ADR 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts.faults import Fault
from hosts.images import build_context
from hosts.images.plan import Plan
from hosts.images.stock import FACTOR, MAKE_ROOM, SLACK, amount
from hosts.ssh import Connection
from hosts.survey import Survey
from settings import Cluster, Node


@dataclass(frozen=True)
class Need:
    """What a node writes where it keeps images, while the image comes."""

    size: int
    """Bytes at most, with slack."""
    stays: int
    """Bytes of them that are there afterwards; the rest is temporary."""
    why: str
    certain: bool
    """Whether it is no less."""


def image_room(cluster: Cluster, surveys: Mapping[str, Survey], plan: Plan) -> Iterator[tuple[bool, Fault]]:
    """Nodes without room for the image, and whether that is certain.

    It is where a node has no image at all. Another may hold some of the layers, or all under another name, and then the
    copy is smaller. The containerd store counts compressed blobs too: what a node says that has it is no more than a
    hint.
    """
    if plan.image is None:
        yield from _build_room(cluster, surveys, plan.seed)
    for name, need in image_needs(cluster, surveys, plan).items():
        room = surveys[name].image_room
        if room and need.size > room.free:
            cause = (
                f"{'no room' if need.certain else 'there may be no room'} for image {cluster.image}: "
                f"{'' if need.certain else 'up to '}{amount(need.size)} needed in {room.path}, where {need.why}, "
                f"{amount(room.free)} free"
            )
            yield need.certain, Fault(name, cause, _make_room(cluster, cluster.node(name)))


def image_needs(cluster: Cluster, surveys: Mapping[str, Survey], plan: Plan) -> dict[str, Need]:
    """What each node needs, as far as it is known; nothing on one that need not write."""
    if plan.image is None:
        return {}
    size, image = SLACK * plan.image.size, plan.image.identity
    counted = plan.archived or not surveys[plan.seed].docker.containerd
    lacking = {
        name: counted and facts.docker.images == 0
        for name, facts in surveys.items()
        if (facts.docker.image is None or facts.docker.image.identity != image)
        # A copy of an image that is pinned by digest has no name that the survey could ask for.
        and plan.ids[name] not in {container.image for container in facts.docker.containers}
    }
    sends = bool(lacking) and not surveys[plan.seed].docker.containerd
    needs: dict[str, Need] = {}
    for node in cluster.nodes:
        if node.name in lacking:
            needs[node.name] = Need(int(FACTOR * size), int(size), "it is unpacked", lacking[node.name])
        elif node.name == plan.seed and sends:
            # A graph driver's `docker save` writes all layers into a temporary directory before it sends the first.
            needs[node.name] = Need(int(size), 0, "`docker save` writes it for the other nodes", any(lacking.values()))
    return needs


def _build_room(cluster: Cluster, surveys: Mapping[str, Survey], seed: str) -> Iterator[tuple[bool, Fault]]:
    facts = surveys[seed]
    if not cluster.image_build or not facts.image_room or facts.docker.containerd:
        return  # the containerd store has the directory elsewhere than the images
    context, room = cluster.image_build.context, facts.image_room
    needed = SLACK * build_context.size(Path(context).expanduser())
    if needed > room.free:
        cause = (
            f"no room for the directory {context} that image {cluster.image} is built from: "
            f"{amount(needed)} needed in {room.path}, {amount(room.free)} free"
        )
        yield True, Fault(seed, cause, _make_room(cluster, cluster.node(seed)))


def _make_room(cluster: Cluster, node: Node) -> str:
    return f"make room: {Connection.of(cluster, node).by_hand(MAKE_ROOM)}"
