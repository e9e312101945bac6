"""What must fit together, across the fields of a model. Each check yields a place below its model, and a text."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from settings.fields import Place

if TYPE_CHECKING:
    from settings.cluster import Cluster, Node
    from settings.host import Overridable

MOST_NAMED = 12
"""Names that a message lists; docs/settings.md has them all."""
Faults = Iterator[tuple[Place, str]]

RESERVED_ENVIRONMENT = frozenset({"RAY_ADDRESS", "VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_RPC_BASE_PATH"})
SECRETS = "dgx-spark-cluster:secretEnvironment"
# NCCL_IB_PKEY is a number.
SECRET = re.compile(r"(TOKEN|(?<!_P)KEY|PASSWORD|PASSWD|[_-]PASS|[_-]PAT|SECRET)(_?\d+)?$", re.IGNORECASE)
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")

NEEDED_UNITS = frozenset(
    f"{name}.{kind}" for name in ("containerd", "docker", "ssh", "sshd") for kind in ("service", "socket")
)
"""Units by which the program reaches a node; none of them can be stale."""

ENGINE_FLAGS = {
    "--model": "model",
    "--host": "listen",
    "--port": "port",
    "--served-model-name": "served_model_name",
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
    "--distributed-executor-backend": None,
    # Tensor × pipeline size takes all GPUs, by Ray.
    "--data-parallel-size": None,
    "-dp": None,
    "--headless": None,
    "--nnodes": None,
    "-n": None,
}
"""Flags of the engine that the program gives, and the setting for each; None where it is no choice."""
RAY_FLAGS = {
    "--port": "ray.port",
    "--include-dashboard": "ray.dashboard",
    "--object-store-memory": "ray.object_store_bytes",
    "--head": None,
    "--address": None,
    "--node-ip-address": None,
    "--block": None,
}
"""The same of `ray start`."""
DASHBOARD_PORT = 8265
"""Of Ray's dashboard where nothing else is said."""
SSH_PORT = 22
PORT = re.compile(r"[0-9]{1,5}")


def suggest(wrong: str, known: Iterable[str]) -> str:
    """The nearest of what is known, or all of it where that can be overseen, to append to a message."""
    names = list(known)
    if close := near(wrong, names):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= MOST_NAMED else ""


def near(wrong: str, known: Iterable[str]) -> list[str]:
    """The one that was probably meant, if any."""
    return difflib.get_close_matches(wrong, list(known), n=1)


def host_faults(host: Overridable) -> Faults:
    """Faults within what may be given for the cluster or for a node."""
    for name, value in host.environment.items():
        yield from ((("environment", name), text) for text in environment_faults(name))
        if name not in RESERVED_ENVIRONMENT and (SECRET.search(name) or PASSWORD_IN_URL.search(value)):
            command = f"pulumi config set --secret --path '{SECRETS}.{name}'"
            yield ("environment", name), f"environment {name} looks like a secret: remove it, then {command}"
    for name in host.labels:
        if name.startswith("dgx-spark-cluster."):
            yield (
                ("labels", name),
                "labels that begin with dgx-spark-cluster. are the program's own: choose another name",
            )
    for setting, entries in (("mounts", host.mounts), ("ulimits", host.ulimits)):
        for key, times in Counter(entry.key for entry in entries).items():
            if times > 1:
                yield (setting,), f"{key} is given {times} times: keep one"
    for index, unit in enumerate(host.stale_units):
        if unit in NEEDED_UNITS:
            yield ("stale_units", index), f"the program reaches the node by {unit}: remove it"
    for index, limit in enumerate(host.ulimits):
        if limit.hard != -1 and not -1 < limit.soft <= limit.hard:
            yield ("ulimits", index, "soft"), f"must not be above the hard limit {limit.hard}, got {limit.soft}"


def environment_faults(name: str) -> Iterator[str]:
    """Why a variable is not the user's to set."""
    if name == "VLLM_API_KEY":
        yield "environment VLLM_API_KEY is set by the program: remove it, then pulumi config set --secret apiKey"
    elif name in RESERVED_ENVIRONMENT:
        yield f"environment {name} is set by the program from live facts: remove it"


def node_faults(node: Node) -> Faults:
    """Faults within one node."""
    if node.local:
        for setting in ("jump", "ssh_port", "identity_file"):
            if getattr(node, setting) is not None:
                yield (setting,), f"a local node is not reached over ssh: remove `{setting}`"
    if node.port is not None:
        if not 1 <= node.port <= 65535:
            yield ("ssh",), f"ssh port {node.port} is not in 1…65535"
        if node.ssh_port is not None:
            yield ("ssh_port",), f"`ssh` already says port {node.port}: keep one of both"
    yield from _arguments(("ray_arguments",), node.ray_arguments, RAY_FLAGS)


