"""Host: a node as it is. Exists while the node answers; its delete removes everything of ours from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, ReadResult, Resource

from hosts.containers import remove_all
from hosts.faults import Fault
from hosts.images import removal
from hosts.operation import LEAVE_OUT, destroying
from hosts.ownership import PREFIX
from hosts.ssh import Connection
from providers import progress
from providers.base import Provider

FOUND_URN = (
    f"urn:pulumi:{{stack}}::{PREFIX}::{PREFIX}:index:Cluster${PREFIX}:index:Node${PREFIX}:index:Preparation$"
    "command:local:Command::{node}-found"
)
"""Pulumi's name of what everything else of a node depends on, the Host too; a provider is not told such names."""


def _do_without(stack: str, node: str) -> str:
    return (
        f"if it left the settings: pulumi up -s {stack} --refresh=false --continue-on-error does without it; after "
        f"that pulumi up finishes it once it is back. {_forget(stack, node)}"
    )


def _forget(stack: str, node: str) -> str:
    """Not before an up or destroy went on without the node: until then the others are its dependents in the state."""
    urn = FOUND_URN.format(stack=stack, node=node)
    return (
        f"To forget this node for good instead of that: take it out of `nodes`, and pulumi state delete -s {stack} "
        f"--target-dependents '{urn}'"
    )


class HostProvider(Provider):
    """Reads nothing of its own: the program surveys all nodes before it registers them, and passes the facts."""

    remembered = ("connection", "facts", "grace", "timeout", "discard")
    identity = ("stack",)

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """The node was surveyed a moment ago; nothing changes on it."""
        return CreateResult(f"{props['stack']}/{props['connection']['node']}", dict(props))

    def read(self, id_: str, props: Mapping[str, Any]) -> ReadResult:
        """The node answers; its facts are compared through the inputs.

        Raises:
            Fault: it does not, or its Docker where a destroy needs it, and what to do. It is asked by the way that the
                state knows, and the settings may have another one now; it may have left them; or a destroy asks the
                node before the program has told that it does not answer.
        """
        connection, stack, leaving = Connection.load(props["connection"]), props["stack"], destroying()
        question = ("docker", "ps", "--quiet") if leaving else ("true",)
        try:
            done = connection.run(*question, timeout=float(props["timeout"]))
        except Fault as fault:
            without = LEAVE_OUT if leaving else _do_without(stack, connection.node)
            fault.remedy += (
                f"; another way to it in the settings now: pulumi up -s {stack} --refresh=false once; {without}"
            )
            raise
        if done.returncode:
            start = connection.by_hand("sudo systemctl start docker")
            raise Fault(connection.node, "Docker does not answer", f"start it: {start}; {LEAVE_OUT}", done.stderr)
        return ReadResult(id_, dict(props))

    def delete(self, _id: str, props: Mapping[str, Any]) -> None:
        """Remove all that carries our labels on this node; a dead node is a fault of this resource alone."""
        connection, stack, image = Connection.load(props["connection"]), props["stack"], props.get("discard")
        try:
            ids = removal.used(connection, stack, connection.node) if image else []
            remove_all(connection, stack, int(props["grace"]), node=connection.node)
        except Fault as fault:
            verb = "destroy" if destroying() else "up"
            raise Fault(
                connection.node,
                f"{fault.cause}; what is ours there is left",
                f"{fault.remedy}; then finish it: pulumi {verb} -s {stack}. {_forget(stack, connection.node)}",
                fault.evidence,
            ) from None
        if image and (why := removal.remove(connection, image, ids)):
            progress.lasting(f"{connection.node}: image {image} stays: {why}")


class Host(Resource, module="spark", name="Host"):
    """A node that answers; containers are deleted with it, so that one dead node spares the others on destroy."""

    facts: pulumi.Output[dict[str, Any]]

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        stack: str,
        facts: Mapping[str, Any],
        grace: int,
        timeout: float,
        discard: str = "",
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "connection": connection.dump(),
            "stack": stack,
            "facts": dict(facts),
            "grace": grace,
            "timeout": timeout,
            "discard": discard,
        }
        super().__init__(HostProvider(), name, props, opts)
