"""Live facts of all nodes, asked in parallel, one read-only ssh round trip each, and what is wrong with them."""

from __future__ import annotations

import ipaddress
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from hosts.bundle import bundle
from hosts.facts import Clock, Fact, Hca, Memory, Reached, Room
from hosts.faults import Fault
from hosts.images.identity import Image, names
from hosts.ssh import Connection, Unreached
from hosts.weights import look as model_look
from hosts.weights.files import ModelFiles
from settings import Cluster, Node

SCRIPT = Path(__file__).with_name("survey_script.py")
HARDWARE = Path(__file__).with_name("survey_hardware.py")
"""Second part of the script."""
PYTHON = ("python3", "-I", "-S", "-")
"""Isolated and without its site packages: a sixth of its time less, and nothing that a user installed is run."""
LOGIN_POLL_SECONDS = 0.02
"""Within this time it is noticed that a jump host has let us in; to look costs microseconds."""


class Container(Fact):
    """A container of the node, ours or not."""

    id: str
    name: str
    image: str
    state: str
    labels: dict[str, str]
    """Our labels only, without their prefix: stack, role, node."""


class Docker(Fact):
    """The node's Docker engine; `error` says why it cannot be used."""

    error: str = ""
    version: str | None = None
    driver: str | None = None
    containerd: bool = False
    """Images are in the containerd store, where their ids are digests of manifests."""
    image: Annotated[Image | None, BeforeValidator(lambda found: found and Image.of_inspect(found))] = None
    """The image that the settings name, if it is there under that name."""
    images: int | None = None
    """How many images there are, under whatever name; None where that is not known."""
    containers: tuple[Container, ...] = ()
    gpu_runtimes: tuple[str, ...] | None = None
    """Ways by which Docker can grant GPUs: runtime, hook, CDI; None where that is not known."""

    @property
    def image_id(self) -> str | None:
        """Docker's id of that image."""
        return self.image.id if self.image else None


class Interface(Fact):
    """A network interface that is up."""

    name: str
    addresses: tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]
    mtu: int | None
    speed: int | None
    """Mbit/s, None where the driver does not say."""
    state: str = ""
    """As `ip link` shows it: UP, DOWN (no cable), UNKNOWN (virtual ones); empty where it is not known."""

    @property
    def down(self) -> bool:
        """Whether it has no carrier, for all its addresses."""
        return self.state in ("DOWN", "LOWERLAYERDOWN")


class Gpu(Fact):
    """A GPU as nvidia-smi lists it."""

    index: int
    name: str
    uuid: str


class GpuProcess(Fact):
    """A process that computes on a GPU."""

    pid: int
    name: str
    mib: int | None
    """GPU memory it holds, None where nvidia-smi does not say."""
    container: str
    """Docker's id of its container, or empty."""
    unit: str
    """Its systemd unit, or empty."""


class Listener(Fact):
    """A process that listens on a port we need; empty fields where only root may know."""

    port: int
    address: str
    process: str
    pid: int | None
    container: str
    unit: str = ""


class Unit(Fact):
    """A systemd unit that the settings call stale, and that runs or would after the next boot."""

    name: str
    active: str
    """ActiveState: active, activating, inactive, failed and others."""
    enabled: str
    """UnitFileState: enabled, enabled-runtime, disabled, static, masked and others."""

    @property
    def runs(self) -> bool:
        """Whether it is more than enabled."""
        return self.active not in ("inactive", "failed")


class Survey(Fact):
    """All facts of one node."""

    hostname: str
    architecture: str
    docker: Annotated[Docker, BeforeValidator(lambda value: value or {})]
    gpus: tuple[Gpu, ...]
    gpu_error: str
    gpu_processes: tuple[GpuProcess, ...]
    interfaces: tuple[Interface, ...]
    hcas: tuple[Hca, ...]
    listeners: tuple[Listener, ...]
    model: ModelFiles
    missing: tuple[str, ...]
    """Configured mount sources that do not exist."""
    devices: tuple[str, ...]
    """Configured device paths that exist."""
    units: tuple[Unit, ...] = ()
    """Stale units that are alive."""
    refused: tuple[str, ...] = ()
    """Programs that preparation needs as root, and for which sudo asks a password."""
    home: str = ""
    """What `~` means in paths of the settings."""
    os: str = ""
    kernel: str = ""
    memory: Memory | None = None
    image_room: Room | None = None
    """Where Docker keeps images."""
    model_room: Room | None = None
    """Where the model is or shall be."""
    models: tuple[str, ...] = ()
    """Models in the directory where the wanted one is or shall be."""
    clock: Clock | None = None
    reached: Reached | None = None
    noise: str = ""
    """What the login shell printed before the answer."""

    def path(self, written: str) -> str:
        """Where a path of the settings is on this node."""
        return f"{self.home}{written[1:]}" if written.startswith("~/") else written


