"""What Pulumi's plugin process for dynamic providers lacks: plain errors, Ctrl-C, room, and an end with the engine.

Pulumi starts it as `python -m pulumi.dynamic ENGINE` and gives providers no handle on it (SDK 3.272): an exception is
answered by its traceback, the Cancel call does nothing, four calls are answered at a time, and the process outlives a
killed engine. :func:`mend` mends the four. tests/unit/test_provider_process.py drives the real plugin process.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import psutil
from google.protobuf import empty_pb2  # type: ignore[import-untyped]

from hosts.faults import Fault, Faults
from settings import MOST_NODES

CALLS = 2 * MOST_NODES
"""Calls answered at once: one of every node may wait for a copy of hours, and Cancel must still get through. A thread
exists only where a call needs it."""
CANCELLED = threading.Event()
"""Set when the user interrupts the operation (Ctrl-C once): what waits should end."""


def process() -> ModuleType | None:
    """Main module of the plugin process, None where this is none."""
    main = sys.modules.get("__main__")
    return main if hasattr(main, "DynamicResourceProviderServicer") else None


class _Traceback:
    """Stands for the module traceback there: a fault of a host is its message, nothing else."""

    @staticmethod
    def format_exc() -> str:
        error = sys.exc_info()[1]
        return str(error) if isinstance(error, Fault | Faults) else traceback.format_exc()


def _cancel(_self: Any, _request: Any, _context: Any) -> empty_pb2.Empty:
    """Code of the plugin's Cancel, run with the plugin's globals."""
    from providers.plugin import CANCELLED  # noqa: PLC0415

    CANCELLED.set()
    return empty_pb2.Empty()


def _widen() -> None:
    """Let the server's pool, which is local to the plugin's main(), grow with need up to the new bound."""
    for pool in [one for one in gc.get_objects() if isinstance(one, ThreadPoolExecutor)]:
        pool._max_workers = CALLS  # noqa: SLF001
        for _ in range(pool._work_queue.qsize()):  # noqa: SLF001
            pool.submit(int)  # a thread comes with a submission: those that wait already need theirs


def _end_with(engine: psutil.Process) -> None:
    engine.wait()
    os._exit(1)


def mend() -> None:
    """Mend the process, where it is the plugin's."""
    main: Any = process()
    if main is None:
        return
    main.traceback = _Traceback
    _widen()
    # The method is registered with the server already: only its code can still be exchanged.
    main.DynamicResourceProviderServicer.Cancel.__code__ = _cancel.__code__
    engine = next((parent for parent in psutil.Process().parents() if parent.name() == "pulumi"), None)
    if engine:
        threading.Thread(target=_end_with, args=(engine,), daemon=True).start()
