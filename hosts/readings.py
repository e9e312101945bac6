"""A line for each node with what was read there. Most of it varies from run to run: it is shown and never stored."""

from __future__ import annotations

import ipaddress

from hosts import rdma
from hosts.advice import GIB
from hosts.fabric import Fabric
from hosts.images.stock import amount
from hosts.survey import Survey


def line(name: str, facts: Survey, end: Fabric | None) -> str:
    """The facts of one node as a user reads them; `end` is its end of the fabric, where there is one."""
    parts = [f"answered in {facts.reached.seconds:.2f} s" if facts.reached else "answered"]
    parts.append(" ".join(filter(None, (facts.os, facts.kernel, facts.architecture))))
    parts.append(_docker(facts))
    parts.append(f"{len(facts.gpus)} × {facts.gpus[0].name}" if facts.gpus else "no GPU")
    if facts.memory:
        parts.append(f"memory {facts.memory.available / GIB:.1f} of {facts.memory.total / GIB:.1f} GiB available")
    rooms = {"images": facts.image_room, "the model": facts.model_room}
    parts.append(", ".join(f"{amount(room.free)} free for {what}" for what, room in rooms.items() if room))
    if facts.reached:
        parts.append(f"clock {facts.reached.ahead:+.2f} s")
    if end:
        parts.append(_fabric(facts, end))
    return f"{name}: {'; '.join(filter(None, parts))}"


def _docker(facts: Survey) -> str:
    docker = facts.docker
    if docker.error:
        return docker.error
    ways = "" if docker.gpu_runtimes is None else f", GPUs by {' and '.join(docker.gpu_runtimes) or 'no way'}"
    return f"Docker {docker.version} ({docker.driver}{ways})"


def _fabric(facts: Survey, end: Fabric) -> str:
    """Where the fabric runs, at which speed, and on each device the GID that NCCL takes, or is told to take."""
    text = f"fabric {end.address} on {end.interface}"
    interface = next((one for one in facts.interfaces if one.name == end.interface), None)
    if interface:
        speed = f"{interface.speed / 1000:g} Gb/s, " if interface.speed else ""
        text += f" ({speed}MTU {interface.mtu})"
    version = ipaddress.ip_address(end.address).version
    if end.hcas and not end.rdma:
        return f"{text}, without RDMA, which not all nodes have"
    for hca in facts.hcas:
        if hca.name in end.hcas:
            gid = rdma.chosen_by_nccl(hca, version) if hca.roce else None
            if end.gid_index is not None:
                gid = next((one for one in hca.gids if one.index == end.gid_index), gid)
            text += f", {hca.name}" + (f" GID {gid.index} {gid.type}" if gid else "")
    return text + (f" by NCCL_IB_GID_INDEX={end.gid_index}" if end.gid_index is not None else "")