def cluster_faults(cluster: Cluster, doubtful: Collection[str]) -> Faults:
    """Faults across the cluster; those of its parts have been found before.

    Args:
        cluster: what is checked.
        doubtful: names of settings that were wrong and have a default now: no check that depends on one speaks.
    """
    for inputs, check in CHECKS:
        if inputs.isdisjoint(doubtful):
            yield from check(cluster)


def _sources(cluster: Cluster) -> Faults:
    """The model and the image are something, and come from one place."""
    if cluster.model and cluster.model_name in ("", "..", "~"):
        yield ("model",), f"must be the directory of one model, got {cluster.model!r}"
    if cluster.image_build and cluster.image_archive:
        yield ("image_build",), "image_archive is another source of the same image: remove one of them"
    if cluster.image_build and ("@" in cluster.image or cluster.image.startswith("sha256:")):
        yield ("image",), f"what image_build builds cannot be pinned beforehand: give it a tag, got {cluster.image!r}"


def _ports(cluster: Cluster) -> Faults:
    """No two of the head's ports are one."""
    dashboard = _dashboard_port(cluster) if cluster.ray.dashboard else None
    if cluster.serve and cluster.port == cluster.ray.port:
        yield ("port",), f"port and ray.port are both {cluster.port}: give them different ports"
    if cluster.serve and cluster.port == dashboard:
        yield ("port",), f"port and that of Ray's dashboard are both {dashboard}: give them different ports"
    if cluster.ray.port == dashboard:
        yield ("ray", "port"), f"ray.port and that of Ray's dashboard are both {dashboard}: give them different ports"
    own = {cluster.ray.port: "ray.port", **({cluster.port: "port"} if cluster.serve else {})}
    for flag, port in _ray_ports(cluster).items():
        if port in own and flag != "--dashboard-port":
            yield ("ray", "arguments"), f"{flag} and {own[port]} are both {port}: give them different ports"


def _ray_ports(cluster: Cluster) -> dict[str, int]:
    """Ports that the arguments give Ray on the head, by flag."""
    arguments = (*cluster.ray.arguments, *cluster.head.ray_arguments)
    words = [word for argument in arguments for word in argument.split("=", 1)]
    given = ((dashed(flag), value) for flag, value in pairwise(words) if PORT.fullmatch(value))
    return {flag: int(value) for flag, value in given if flag.startswith("--") and flag.endswith("-port")}


def _dashboard_port(cluster: Cluster) -> int:
    """Port of Ray's dashboard on the head: that of the arguments, else Ray's own default."""
    return _ray_ports(cluster).get("--dashboard-port", DASHBOARD_PORT)


def _names(cluster: Cluster) -> Faults:
    names: set[str] = set()
    for index, node in enumerate(cluster.nodes):
        if node.name in names:
            yield ("nodes", index, "name"), f"two nodes are named {node.name!r}: names must be unique"
        names.add(node.name)


def _addresses(cluster: Cluster) -> Faults:
    first: dict[object, str] = {}
    for index, node in enumerate(cluster.nodes):
        if node.fabric and first.setdefault(node.fabric, node.name) != node.name:
            yield ("nodes", index, "fabric"), f"node {first[node.fabric]} has the fabric address {node.fabric} too"


def _hosts(cluster: Cluster) -> Faults:
    """One host is one node. Behind different jump hosts one address may be two machines, as on two ports."""
    first: dict[tuple[str | None, str, int], str] = {}
    for index, node in enumerate(cluster.nodes):
        host = node.jump, node.host, node.port or cluster.of(node).ssh_port or SSH_PORT
        if first.setdefault(host, node.name) != node.name:
            yield ("nodes", index, "ssh"), f"node {first[host]} is on {node.host} too: one host is one node"


def _jumps(cluster: Cluster) -> Faults:
    """Every jump host is another node that is reached over ssh, and no way leads in a circle."""
    nodes = {node.name: node for node in cluster.nodes}
    for index, node in enumerate(cluster.nodes):
        place = ("nodes", index, "jump")
        if node.jump is None:
            continue
        if node.jump not in nodes:
            yield place, f"jump {node.jump!r} is not a node{suggest(node.jump, [n for n in nodes if n != node.name])}"
        elif nodes[node.jump].local:
            yield place, f"{node.jump!r} is the local machine: remove `jump`"
        else:
            way = [node.name]
            following: str | None = node.jump
            while following in nodes and following not in way:
                way.append(following)
                following = nodes[following].jump
            if following == node.name:
                yield place, f"the jump hosts form a circle: {' → '.join([*way, following])}"


