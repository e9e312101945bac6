"""Faults to inject into the lab: what happens to real Sparks and their containers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab import access, docker, nodes, processes
from lab.layout import NODES, Node
from lab.processes import LabError

ROLES = {"ray-head": NODES[0], "serve": NODES[0], "ray-worker": NODES[1]}
"""Containers of the program by role, and where the lab's stack has them."""
LABEL = "dgx-spark-cluster.role"
FABRIC_INTERFACE = "enp1s0f1np1"
OCCUPANTS = "/etc/lab/compute-apps.csv"
LINK_SECONDS = 70
"""Ray declares a silent node dead after 63 s (heartbeats of 3 s with 10 s of timeout, five misses)."""


@dataclass(frozen=True)
class Fault:
    """One fault: a script for a node, or what is done to the node from outside."""

    about: str
    targets: tuple[str, ...]
    """Roles or nodes it can be done to; the first unless told."""
    script: str = ""
    """Shell on the target's node, as root; `$id` is the container of the target where that is a role."""
    heal: str = ""
    """Shell that takes it back, empty where that is the program's work."""
    outside: Callable[[Node], None] | None = None


def _reboot(node: Node) -> None:
    """Until the node answers again: what comes back later than that is the program's to wait for."""
    docker.docker("restart", "--time", "2", node.name, timeout=120)
    deadline = time.monotonic() + nodes.BOOT_SECONDS
    while not nodes.answers(node)[1]:
        if time.monotonic() > deadline:
            raise LabError(f"{node.name} does not come back", next_step="look at it: python -m lab status")
        processes.pause(0.5)


def _away(interface: str) -> str:
    """A link that goes down and comes back by itself: ssh may need it."""
    return (
        f"nohup sh -c 'ip link set {interface} down; sleep {LINK_SECONDS}; ip link set {interface} up' "
        ">/dev/null 2>&1 </dev/null &"
    )


_ROLES, _NODES = tuple(ROLES), tuple(node.name for node in reversed(NODES))
_WORKER_FIRST = ("ray-worker", "ray-head")
FAULTS: Mapping[str, Fault] = {
    "remove": Fault("its container is removed", _ROLES, 'docker rm -f "$id"'),
    "stop": Fault("its container is stopped", _ROLES, 'docker stop "$id"'),
    "kill": Fault("its container is killed through Docker", _ROLES, 'docker kill "$id"'),
    "crash": Fault("its first process dies", _ROLES, 'kill -9 "$(docker inspect -f {{.State.Pid}} "$id")"'),
    "freeze": Fault("its first process hangs (SIGSTOP)", ("serve", *_WORKER_FIRST), 'docker kill --signal STOP "$id"'),
    "restart": Fault("Docker restarts its container", ("ray-head", "ray-worker", "serve"), 'docker restart "$id"'),
    "raylet": Fault("its raylet is killed", _WORKER_FIRST, 'docker exec "$id" pkill -9 -x raylet'),
    "link": Fault(f"the fabric link is down for {LINK_SECONDS} s", _NODES, _away(FABRIC_INTERFACE)),
    "reboot": Fault("the node reboots", _NODES, outside=_reboot),
    "docker-restart": Fault("the Docker daemon restarts", _NODES, "systemctl restart docker"),
    "docker-stop": Fault(
        "Docker is down", _NODES, "systemctl stop docker.socket docker", "systemctl start docker.socket docker"
    ),
    "gpu": Fault(
        "a foreign process holds the GPU",
        _NODES,
        f'mkdir -p /etc/lab; echo "$(systemctl show -P MainPID ssh), /usr/bin/python3, 19135" > {OCCUPANTS}',
        f"rm -f {OCCUPANTS}",
    ),
}
"""By name."""


def inject(name: str, target: str | None = None, *, heal: bool = False) -> str:
    """Do it, or take it back; what was done, in a line.

    Raises:
        LabError: no such fault or target, nothing to heal, or the node does not do it.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise LabError(f"no fault {name!r}", next_step=f"one of: {', '.join(FAULTS)}")
    target = target or fault.targets[0]
    if target not in fault.targets:
        raise LabError(f"{name} cannot be done to {target!r}", next_step=f"one of: {', '.join(fault.targets)}")
    if heal and not fault.heal:
        raise LabError(f"{name} has nothing to take back", next_step="that is the program's work: pulumi up")
    node = ROLES.get(target) or next(node for node in NODES if node.name == target)
    if fault.outside:
        fault.outside(node)
    else:
        _run(node, fault.heal if heal else fault.script, target if target in ROLES else None)
    return f"{target}: {'taken back: ' if heal else ''}{fault.about}"


def _run(node: Node, script: str, role: str | None) -> None:
    find = (
        f'id=$(docker ps -aq --filter label={LABEL}={role}); [ -n "$id" ] || {{ echo "no {role} here" >&2; exit 1; }}'
    )
    whole = "\n".join(["set -e", *([find] if role else []), script])
    processes.capture(access.ssh(node, "sudo", "sh", "-c", shlex.quote(whole)), timeout=120)
