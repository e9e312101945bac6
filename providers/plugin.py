"""What Pulumi's plugin process for dynamic providers lacks: plain errors, Ctrl-C, and an end when the engine is gone.

Pulumi starts it as `python -m pulumi.dynamic ENGINE` and gives providers no handle on it (SDK 3.272): an exception is
answered by its traceback, the Cancel call does nothing, and the process outlives a killed engine. :func:`mend`
mends the three. tests/unit/test_provider_process.py drives the real plugin process.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

import psutil
from google.protobuf import empty_pb2  # type: ignore[import-untyped]

from hosts.faults import Fault, Faults

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


def _end_with(engine: psutil.Process) -> None:
    engine.wait()
    os._exit(1)


def mend() -> None:
    """Mend the process, where it is the plugin's."""
    main: Any = process()
    if main is None:
        return
    main.traceback = _Traceback
    # The method is registered with the server already: only its code can still be exchanged.
    main.DynamicResourceProviderServicer.Cancel.__code__ = _cancel.__code__
    engine = next((parent for parent in psutil.Process().parents() if parent.name() == "pulumi"), None)
    if engine:
        threading.Thread(target=_end_with, args=(engine,), daemon=True).start()
