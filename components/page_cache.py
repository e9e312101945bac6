"""The page cache of nodes, dropped before serve is created: on a Spark it counts as used GPU memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pulumi

from components.hooks import beside
from components.node import Node
from hosts.ssh import Connection

DROP = 'sync; if [ "$(id -u)" = 0 ]; then sysctl -q vm.drop_caches=3; else sudo -n sysctl -q vm.drop_caches=3; fi'
"""As every NVIDIA playbook has it; what is not yet written cannot be dropped, hence the sync."""


def dropping(nodes: Sequence[Node]) -> list[pulumi.ResourceHook]:
    """The hook that does it, on all nodes that are set so at once; none where no node is.

    A hook and no resource: it runs exactly when serve is created or replaced, and there is nothing to undo.
    """
    connections = [node.connection for node in nodes if node.own.drop_page_cache]
    if not connections:
        return []

    async def drop(_args: pulumi.ResourceHookArgs) -> None:
        await asyncio.gather(*(beside(partial(drop_on, connection)) for connection in connections))

    return [pulumi.ResourceHook("drop-page-cache", drop)]


def drop_on(connection: Connection) -> None:
    """Drop one node's page cache; raises Fault with the node's words."""
    connection.run("sh", "-c", DROP, timeout=300, check=True)