def script(question: dict[str, Any]) -> str:
    """What a node's Python runs to answer."""
    parts = f"{SCRIPT.read_text()}\n{HARDWARE.read_text()}\n{bundle(model_look)}"
    return f"{parts}\nmain({question!r}, hardware, module.look)\n"


def survey(cluster: Cluster, node: Node) -> Survey:
    """Ask one node; raises Fault when it cannot be asked."""
    own = cluster.of(node)
    question = {
        "home": own.home,
        "images": list(names(cluster.image)),
        "model": cluster.model_path,
        "revision": cluster.weights.revision,
        "ports": list(cluster.ports) if node == cluster.head else [],
        "paths": [mount.source for mount in own.mounts],
        "devices": list(own.devices),
        "units": list(own.stale_units),
        "sudo": ["sysctl"] if own.drop_page_cache else [],
    }
    connection = Connection.of(cluster, node)
    asked = time.time()
    done = connection.run(*PYTHON, stdin=script(question), timeout=cluster.deadlines.survey)
    answered = time.time()
    try:
        noise, _, told = done.stdout.strip().rpartition("\n")
        found = Survey.model_validate_json(told)
        reached = Reached.between(asked, answered, found.clock) if found.clock else None
        return found.model_copy(update={"reached": reached, "noise": noise})
    except ValueError:
        if done.returncode == 127:
            raise Fault(node.name, "no python3 on the node", "install it: sudo apt-get install python3") from None
        raise Fault(
            node.name,
            f"the survey failed with exit code {done.returncode}",
            f"look at the node: {connection.by_hand()}",
            done.stderr or done.stdout,
        ) from None


def survey_all(cluster: Cluster) -> tuple[dict[str, Survey], list[Fault]]:
    """Ask all nodes at once: the facts by node name, and one fault for each node that could not be asked.

    What is behind a jump host waits for that one's login, and rides on its connection: each a login of its own would
    take as long, and sshd takes no more than ten at a time.
    """
    asked: dict[str, Future[Survey | Fault]] = {}
    opened: dict[str, Future[Unreached | None]] = {}

    def ask(node: Node) -> Survey | Fault:
        if node.jump and (closed := opened[node.jump].result()):
            return Connection.of(cluster, node).behind(closed)
        try:
            return survey(cluster, node)
        except Fault as fault:
            return fault

    with ThreadPoolExecutor(max_workers=2 * len(cluster.nodes)) as pool:
        for node in sorted(cluster.nodes, key=lambda one: len(cluster.route(one))):  # jump hosts before what is behind
            asked[node.name] = pool.submit(ask, node)
            if any(other.jump == node.name for other in cluster.nodes):
                opened[node.name] = pool.submit(_opened, Connection.of(cluster, node), asked[node.name])
    answers = {node.name: asked[node.name].result() for node in cluster.nodes}
    facts = {name: answer for name, answer in answers.items() if isinstance(answer, Survey)}
    return facts, [answer for answer in answers.values() if isinstance(answer, Fault)]


def _opened(connection: Connection, asked: Future[Survey | Fault]) -> Unreached | None:
    """Wait until a node that is being asked has let us in, or is not reached, and why."""
    while not asked.done() and not connection.is_open:
        wait([asked], LOGIN_POLL_SECONDS)
    answer = asked.result() if asked.done() else None
    return answer if isinstance(answer, Unreached) else None


def dump(facts: Survey) -> dict[str, Any]:
    """The facts that decide something and do not vary from run to run, for Pulumi's state."""
    return {
        "hostname": facts.hostname,
        "architecture": facts.architecture,
        "docker": facts.docker.version,
        "gpus": [gpu.name for gpu in facts.gpus],
    }
