"""The simulated Sparks: containers of the outer Docker with systemd, sshd and a Docker of their own."""

import concurrent.futures
import json
import time
from collections.abc import Callable

from lab import access, docker, engine, image, layout, network, processes
from lab.layout import DEFINITION_LABEL, ENGINE, FABRIC, MANAGEMENT, MODELS, MODELS_AT, OWNER, OWNER_LABEL, SPARKS, Node
from lab.processes import CommandFailedError, LabError

BOOT_SECONDS = 90.0
# Not --privileged: that asks for CAP_SYS_RESOURCE, which root may lack on the machine itself.
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_CHROOT", "SYS_PTRACE", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_TIME", "MKNOD", "LEASE"),
    *("AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "SYSLOG"),
)


def docker_volume(node: Node) -> str:
    """Volume that holds the node's own Docker."""
    return f"{node.name}-docker"


def create_arguments(node: Node) -> list[str]:
    """What follows `docker create`, without labels."""
    first = (MANAGEMENT.name, node.management) if node.management else (FABRIC.name, node.fabric)
    return [
        *("--name", node.name, "--hostname", node.name),
        *(option for name in CAPABILITIES for option in ("--cap-add", name)),
        *("--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined"),
        *("--security-opt", "apparmor=unconfined"),
        *("--device-cgroup-rule", "a *:* rwm", "--cgroupns", "private"),
        # The engine wants 160 MB of shared memory a rank and Ray its object store; Docker's default is 64 MB.
        *("--shm-size", "4g", "--tmpfs", "/run:exec", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec"),  # noqa: S108
        *("--volume", f"{docker_volume(node)}:/var/lib/docker"),
        *("--volume", f"{ENGINE}:/opt/venv:ro", "--volume", f"{MODELS}:{MODELS_AT}:ro"),
        *("--volume", f"{node.state}/cache:/opt/cache", "--volume", f"{node.state}/ssh:/etc/ssh/lab:ro"),
        *("--network", first[0], "--ip", str(first[1])),
        layout.NODE_IMAGE,
    ]


def definition(node: Node) -> str:
    """Hash of what the node shall be; a new engine below a running node would leave it a dead mount."""
    networks = [network.definition(each) for each in layout.NETWORKS]
    parts = (create_arguments(node), networks, image.node_definition(), engine.definition())
    return layout.digest(*parts, access.host_key(node).with_suffix(".pub").read_text())


def as_defined(node: Node) -> bool:
    """Whether the container exists, is this checkout's, and was made from this definition."""
    found = docker.inspect("container", node.name)
    if found is None:
        return False
    marks = docker.labels("container", found)
    attached = {FABRIC.name, *((MANAGEMENT.name,) if node.management else ())}
    return (
        marks.get(OWNER_LABEL) == OWNER
        and marks.get(DEFINITION_LABEL) == definition(node)
        and attached <= set(found["NetworkSettings"]["Networks"])
    )


def running(node: Node) -> str:
    """When the node booted; empty when it does not run."""
    found = docker.inspect("container", node.name)
    return str(found["State"]["StartedAt"]) if found is not None and found["State"]["Running"] else ""


def answers(node: Node) -> tuple[bool, bool, str]:
    """Whether ssh answers, whether the node's Docker answers, and what was said instead."""
    asked = "docker version --format '{{.Server.Version}}' || exit 3"
    try:
        said = processes.capture(access.ssh(node, asked, connect_timeout=2), timeout=20)
    except CommandFailedError as error:
        return error.code == 3, False, error.evidence
    return True, True, said.strip()


def present() -> list[Node]:
    """Nodes of this checkout that are there, whatever their state."""
    own = f"label={OWNER_LABEL}={OWNER}"
    names = docker.docker("container", "ls", "--all", "--filter", own, "--format", "{{.Names}}").split()
    return [node for node in SPARKS if node.name in names]


def ready(count: int) -> bool:
    """Whether the first so many nodes are as defined, run, and answer as the operator asks, and no others are there."""
    wanted = SPARKS[:count]
    if set(present()) - set(wanted) or not all(as_defined(node) and running(node) for node in wanted):
        return False
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return all(docker_ok for _, docker_ok, _ in pool.map(answers, wanted))


def _remove(node: Node) -> None:
    found = docker.inspect("container", node.name)
    if found is not None:
        if OWNER_LABEL not in docker.labels("container", found):
            raise LabError(
                f"a container {node.name} exists that is not the lab's",
                next_step=f"remove or rename it: docker rename {node.name} {node.name}-other",
            )
        docker.remove("container", [node.name])
    if docker.inspect("volume", docker_volume(node)):
        docker.remove("volume", [docker_volume(node)])


def _create(node: Node) -> None:
    (node.state / "cache").mkdir(parents=True, exist_ok=True)
    marks = ["--label", f"{OWNER_LABEL}={OWNER}", "--label", f"{DEFINITION_LABEL}={definition(node)}"]
    docker.docker("volume", "create", *marks, docker_volume(node))
    docker.docker("create", *marks, *create_arguments(node))
    if node.management:
        docker.docker("network", "connect", "--ip", node.fabric, FABRIC.name, node.name)


def _boot_log(node: Node) -> str:
    try:
        return docker.docker("exec", node.name, "systemctl", "--failed", "--no-legend", "--plain", timeout=10)
    except LabError as error:
        return error.evidence


def make(note: Callable[[str], None], count: int) -> None:
    """Create the nodes that are missing or other than defined, start them, and wait until they answer.

    Args:
        note: takes a line for the user.
        count: how many there shall be; those beyond are removed.
    """
    wanted = SPARKS[:count]
    for node in present():
        if node not in wanted:
            note(f"removing {node.name}")
            _remove(node)
    for node in wanted:
        if not as_defined(node):
            note(f"creating {node.name}")
            _remove(node)
            _create(node)
        if not running(node):
            docker.docker("start", node.name)
    deadline = time.monotonic() + BOOT_SECONDS
    for node in wanted:
        while True:
            ssh_ok, docker_ok, said = answers(node)
            if docker_ok:
                break
            note(f"{node.name}: ssh {'answers' if ssh_ok else 'does not answer'}, its Docker does not answer yet")
            if time.monotonic() > deadline or not running(node):
                raise LabError(
                    f"{node.name} did not boot",
                    evidence=f"{said}\n{_boot_log(node)}",
                    next_step=f"look inside: docker exec -it {node.name} journalctl -b, docker logs {node.name}",
                )
            processes.pause(0.3)


def boot_id(node: Node) -> str:
    """Changes whenever the node boots."""
    return docker.docker("exec", node.name, "cat", "/proc/sys/kernel/random/boot_id", timeout=10)


def remove_all() -> None:
    """Remove all containers and volumes of this checkout's lab."""
    docker.remove("container", docker.labelled("container"))
    docker.remove("volume", docker.labelled("volume"))


def describe(node: Node) -> dict[str, object]:
    """What `status` tells of a node."""
    booted = running(node)
    if not booted:
        return {"running": False, "ssh": False, "docker": False, "booted": None}
    ssh_ok, docker_ok, said = answers(node)
    found = json.dumps(said)[1:-1]
    shown = {"running": True, "ssh": ssh_ok, "docker": docker_ok, "booted": booted, "as_defined": as_defined(node)}
    return {**shown, "docker_version" if docker_ok else "error": found}
