"""Where the image comes from, decided from the surveys before anything is registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosts.faults import Fault
from hosts.images import build_context
from hosts.images.identity import Archive, Image, is_tag
from hosts.survey import Survey
from settings import Cluster

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Docker's names of what the kernel calls its machine."""


@dataclass(frozen=True)
class Plan:
    """Which node has the image or gets it first, and which image it is."""

    seed: str
    """Name of the node that the others copy from: it has the image, or it loads, builds or pulls it."""
    image: Image | None
    """None until it has been pulled or built."""
    context: str | None = None
    """Hash of the directory to build from, where the settings name one."""
    ids: Mapping[str, str | None] = field(default_factory=dict)
    """By node: Docker's id of the image, there or to be there; None where that cannot be known beforehand."""
    archived: bool = False
    """Whether it is the one of `image_archive`."""

    @property
    def pulled(self) -> bool:
        """Whether it must come from a registry: no node has it, and there is no other source."""
        return self.image is None and self.context is None


def plan(cluster: Cluster, surveys: Mapping[str, Survey]) -> Plan:
    """Decide on the image and its seed: a node that has it, the head first; else the head.

    Under a tag `image_archive` says which image is meant, so that one made anew reaches nodes that have the former. A
    digest says that itself: where a node has it, the archive is one more source, and not even opened.

    Raises:
        Fault: nodes have different images under this name and nothing says which is meant, or see
            :func:`own_sources`.
    """
    names = [node.name for node in cluster.nodes]  # the head is the first
    found = {name: surveys[name].docker.image for name in names}
    there = {name: image for name, image in found.items() if image}
    archived, context = own_sources(cluster, there=bool(there))
    if context:
        wanted = next((image for image in there.values() if image.context == context), None)
    else:
        wanted = archived or _the_one(cluster, there)
    held = {name: image.id for name, image in there.items() if wanted and image.identity == wanted.identity}
    # Graph drivers agree on the id, the containerd store makes one of its own.
    graph = [name for name in names if not surveys[name].docker.containerd]
    agreed = next((held[name] for name in graph if name in held), archived.id if archived else None)
    ids = {name: held.get(name) or (agreed if name in graph else None) for name in names}
    return Plan(next(iter(held), names[0]), wanted, context, ids, archived is not None)


def unfit(cluster: Cluster, surveys: Mapping[str, Survey], found: Plan) -> Iterator[Fault]:
    """An image that is known and is for other machines than the nodes, such as one that was saved on a laptop."""
    if found.image is None:
        return
    system, _, wanted = found.image.platform.partition("/")
    machines = {node.name: ARCHITECTURES.get(surveys[node.name].architecture) for node in cluster.nodes}
    others = {name: machine for name, machine in machines.items() if machine and machine != wanted}
    if wanted and others:
        yield Fault(
            ", ".join(others),
            f"image {cluster.image} is for {found.image.platform}, not for {system}/{next(iter(others.values()))}",
            "take one that is: correct `image`" + (" or `image_archive`" if found.archived else ""),
        )


def own_sources(cluster: Cluster, *, there: bool) -> tuple[Image | None, str | None]:
    """The image of the archive, and the hash of the directory to build from, where one of these counts.

    Args:
        cluster: names them.
        there: whether a node has an image of that name.

    Raises:
        Fault: it cannot be read.
    """
    if cluster.image_archive and (is_tag(cluster.image) or not there):
        return Archive.open(Path(cluster.image_archive).expanduser(), cluster.image).image, None
    if build := cluster.image_build:
        return None, build_context.digest(Path(build.context).expanduser(), build.dockerfile)
    return None, None


def _the_one(cluster: Cluster, there: Mapping[str, Image]) -> Image | None:
    """The image that all nodes mean by this name, None where no node has it."""
    if not there:
        return None
    first, image = next(iter(there.items()))
    others = {name: other for name, other in there.items() if other.identity != image.identity}
    if others:
        raise Fault(
            ", ".join([first, *others]),
            f"image {cluster.image} is a different one on each node",
            f"pin `image` by digest, or remove the wrong one (docker image rm {cluster.image}): it is then copied "
            "from the other node",
            "\n".join([f"{first}: {image.id}", *(f"{n}: {o.id} ({image.difference(o)})" for n, o in others.items())]),
        )
    return image
