"""Whether a registry gives the image, asked before anything is registered where it is to be pulled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hosts.bundle import ask, program
from hosts.faults import Fault
from hosts.images import registry_access_script
from hosts.images.registry_access_script import registry
from hosts.ssh import Connection
from settings import Cluster

SCRIPT = program(registry_access_script)
SHARE = 0.4
"""Of the time of a survey, for the registry: a Docker that cannot resolve its name takes 20 s to say so."""
REFUSED = (401, 403)
DENIED = re.compile("unauthorized|denied|authentication required", re.IGNORECASE)
"""What Docker cites of a registry's refusal under a status of its own (500 for a login that has expired)."""
ABSENT = 404


def check(cluster: Cluster, seed: str) -> Iterator[tuple[bool, Fault]]:
    """What stands in the way of the pull, and whether that is certain.

    It is where the registry refuses, or has the image for other platforms only. A registry that does not answer now may
    do so when it matters, and where Docker Hub is mirrored Docker asks one place now and may pull from another.

    Args:
        cluster: the settings, with an image that no node has.
        seed: name of the node that is to pull.
    """
    node, image = cluster.node(seed), cluster.image
    otherwise = "give `image_archive` (docker save) or `image_build`"
    if image.startswith("sha256:"):
        yield True, Fault(seed, f"image {image} is on no node, and what is named by its id cannot be pulled", otherwise)
        return
    connection, name = Connection.of(cluster, node), registry(image)
    login = connection.by_hand(f"docker login {name}")
    bound = cluster.deadlines.survey
    said: dict[str, Any] = {"status": 0} | ask(connection, SCRIPT, {"image": image, "seconds": SHARE * bound}, bound)
    status, evidence = said["status"], said["error"]
    if status == ABSENT:
        fault = Fault(seed, f"{name} has no image {image}", f"correct `image`, or {otherwise}", evidence)
    elif status in REFUSED:
        remedy = f"correct `image`, log in: {login}, or {otherwise}"
        fault = Fault(seed, f"{name} does not give image {image}", remedy, evidence)
    elif status != 200:
        again, reached = f"log in again: {login}, or", "does Docker on the node reach it? If not,"
        fault = Fault(
            seed,
            f"{name} does not tell whether it gives image {image}: only `up` will show it",
            f"{again if DENIED.search(evidence) else reached} {otherwise}",
            evidence,
        )
    elif said["platforms"] and said["platform"] not in said["platforms"]:
        there = ", ".join(sorted({one for one in said["platforms"] if "unknown" not in one}))
        fault = Fault(
            seed, f"image {image} is not for {said['platform']}, only for {there}", "name one that is as `image`"
        )
    else:
        return
    yield status == 200 or (status in (ABSENT, *REFUSED) and not said["mirrored"]), fault
