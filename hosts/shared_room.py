"""Whether image and model fit together where a node keeps both on one file system; each alone is judged by its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosts.faults import Fault
from hosts.images.plan import Plan
from hosts.images.room import image_needs
from hosts.images.stock import amount
from hosts.ssh import Connection
from hosts.survey import Survey
from hosts.weights.plan import WeightsPlan, room_needed
from settings import Cluster


def shared_room(
    cluster: Cluster, surveys: Mapping[str, Survey], image: Plan, weights: WeightsPlan
) -> Iterator[tuple[bool, Fault]]:
    """Nodes on which either fits but not both, and whether that is certain.

    Both are written at the same time, so that what is temporary of the image may be in the model's way: a hint, since
    the next run finds it gone.
    """
    for name, need in image_needs(cluster, surveys, image).items():
        facts, rest = surveys[name], room_needed(surveys[name], weights.shares[name])
        images, model = facts.image_room, facts.model_room
        if not (images and model) or images.device is None or images.device != model.device:
            continue
        if max(need.size, rest) <= images.free < need.size + rest:
            certain = need.certain and need.stays + rest > images.free
            yield (
                certain,
                Fault(
                    name,
                    f"{'no room' if certain else 'there may be no room'} for image and model together: "
                    f"{'' if need.certain else 'up to '}{amount(need.size)} in {images.path}, where {need.why}, and "
                    f"{amount(rest)} in {model.path} on the same file system, {amount(images.free)} free",
                    "make room, or put the model on another file system and correct `model`: "
                    + Connection.of(cluster, cluster.node(name)).by_hand("df -h; docker system df"),
                ),
            )
