"""What a node's Docker holds and has room for, asked before anything is sent to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hosts.faults import Fault
from hosts.images.identity import Image, common
from hosts.ssh import Connection

STOCK = """
info=$(docker info --format '{{.DockerRootDir}}|{{json .DriverStatus}}') || exit 3
root=${info%%|*}
case $info in
  *containerd.snapshotter*) if [ -d /var/lib/containerd ]; then root=/var/lib/containerd; fi ;;
esac
at=$root
until disk=$(df -PB1 "$at" 2>/dev/null); do
  if [ "$at" = / ]; then exit 3; fi
  at=$(dirname "$at")
done
echo "$disk" | tail -n 1
echo "$root|$info"
ids=$(docker image ls -q --no-trunc --all | sort -u)
[ -z "$ids" ] || docker image inspect --format '{{json .}}' $ids
exit 0
"""
"""Room is that of the nearest directory that the user may look at: what is above Docker's may be closed. An image that
goes between the last two commands is left out of the answer, nothing more. From Docker 29 on an image without a name,
as a copy of one that is pinned by digest, is listed with --all only (docker/cli pull request 6574)."""

FACTOR = 2.0
"""Room of an image on its way in: `docker load` unpacks the tar into a temporary directory, then into layers."""
SLACK = 1.05
"""Tar headers and what the file system needs for itself."""
MAKE_ROOM = "docker system df; docker image prune"
"""What a user may do about it: the second command asks before it removes anything."""


@dataclass(frozen=True)
class Stock:
    """Images, kind of store, and room."""

    images: tuple[Image, ...]
    containerd: bool
    root: str
    """Directory that holds the images."""
    free: int
    """Bytes that a user may still write there."""

    def holding(self, identity: str) -> Image | None:
        """The image of that identity, under whatever name."""
        return next((image for image in self.images if image.identity == identity), None)

    def fits(self, wanted: float) -> bool:
        """Whether there is room for so many bytes."""
        return wanted * SLACK <= self.free

    def held(self, layers: tuple[str, ...]) -> int:
        """How many of the lowest layers need not be sent.

        Docker's graph drivers find a layer by its chain and do not open the file in the tar (moby
        image/tarexport/load.go; run on 20.10: 902 MB became 3). The containerd store wants every blob.
        """
        return 0 if self.containerd else max((common(layers, image.layers) for image in self.images), default=0)


def stock(connection: Connection) -> Stock:
    """Ask a node; raises Fault when it or its Docker does not answer."""
    done = connection.run("sh", "-c", STOCK)
    try:
        disk, info, *images = done.stdout.splitlines()
        root, _, status = info.split("|", 2)
        return Stock(
            tuple(Image.of_inspect(json.loads(line)) for line in images),
            "containerd.snapshotter" in status,
            root,
            int(disk.split()[3]),
        )
    except (ValueError, IndexError):
        raise Fault(
            connection.node, "Docker does not answer", f"look at it: {connection.by_hand()}", done.stderr or done.stdout
        ) from None


def layer_sizes(connection: Connection, image: Image) -> int | tuple[int, ...]:
    """Bytes of each layer of an image on the node, lowest first.

    Their sum alone where Docker's history does not say which entry is which layer.
    """
    done = connection.run("docker", "history", "--no-trunc", "--human=false", "--format", "{{.Size}}", image.id)
    sizes = [int(line) for line in reversed(done.stdout.split()) if line.isdigit() and line != "0"]
    return tuple(sizes) if len(sizes) == len(image.layers) else sum(sizes) or image.size


def check_room(connection: Connection, held: Stock, wanted: float, what: str) -> None:
    """See that `wanted` bytes fit before the first one is sent.

    Raises:
        Fault: they do not, with needed and free bytes.
    """
    if not held.fits(wanted):
        raise Fault(
            connection.node,
            f"no room for {what}: {amount(wanted * SLACK)} needed in {held.root}, {amount(held.free)} free",
            f"make room and run again: {connection.by_hand(MAKE_ROOM)}",
        )


def missing_bytes(sizes: int | Sequence[int], held: int) -> int:
    """Bytes of the layers above the lowest `held`."""
    return sizes if isinstance(sizes, int) else sum(sizes[held:])


def amount(size: float) -> str:
    """Bytes as people read them, decimal as disks and links are sold."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
