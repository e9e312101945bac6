"""Rules on one resource, judged by its inputs before anything is done with it.

Each rule yields one text per violation: where, what, the next step.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from hosts.ownership import PREFIX
from policies.registered import CONTAINER, NODE_IMAGE, UNKNOWN, Registered, Unknown

DOCKER_SOCKETS = (PurePosixPath("/run/docker.sock"), PurePosixPath("/var/run/docker.sock"))
ALL_POWERFUL = {"ALL", "SYS_ADMIN"}
PINNED = re.compile(r"(^|@)sha256:[0-9a-f]{64}$")
API_KEY = "VLLM_API_KEY"


def owned(resource: Registered) -> Iterator[str]:
    """Every container carries its stack, role and node as labels: destroy finds what is ours by them."""
    if resource.type != CONTAINER or resource.labels is UNKNOWN:
        return
    for key in ("stack", "role", "node"):
        if not resource.label(key):
            yield resource.violation(
                f"has no label {PREFIX}.{key}, so nobody can tell that it is ours",
                "create it with Node.container, or add the labels of hosts.ownership.labels",
            )
    if resource.label("stack") not in {resource.stack, UNKNOWN, None, ""}:
        yield resource.violation(
            f"its label {PREFIX}.stack says {resource.label('stack')}, but the stack is {resource.stack}",
            "give hosts.ownership.labels the name of the stack",
        )


def on_its_node(resource: Registered) -> Iterator[str]:
    """Every container is on the Docker provider that is named as its node: else it lands on another host."""
    if resource.type != CONTAINER:
        return
    provider, node = resource.provider, resource.label("node")
    remedy = "pass opts=ResourceOptions(provider=node.docker), as Node.roles does"
    if provider is None or re.match(r"default($|_)", provider):
        yield resource.violation("is on the default Docker provider, the Docker of the operator's machine", remedy)
    elif isinstance(node, str) and provider != node:
        yield resource.violation(f"is labelled for node {node}, but on the Docker provider of {provider}", remedy)


def confined(resource: Registered) -> Iterator[str]:
    """No container holds the node itself in its hands."""
    if resource.type != CONTAINER:
        return
    if resource.props.get("privileged") is True:
        yield resource.violation(
            "is privileged", "remove `privileged`; GPUs and RDMA need only gpus, devices and ulimits"
        )
    if resource.props.get("pidMode") == "host":
        yield resource.violation("shares the node's processes (pid_mode host)", "remove `pid_mode`")
    for capability in sorted(_added_capabilities(resource) & ALL_POWERFUL):
        yield resource.violation(
            f"adds the capability {capability}, as good as privileged",
            "add the one capability that is needed (IPC_LOCK for RDMA), or none",
        )
    for source in _host_paths(resource):
        if any(socket.is_relative_to(source) for socket in DOCKER_SOCKETS):
            yield resource.violation(
                f"mounts {source}, and with it the Docker socket: it could start anything on the node",
                "remove the mount, or mount the directory that is needed",
            )


def pinned(resource: Registered) -> Iterator[str]:
    """Images are named by what they are: a tag means another image tomorrow."""
    if resource.type not in {CONTAINER, NODE_IMAGE} or (resource.type == NODE_IMAGE and resource.props.get("build")):
        return  # what is built here is pinned by the hash of its directory
    image = resource.props.get("image")
    if not isinstance(image, str) or PINNED.search(image):
        return
    if resource.type == CONTAINER:
        remedy = "give it the id that NodeImage found (node.image.image_id)"
    else:
        remedy = (
            "set `image` to name@sha256:… (docker image inspect --format '{{.RepoDigests}}' shows it), or to the id "
            "sha256:… of what `image_archive` holds"
        )
    yield resource.violation(f"image {image} is not pinned by digest or id", remedy)


def key_beyond_loopback(resource: Registered) -> Iterator[str]:
    """An API that others can reach asks for a key."""
    if resource.type != CONTAINER or resource.label("role") != "serve":
        return
    host, key = resource.option("--host"), resource.environment(API_KEY)
    if UNKNOWN in (host, key) or key or (host and _is_loopback(str(host))):
        return
    yield resource.violation(
        f"the API listens on {host or 'all addresses'} without a key: whoever reaches it may use it",
        "pulumi config set --secret dgx-spark-cluster:apiKey, or set `listen: 127.0.0.1`",
    )


def _added_capabilities(resource: Registered) -> set[str]:
    capabilities = resource.props.get("capabilities")
    adds = [] if isinstance(capabilities, Unknown) else (capabilities or {}).get("adds") or []
    return set() if adds is UNKNOWN else {str(added).upper().removeprefix("CAP_") for added in adds}


def _host_paths(resource: Registered) -> Iterator[PurePosixPath]:
    """Paths of the node that a container sees, through `volumes` or `mounts`."""
    for key, field in (("volumes", "hostPath"), ("mounts", "source")):
        rows = resource.props.get(key) or []
        for row in [] if rows is UNKNOWN else rows:
            path = None if row is UNKNOWN else row.get(field)
            # The source of a mount may also be the name of a volume.
            if isinstance(path, str) and path.startswith("/"):
                yield PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
