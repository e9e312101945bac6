"""The outer Docker daemon through its command line, always the one of this machine."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from lab import processes
from lab.layout import OWNER, OWNER_LABEL
from lab.processes import CommandFailedError

SOCKET = "/var/run/docker.sock"
# The operator's own context or DOCKER_HOST may point at a real machine: never at that.
BASE = ("docker", "--host", f"unix://{SOCKET}")


def docker(*arguments: str, timeout: float = 120) -> str:
    """Output of a docker command that ends soon."""
    return processes.capture([*BASE, *arguments], timeout=timeout).strip()


def docker_long(arguments: Sequence[str], note: Callable[[str], None]) -> None:
    """Run a docker command that takes its time (build, import, save)."""
    # The daemon of Debian 12 has the classic builder only.
    processes.run([*BASE, *arguments], note=note, env={"DOCKER_BUILDKIT": "0"})


def answers() -> bool:
    """Whether a daemon answers on the local socket."""
    return os.path.exists(SOCKET) and processes.succeeds([*BASE, "version"], timeout=10)  # noqa: PTH110 - a socket


def inspect(kind: str, name: str) -> dict[str, Any] | None:
    """What `docker <kind> inspect` says about one object; None when there is no such object."""
    try:
        found = json.loads(docker(kind, "inspect", name))
    except CommandFailedError as error:
        if "no such" in error.evidence.lower() or "not found" in error.evidence.lower():
            return None
        raise
    first: dict[str, Any] = found[0]
    return first


def labels(kind: str, found: dict[str, Any]) -> dict[str, str]:
    """Labels of an inspected object."""
    holder = found["Config"] if kind in {"container", "image"} else found
    return holder.get("Labels") or {}


LISTING = {
    "container": ("container", "ls", "--all", "--format", "{{.ID}}"),
    "network": ("network", "ls", "--format", "{{.ID}}"),
    "volume": ("volume", "ls", "--format", "{{.Name}}"),
}


def labelled(kind: str, *, owner: str | None = OWNER) -> list[str]:
    """Ids of the containers, networks or volumes of this checkout's lab; with owner None of any lab."""
    wanted = OWNER_LABEL if owner is None else f"{OWNER_LABEL}={owner}"
    return docker(*LISTING[kind], "--filter", f"label={wanted}").split()


def remove(kind: str, names: Sequence[str]) -> None:
    """Remove objects by id or name; a container with its anonymous volumes, running or not."""
    if names:
        docker(kind, "rm", *(("--force", "--volumes") if kind == "container" else ()), *names)