def _shared_memory(cluster: Cluster) -> Faults:
    """A size has an effect, and Ray's object store fits into it."""
    shared = [cluster.of(node).ipc == "shared" for node in cluster.nodes]
    useless = "has no effect on the host's /dev/shm: remove it, or `ipc: host`"
    if "shm_size_mib" in cluster.model_fields_set and not any(shared):
        yield ("shm_size_mib",), useless
    for index, node in enumerate(cluster.nodes):
        place: Place = (
            ("nodes", index, "shm_size_mib") if "shm_size_mib" in node.model_fields_set else ("shm_size_mib",)
        )
        size = cluster.of(node).shm_size_mib
        if not shared[index]:
            if len(place) > 1:
                yield place, useless
        elif size * 2**20 <= cluster.ray.object_store_bytes:
            yield place, f"{size} MiB cannot hold ray.object_store_bytes ({cluster.ray.object_store_bytes} bytes)"


def _stale(cluster: Cluster) -> Faults:
    """No container of ours is stale."""
    for index, node in enumerate(cluster.nodes):
        own = cluster.of(node)
        place: Place = ("nodes", index) if "stale_containers" in node.model_fields_set else ()
        for number, name in enumerate(own.stale_containers):
            if name.startswith(f"{own.container_prefix}-"):
                yield (*place, "stale_containers", number), f"{name} is a name of the program's own: remove it"


def _arguments(place: Place, arguments: Iterable[str], own: Mapping[str, str | None]) -> Faults:
    """Arguments that a setting is for, and secrets, which every user of the node would see in its process list."""
    for index, argument in enumerate(arguments):
        flag = dashed(argument.partition("=")[0])
        if reason := refusal(flag, own):
            yield (*place, index), f"{flag} {reason}"


def dashed(flag: str) -> str:
    """A long flag with dashes in its name, for which vLLM takes underscores too."""
    return f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag


def refusal(flag: str, own: Mapping[str, str | None]) -> str | None:
    """Why a flag is not the user's to give, to be said after it; None where it is."""
    if flag in own:
        return f"is set from `{own[flag]}`: set that" if own[flag] else "is the program's own choice: remove it"
    if flag.startswith("--") and SECRET.search(flag):
        remedy = "pulumi config set --secret apiKey" if flag == "--api-key" else "give it in `secretEnvironment`"
        return f"would be seen by every user of the node: {remedy}"
    return None


def _given_arguments(cluster: Cluster) -> Faults:
    yield from _arguments(("engine_arguments",), cluster.engine_arguments, ENGINE_FLAGS)
    yield from _arguments(("ray", "arguments"), cluster.ray.arguments, RAY_FLAGS)


def _model_mount(cluster: Cluster) -> Faults:
    """The model's directory is mounted by the program alone."""
    for place, host in ((), cluster), *((("nodes", i), node) for i, node in enumerate(cluster.nodes)):
        for index, mount in enumerate(host.mounts):
            if mount.key == cluster.model_root:
                yield (*place, "mounts", index, "target"), "the model is mounted there by the program: remove the mount"


def _sizes(cluster: Cluster) -> Faults:
    """Tensor × pipeline size is the number of GPUs."""
    tensor, stages, gpus = cluster.tensor_parallel_size, cluster.pipeline_parallel_size, cluster.gpus
    if not cluster.serve or cluster.tensor_parallel * stages == gpus:
        return
    fits = ", ".join(f"{gpus // size} × {size}" for size in range(1, gpus + 1) if gpus % size == 0)
    asked = (
        f"tensor_parallel_size {tensor} × pipeline_parallel_size {stages} = {tensor * stages}"
        if tensor
        else f"pipeline_parallel_size is {stages}"
    )
    yield (
        ("tensor_parallel_size" if tensor else "pipeline_parallel_size",),
        f"{asked}, but the nodes have {gpus} GPUs; sizes that fit (tensor × pipeline): {fits}",
    )


CHECKS: tuple[tuple[frozenset[str], Callable[[Cluster], Faults]], ...] = (
    (frozenset({"name"}), _names),
    (frozenset({"fabric"}), _addresses),
    (frozenset({"ssh", "ssh_port", "jump"}), _hosts),
    (frozenset({"name", "jump"}), _jumps),
    (frozenset({"ipc", "shm_size_mib", "ray", "object_store_bytes"}), _shared_memory),
    (frozenset({"stale_containers", "container_prefix"}), _stale),
    (frozenset({"image", "image_archive", "image_build", "model", "served_model_name"}), _sources),
    (frozenset({"serve", "port", "ray", "arguments", "ray_arguments", "dashboard"}), _ports),
    (frozenset({"serve", "gpus", "tensor_parallel_size", "pipeline_parallel_size"}), _sizes),
    (frozenset({"model"}), _model_mount),
    (frozenset(), _given_arguments),
)
"""Settings that a check depends on, and the check."""
