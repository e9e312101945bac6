"""Rules on the resources of a whole stack, judged at the end of a preview and of an update.

Each rule yields one (URN, text) per violation; the text says where, what, and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from policies.registered import CONTAINER, GPU_GATE, SERVE_GATE, UNKNOWN, Registered, reachable

Violation = tuple[str, str]
HOST_IP = "VLLM_HOST_IP"


def on_the_fabric(resources: Sequence[Registered]) -> Iterator[Violation]:
    """Every role uses the fabric address that GpuGate expects of its node; any other makes vLLM wait in vain.

    Without a gate, or while its expectation is unknown, there is nothing to compare with.
    """
    for gate in (resource for resource in resources if resource.type == GPU_GATE):
        head, nodes = gate.props.get("address"), gate.props.get("nodes")
        if isinstance(head, str) and isinstance(nodes, list) and UNKNOWN not in nodes:
            expected = {str(node.get("name")): node.get("address") for node in nodes}
            for container in (resource for resource in resources if resource.type == CONTAINER):
                yield from ((container.urn, text) for text in _addresses(container, head, expected))


def _addresses(container: Registered, head: str, expected: dict[str, Any]) -> Iterator[str]:
    """Violations of one container.

    Args:
        container: any container of the stack.
        head: the head's fabric address and Ray's port.
        expected: fabric address by node name, as far as known.
    """
    role, node = container.label("role"), container.label("node")
    if role == "serve":
        yield from _host_ip(container, head.rpartition(":")[0])
    if role not in {"ray-head", "ray-worker"} or not isinstance(node, str):
        return
    if node not in expected:
        yield container.violation(
            f"GpuGate does not expect a node {node} (it expects {', '.join(sorted(expected))})",
            "give GpuGate every node that runs a role of Ray",
        )
        return
    yield from _host_ip(container, expected[node])
    yield from _option(container, "--node-ip-address", expected[node])
    if role == "ray-worker":
        yield from _option(container, "--address", head)


def _host_ip(container: Registered, expected: Any) -> Iterator[str]:
    """VLLM_HOST_IP is as expected. What it is instead stays unsaid: an environment may be secret."""
    found = container.environment(HOST_IP)
    if UNKNOWN not in (found, expected) and found != expected:
        yield container.violation(
            f"{HOST_IP} is not {expected}, the address on the fabric",
            f"set it to {expected} (engines.vllm_ray.environment does), or correct `fabric` of the node",
        )


def _option(container: Registered, flag: str, expected: Any) -> Iterator[str]:
    found = container.option(flag)
    if UNKNOWN not in (found, expected) and found != expected:
        yield container.violation(
            f"{flag} is {found or 'not given'}, not {expected} on the fabric",
            f"start Ray with {flag}={expected} (engines.vllm_ray.ray_command does), or correct `fabric` of the node",
        )


def behind_gates(resources: Sequence[Registered]) -> Iterator[Violation]:
    """Serve starts only once the GPUs are verified, and is itself verified."""
    gpu_gates = {resource.urn for resource in resources if resource.type == GPU_GATE}
    verified = frozenset[str]().union(
        *(reachable(resource, resources) for resource in resources if resource.type == SERVE_GATE)
    )
    for serve in resources:
        if serve.type != CONTAINER or serve.label("role") != "serve":
            continue
        if not gpu_gates & reachable(serve, resources):
            text = serve.violation(
                "does not depend on a GpuGate, so it may start before Ray has its GPUs", "pass depends_on=[ray.gate]"
            )
            yield serve.urn, text
        if serve.urn not in verified:
            text = serve.violation(
                "no ServeGate depends on it, so nobody checks that it answers",
                "create a ServeGate with depends_on=[container]",
            )
            yield serve.urn, text
