"""Whether the image fits on the nodes that lack it, as far as the surveys tell; the copy itself asks again.

Of a pull the preview knows nothing, of a build the directory alone (ADR 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hosts.faults import Fault
from hosts.images import build_context
from hosts.images.plan import Plan
from hosts.images.stock import FACTOR, SLACK, amount
from hosts.ssh import Connection
from hosts.survey import Survey
from settings import Cluster, Node


def image_room(cluster: Cluster, surveys: Mapping[str, Survey], plan: Plan) -> Iterator[tuple[bool, Fault]]:
    """Nodes without room for the image, and whether that is certain.

    It is where a node has no image at all. Another may hold some of the layers, or all under another name, and then the
    copy is smaller. The containerd store counts compressed blobs too: what a node says that has it is no more than a
    hint.
    """
    if plan.image is None:
        yield from _build_room(cluster, surveys, plan.seed)
        return
    size, image = SLACK * plan.image.size, plan.image.identity
    counted = bool(cluster.image_archive) or not surveys[plan.seed].docker.containerd
    lacking = {
        name: counted and facts.docker.images == 0
        for name, facts in surveys.items()
        if facts.docker.image is None or facts.docker.image.identity != image
    }
    for node in cluster.nodes:
        room = surveys[node.name].image_room
        if node.name in lacking:
            needed, what, certain = FACTOR * size, "it is unpacked", lacking[node.name]
        elif node.name == plan.seed and lacking and not surveys[node.name].docker.containerd:
            # A graph driver's `docker save` writes all layers into a temporary directory before it sends the first.
            needed, what, certain = size, "`docker save` writes it for the other nodes", any(lacking.values())
        else:
            continue
        if room and needed > room.free:
            cause = (
                f"{'no room' if certain else 'there may be no room'} for image {cluster.image}: "
                f"{'' if certain else 'up to '}{amount(needed)} needed in {room.path}, where {what}, "
                f"{amount(room.free)} free"
            )
            yield certain, Fault(node.name, cause, _make_room(cluster, node))


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
    return f"make room: {Connection.of(cluster, node).by_hand()} docker system df, docker image prune"
