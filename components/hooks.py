"""What resource hooks do on hosts, beside the program's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from settings import MOST_NODES

T = TypeVar("T")

_POOL = ThreadPoolExecutor(MOST_NODES, "hook")
"""Of their own: the loop's default pool may be full of registrations, and one of them of the very hook's resource."""


async def beside(work: Callable[[], T]) -> T:
    """Do what takes its time on a host; returns and raises what it does.

    Pulumi calls hooks on the event loop: one that waits there for its node holds up the hooks of all other nodes, and
    what is still to be registered.
    """
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
