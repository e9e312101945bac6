"""Members: who belongs to the Ray cluster, and who did before; it remembers, and does nothing on any host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from hosts.ssh import Connection
from providers.base import Provider


class MembersProvider(Provider):
    """Pulumi deletes last what left the program, and its program is not told of it. The gate must know before that."""

    compared = ("nodes",)

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """The first members."""
        return CreateResult("members", {**props, "former": {}})

    def renew(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
        """Others: who was one and is none any more is remembered, until its name or its address is a member's again."""
        before = {**olds.get("former", {}), **olds["nodes"]}
        addresses = {node["address"] for node in news["nodes"].values()}
        former = {
            name: node
            for name, node in before.items()
            # A state of before the addresses were kept has none: Ray would know such a node by nothing.
            if name not in news["nodes"] and node.get("address") not in (*addresses, None)
        }
        return {**news, "former": former}


class Members(Resource, module="spark", name="Members"):
    """The nodes of a Ray cluster by name."""

    former: pulumi.Output[dict[str, Any]]
    """Nodes that left the settings, by name: `address` on the fabric, and `connection`."""

    def __init__(
        self, name: str, *, nodes: Mapping[str, tuple[str, Connection]], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Declare who is one.

        Args:
            name: of the resource.
            nodes: fabric address of each, as Ray knows it, and the way to it, by name.
            opts: as usual.
        """
        known = {
            node: {"address": address, "connection": connection.dump()} for node, (address, connection) in nodes.items()
        }
        super().__init__(MembersProvider(), name, {"nodes": known, "former": None}, opts)
