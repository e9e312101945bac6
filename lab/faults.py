"""Faults to inject into the lab: what happens to real Sparks and their containers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lab import access, docker, layout, model, nodes, processes
from lab.engine_plugin import errors
from lab.layout import NODES, Node
from lab.processes import LabError

ROLES = {"ray-head": NODES[0], "serve": NODES[0], "ray-worker": NODES[1]}
"""Containers of the program by role, and where the lab's stack has them."""
LABEL = "dgx-spark-cluster.role"
PREFIX = "dgx-spark-cluster-lab"
"""Of the names of its containers."""
FABRIC_INTERFACE, MANAGEMENT_INTERFACE = "enp1s0f1np1", "enP7s7"
OCCUPANTS = "/etc/lab/compute-apps.csv"
LINK_SECONDS = 70
"""Ray declares a silent node dead after 63 s (heartbeats of 3 s with 10 s of timeout, five misses)."""

Work = str | Callable[[Sequence[Node]], None]
"""Shell on the target's node, as root, with `$role` and, where that has a container, `$id` of a target that is a role;
or what this machine does to the nodes from outside."""


@dataclass(frozen=True)
class Fault:
    """One fault, and the way back."""

    about: str
    targets: tuple[str, ...]
    """Roles or nodes it can be done to; the first unless told."""
    work: Work
    heal: Work = ""
    """What takes it back, empty where that is the program's work."""


def _reboot(which: Sequence[Node]) -> None:
    """Until the nodes answer again: what comes back later than that is the program's to wait for."""
    docker.docker("restart", "--time", "2", *(node.name for node in which), timeout=120)
    _back(which)


def _back(which: Sequence[Node]) -> None:
    deadline = time.monotonic() + nodes.BOOT_SECONDS
    for node in which:
        while not nodes.answers(node)[1]:
            if time.monotonic() > deadline:
                raise LabError(f"{node.name} does not come back", next_step="look at it: python -m lab status")
            processes.pause(0.5)


def _off(which: Sequence[Node]) -> None:
    docker.docker("stop", "--time", "2", *(node.name for node in which), timeout=120)


def _on(which: Sequence[Node]) -> None:
    docker.docker("start", *(node.name for node in which), timeout=120)
    _back(which)


def _fresh(which: Sequence[Node]) -> None:
    """Another machine under the same name and address: nothing on it, and its host key is not the known one."""
    known = access.KNOWN_HOSTS.read_text()
    for node in which:
        access.host_key(node).unlink()
    access.make(_silent)
    nodes.make(_silent, len(nodes.present()))
    access.KNOWN_HOSTS.write_text(known)


def _accept(_which: Sequence[Node]) -> None:
    """Know the nodes' host keys again, as `ssh-keygen -R` and one ssh by hand do."""
    access.make(_silent)


def _silent(_line: str) -> None:
    pass


def _cut(which: Sequence[Node], *, interface: str) -> None:
    """A link that is down when this returns, and comes back by itself; not over ssh, which may need it."""
    for node in which:
        docker.docker("exec", node.name, "ip", "link", "set", interface, "down")
        later = f"sleep {LINK_SECONDS}; ip link set {interface} up"
        docker.docker("exec", "--detach", node.name, "sh", "-c", later)


UNIT = "vllm-cluster.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
STALE = f"""
printf '[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n' > {UNIT_FILE}
systemctl daemon-reload
systemctl enable --now {UNIT}
"""
NOT_STALE = f"systemctl disable --now {UNIT}; rm -f {UNIT_FILE}; systemctl daemon-reload"
OTHER_IMAGE = f"""
other=$(docker create {layout.SERVING_IMAGE} true)
docker commit --change 'LABEL other=1' "$other" {layout.SERVING_IMAGE} >/dev/null
docker rm "$other" >/dev/null
"""
FOREIGN = """
name=$(docker inspect -f '{{.Name}}' "$id"); image=$(docker inspect -f '{{.Image}}' "$id")
docker rm -f "$id" >/dev/null
docker create --name "${name#/}" "$image" true >/dev/null
"""
PORT = """
docker rm -f "$id" >/dev/null
systemd-run --quiet --unit lab-foreign python3 -m http.server 30000
until ss -Hltn 'sport = :30000' | grep -q .; do systemctl -q is-active lab-foreign; done
"""
MODEL_CONFIG = f"{layout.MODELS_AT}/{model.NAME}/config.json"
LOOP = f"""
config={MODEL_CONFIG}
sed 's/"qwen3"/"qwen9"/' "$config" > /run/lab-config.json
mount --bind /run/lab-config.json "$config"
docker restart "$id"
"""

