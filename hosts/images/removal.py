"""The image leaves a node with the stack, where the settings say so (`keep_image: false`)."""

from __future__ import annotations

from collections.abc import Iterable

from hosts import ownership
from hosts.images.identity import inspect, is_tag, names
from hosts.ssh import Connection

USED = """
ids=$(docker ps -aq --filter "$1" --filter "$2") || exit 1
[ -z "$ids" ] || docker inspect --type container --format '{{.Image}}' $ids
"""
ABSENT = "No such image"


def used(connection: Connection, stack: str, node: str) -> list[str]:
    """Docker's ids of the images that a stack's containers on a node are made from; Fault where Docker does not answer.

    Asked while the containers exist: a copy of an image that is pinned by digest has no name to find it by.
    """
    filters = (ownership.stack_filter(stack), f"label={ownership.PREFIX}.node={node}")
    return sorted(set(connection.run("sh", "-c", USED, "sh", *filters, check=True).stdout.split()))


def remove(connection: Connection, reference: str, ids: Iterable[str]) -> str:
    """Remove an image from a node by its name in the settings, else by its ids if that name is a digest.

    Returns:
        Why it stays, in Docker's words; empty where it is gone, or was.
    """
    for name in names(reference):
        words = _remove(connection, name)
        if ABSENT not in words:
            return words
    kept = [] if is_tag(reference) else [_remove_nameless(connection, id_) for id_ in ids]
    return "\n".join(filter(None, kept))


def _remove_nameless(connection: Connection, id_: str) -> str:
    found = inspect(connection, id_)
    if found and found.tags:  # somebody's own: with its only name Docker would remove both
        return f"it is {', '.join(found.tags)} too"
    words = _remove(connection, id_)
    return "" if ABSENT in words else words


def _remove(connection: Connection, name: str) -> str:
    done = connection.run("docker", "image", "rm", name)
    return done.stderr.strip() if done.returncode else ""
