"""What is ours on a node: names and labels of containers and volumes."""

from __future__ import annotations

PREFIX = "dgx-spark-cluster"


def labels(stack: str, node: str, role: str) -> dict[str, str]:
    """Labels of a thing of ours: stack, role (ray-head, ray-worker, serve, cache, …) and node."""
    return {f"{PREFIX}.stack": stack, f"{PREFIX}.role": role, f"{PREFIX}.node": node}


def name(prefix: str, stack: str, role: str) -> str:
    """Name of a container or volume on its node, where a role occurs once."""
    return f"{prefix}-{stack}-{role}"


def stack_filter(stack: str) -> str:
    """Docker's --filter expression for all that is ours in one stack."""
    return f"label={PREFIX}.stack={stack}"