_ROLES, _NODES, BOTH = tuple(ROLES), tuple(node.name for node in reversed(NODES)), "both"
_HEAD_FIRST, _WORKER_FIRST = ("ray-head", "ray-worker", "serve"), ("ray-worker", "ray-head")
FAULTS: Mapping[str, Fault] = {
    "remove": Fault("its container is removed", _ROLES, 'docker rm -f "$id"'),
    "stop": Fault("its container is stopped", _ROLES, 'docker stop "$id"'),
    "kill": Fault("its container is killed through Docker", _ROLES, 'docker kill "$id"'),
    "crash": Fault("its first process dies", _ROLES, 'kill -9 "$(docker inspect -f {{.State.Pid}} "$id")"'),
    "freeze": Fault("its first process hangs (SIGSTOP)", ("serve", *_WORKER_FIRST), 'docker kill --signal STOP "$id"'),
    "errors": Fault(
        "its completions fail with 500 while /health is 200, until it is restarted",
        ("serve",),
        f'docker exec "$id" touch {errors.WANTED}',
    ),
    "loop": Fault(
        "its engine crashes at each load: the model is of a type that it does not know",
        ("serve",),
        LOOP,
        f"umount {MODEL_CONFIG}",
    ),
    "restart": Fault("Docker restarts its container", _HEAD_FIRST, 'docker restart "$id"'),
    "raylet": Fault("its raylet is killed", _WORKER_FIRST, 'docker exec "$id" pkill -9 -x raylet'),
    "hang": Fault(
        "its raylet hangs (SIGSTOP) until Ray declares the node dead",
        ("ray-worker",),
        f'docker exec "$id" pkill -STOP -x raylet; sleep {LINK_SECONDS + 5}',
    ),
    "link": Fault(
        f"the fabric link is down for {LINK_SECONDS} s",
        _NODES,
        partial(_cut, interface=FABRIC_INTERFACE),
        heal=_back,
    ),
    "management": Fault(
        f"the management link is down for {LINK_SECONDS} s",
        (NODES[0].name,),
        partial(_cut, interface=MANAGEMENT_INTERFACE),
        heal=_back,
    ),
    "reboot": Fault("the node reboots", (*_NODES, BOTH), work=_reboot),
    "off": Fault("the node is off", _NODES, work=_off, heal=_on),
    "fresh": Fault(
        "another machine has its name and address",
        _NODES[:1],
        work=_fresh,
        heal=_accept,
    ),
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
    "unit": Fault("a stale unit of an earlier set-up runs", _NODES, STALE, NOT_STALE),
    "foreign": Fault(
        "its container is gone, and one that is not ours has its name",
        ("serve", "ray-worker"),
        FOREIGN,
        f"docker rm -f {PREFIX}-$role",
    ),
    "port": Fault(
        "its container is gone, and a foreign process listens on its port",
        ("serve",),
        PORT,
        "systemctl stop lab-foreign",
    ),
    "untag": Fault("the image's name is removed", _NODES, f"docker rmi --force {layout.SERVING_IMAGE}"),
    "retag": Fault("another image has the name of ours", _NODES, OTHER_IMAGE),
}
"""By name."""


def inject(name: str, target: str | None = None, *, heal: bool = False) -> str:
    """Do it, or take it back; what was done, in a line.

    Raises:
        LabError: no such fault or target, nothing to heal, no lab, or the node does not do it.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise LabError(f"no fault {name!r}", next_step=f"one of: {', '.join(FAULTS)}")
    target = target or fault.targets[0]
    if target not in fault.targets:
        raise LabError(f"{name} cannot be done to {target!r}", next_step=f"one of: {', '.join(fault.targets)}")
    if heal and not fault.heal:
        raise LabError(f"{name} has nothing to take back", next_step="that is the program's work: pulumi up")
    if not access.is_up():
        raise LabError("the lab is down", next_step="bring it up: python -m lab up")
    which = NODES if target == BOTH else [ROLES.get(target) or next(node for node in NODES if node.name == target)]
    work = fault.heal if heal else fault.work
    if isinstance(work, str):
        _run(which[0], work, target if target in ROLES else None, find=not heal)
    else:
        work(which)
    return f"{target}: {'taken back: ' if heal else ''}{fault.about}"


def _run(node: Node, script: str, role: str | None, *, find: bool) -> None:
    given = [f"role={role}"] if role else []
    if role and find:
        given.append(f"id=$(docker ps -aq --filter label={LABEL}=$role)")
        given.append('[ -n "$id" ] || { echo "no $role here" >&2; exit 1; }')
    whole = "\n".join(["set -e", *given, script])
    processes.capture(access.ssh(node, "sudo", "sh", "-c", shlex.quote(whole)), timeout=120)
