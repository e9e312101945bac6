"""What hooks do on hosts is done for all of them at once, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from components.hooks import beside
from hosts.faults import Fault


def run(work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()  # asyncio.run() would leave the thread without one, which Pulumi's mocks need
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def test_hooks_of_many_nodes_work_at_once() -> None:
    together = threading.Barrier(16)

    def work() -> None:
        together.wait(timeout=30)  # raises unless all are there

    async def hooks() -> None:
        await asyncio.gather(*(beside(work) for _ in range(together.parties)))

    run(hooks())


def test_fault_of_a_host_is_the_hooks() -> None:
    def work() -> None:
        raise Fault("spark-1", "a", "b")

    with pytest.raises(Fault, match="spark-1: a"):
        run(beside(work))
