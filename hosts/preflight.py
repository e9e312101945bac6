"""What stands in the way before anything is created: every fault of every node at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from hosts import ownership
from hosts.faults import Fault
from hosts.ssh import ByHand, Connection
from hosts.stale import Stale
from hosts.survey import Container, GpuProcess, Listener, Survey
from hosts.weights.plan import check_node
from settings import NEEDED_UNITS, Cluster, Node

DOCKER_UNIT = "docker.service"
ADD = "add it to `{}` (a list there replaces the default: name those too that shall stay in it)"
IDLE_MIB = 64
"""GPU memory that does not count as held: an idle desktop showed 18 MiB (Xorg, gnome-shell) in the field case."""


def check(cluster: Cluster, stack: str, surveys: Mapping[str, Survey]) -> list[Fault]:
    """All faults of single nodes that the surveys show."""
    faults: list[Fault] = []
    for node in cluster.nodes:
        if node.name in surveys:
            facts = surveys[node.name]
            by_hand = Connection.of(cluster, node).by_hand
            faults += _shell(node, facts)
            faults += _docker(node, facts, by_hand)
            faults += _gpus(cluster, node, facts, by_hand)
            stale = Stale.of(cluster.of(node), facts)
            faults += _sudo(node, facts, stale, by_hand)
            faults += _mounts(node, facts)
            faults += _containers(node, ownership.name(cluster.of(node).container_prefix, stack, ""), stack, facts)
            if not facts.docker.error:  # else what runs in a container of ours looks like anybody's
                faults += _occupants(node, facts, stale, by_hand)
                if node == cluster.head:
                    faults += _ports(cluster, stack, facts, stale, by_hand)
            faults += check_node(cluster, node, facts) if cluster.model else ()
    return faults


def runs_containers(facts: Survey) -> bool:
    """Whether a container with the GPUs and mounts of the settings can start on a node: that asks an image."""
    return not (facts.docker.error or facts.docker.gpu_runtimes == () or not facts.gpus or facts.missing)


def _shell(node: Node, facts: Survey) -> Iterator[Fault]:
    """What it prints before a command's output would be taken for that, by Docker's own client over ssh too."""
    if facts.noise:
        yield Fault(
            node.name,
            "the login shell prints text before each command's output",
            "let ~/.bashrc and what it reads print for people only; as its first line: [[ $- == *i* ]] || return",
            facts.noise,
        )


def _docker(node: Node, facts: Survey, by_hand: ByHand) -> Iterator[Fault]:
    error = facts.docker.error
    if not error:
        if facts.docker.gpu_runtimes == ():
            yield Fault(
                node.name,
                "Docker cannot grant GPUs to containers: no NVIDIA runtime, hook or CDI device",
                by_hand(
                    "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure "
                    "--runtime=docker && sudo systemctl restart docker"
                ),
            )
        return
    remedy = f"start it: {by_hand('sudo systemctl start docker')}"
    if "not installed" in error:
        remedy = f"install Docker on the node: {by_hand('sudo apt-get install docker.io')}"
    elif "timed out" in error:
        remedy = f"it hangs: {by_hand('sudo systemctl restart docker')}"
    elif "may not" in error:
        remedy = f"{by_hand('sudo usermod -aG docker $USER')}, then log in anew"
    yield Fault(node.name, error, remedy)


def _gpus(cluster: Cluster, node: Node, facts: Survey, by_hand: ByHand) -> Iterator[Fault]:
    told = any("--num-gpus" in argument for argument in (*cluster.ray.arguments, *node.ray_arguments))
    if len(facts.gpus) < node.gpus or (len(facts.gpus) > node.gpus and not told):
        yield Fault(
            node.name,
            f"{node.gpus} GPU(s) wanted, nvidia-smi shows {len(facts.gpus)}",
            f"correct `gpus` of the node, or look at the driver: {by_hand('nvidia-smi')}",
            facts.gpu_error or "\n".join(gpu.name for gpu in facts.gpus),
        )


def _sudo(node: Node, facts: Survey, stale: Stale, by_hand: ByHand) -> Iterator[Fault]:
    """Programs that preparation needs as root, and cannot have."""
    for program in facts.refused:
        path = "/usr/sbin/sysctl"
        needed = "the page cache cannot be dropped"
        otherwise = "set `drop_page_cache: false`"
        if program == "systemctl":
            units, path = shlex.join(unit.name for unit in stale.units), "/usr/bin/systemctl"
            needed = f"stale units cannot be stopped ({units})"
            otherwise = f"stop them by hand: {by_hand(f'sudo systemctl disable --now {units}')}"
        allow = f'echo "$USER ALL=(root) NOPASSWD: {path}" | sudo tee /etc/sudoers.d/spark-{program}'
        yield Fault(
            node.name,
            f"sudo {program} asks for a password: {needed}",
            f"{otherwise}; or allow it on the node: {by_hand(allow)}",
        )


def _occupants(node: Node, facts: Survey, stale: Stale, by_hand: ByHand) -> Iterator[Fault]:
    """Who holds a GPU, is of no stack, and does not go with what is stale; another stack is told by its containers."""
    containers = {container.id: container for container in facts.docker.containers}
    for process in facts.gpu_processes:
        container = containers.get(process.container)
        if container and container.labels.get("stack"):
            continue
        if stale.holds(process.container, process.unit) or (process.mib is not None and process.mib < IDLE_MIB):
            continue
        held, stop = _holder(process, container, by_hand)
        memory = "an unknown amount of memory" if process.mib is None else f"{process.mib} MiB"
        yield Fault(node.name, f"the GPU is held by {process.name} ({held}) with {memory}", f"stop it: {stop}")


def _holder(process: GpuProcess | Listener, container: Container | None, by_hand: ByHand) -> tuple[str, str]:
    """What is known of a process, and what stops it; both empty where only root may know."""
    held = [f"pid {process.pid}"] if process.pid else []
    stop = by_hand(f"sudo kill {process.pid}") if process.pid else ""
    if container:
        held.append(f"container {container.name}")
        stop = f"{by_hand(f'docker stop {container.name}')}; or have it removed: {ADD.format('stale_containers')}"
    elif process.unit:
        held.append(f"unit {process.unit}")
        if process.unit not in NEEDED_UNITS:  # else the process alone: without the unit nobody reaches the node
            stop = by_hand(f"sudo systemctl disable --now {shlex.quote(process.unit)}")
            stop += f"; or have it stopped: {ADD.format('stale_units')}"
    return ", ".join(held), stop


def _mounts(node: Node, facts: Survey) -> Iterator[Fault]:
    for path in facts.missing:
        yield Fault(node.name, f"mount source {path} does not exist", "create it, or correct `mounts`")


def _containers(node: Node, prefix: str, stack: str, facts: Survey) -> Iterator[Fault]:
    for container in facts.docker.containers:
        owner = container.labels.get("stack")
        if owner is None and container.name.startswith(prefix):
            yield Fault(
                node.name,
                f"container {container.name} has a name of this stack but is not ours (no labels)",
                f"remove or rename it yourself: docker rename {container.name} OTHER",
            )
        elif owner not in (None, stack) and container.state in ("running", "restarting", "paused"):
            yield Fault(
                node.name,
                f"stack {owner!r} already runs {container.labels.get('role')} here ({container.name})",
                f"one stack per set of hosts: pulumi destroy -s {owner} first",
            )


def _ports(cluster: Cluster, stack: str, facts: Survey, stale: Stale, by_hand: ByHand) -> Iterator[Fault]:
    """Who listens on the head where we must; a worker has no port that is known beforehand."""
    roles = {"ray.port": "ray-head", "port": "serve"}
    containers = {container.id: container for container in facts.docker.containers}
    ours = {one.labels.get("role"): one for one in containers.values() if one.labels.get("stack") == stack}
    told: set[Listener] = set()
    for listener in facts.listeners:
        anywhere = listener.model_copy(update={"address": ""})
        if anywhere in told:  # one process may listen on IPv4 and on IPv6
            continue
        told.add(anywhere)
        if stale.holds(listener.container, listener.unit):
            continue
        setting = cluster.ports[listener.port]
        own, container = ours.get(roles[setting]), containers.get(listener.container)
        # Without root the process is not shown, and Docker's unit is all that a cgroup says where v1 and v2 are mixed:
        # then the living container of that role is taken to own its port.
        unknown = listener.pid is None and container is None and listener.unit in ("", DOCKER_UNIT)
        if container and container.labels.get("stack", stack) != stack:
            continue  # that stack is told itself
        if own and (container == own or (unknown and own.state in ("running", "paused"))):
            continue
        held, stop = _holder(listener, container, by_hand)
        who = (listener.process or "a process of another user") + (f" ({held})" if held else "")
        stop = stop or by_hand(f'sudo ss -ltnp "sport = :{listener.port}"') + " shows it"
        yield Fault(
            cluster.head.name,
            f"port {listener.port} is taken by {who} on {listener.address}",
            # Without sshd nobody reaches the node.
            ("" if listener.process == "sshd" else f"stop it: {stop}; or ") + f"choose another `{setting}`",
        )
