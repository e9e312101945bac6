"""Members: who belongs to the Ray cluster, and who did before; it remembers, and does nothing on any host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource, UpdateResult

from hosts.ssh import Connection
from providers.base import Provider


class MembersProvider(Provider):
    """Pulumi deletes last what left the program, and its program is not told of it. The gate must know before that."""

    compared = ("nodes",)

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """The first members."""
        return CreateResult("members", {**props, "former": {}})

    def update(self, _id: str, olds: Mapping[str, Any], news: Mapping[str, Any]) -> UpdateResult:
        """Others: who was one and is none any more is remembered, with the way to it."""
        before = {**olds.get("former", {}), **olds["nodes"]}
        former = {name: connection for name, connection in before.items() if name not in news["nodes"]}
        return UpdateResult({**news, "former": former})


class Members(Resource, module="spark", name="Members"):
    """The nodes of a Ray cluster by name."""

    former: pulumi.Output[dict[str, Any]]
    """Connections to nodes that left the settings, by name."""

    def __init__(
        self, name: str, *, connections: Mapping[str, Connection], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        nodes = {node: connection.dump() for node, connection in connections.items()}
        super().__init__(MembersProvider(), name, {"nodes": nodes, "former": None}, opts)
