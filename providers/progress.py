"""How long work in a dynamic provider shows itself: a status that passes, or a line that stays."""

from __future__ import annotations

import sys
from functools import cache

import grpc  # type: ignore[import-untyped]
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from providers import plugin


def passing(text: str) -> None:
    """Show where things stand; the next one takes its place, and no summary repeats it."""
    engine = _engine()
    if engine is None:
        lasting(text)
        return
    try:
        engine.Log(engine_pb2.LogRequest(severity=engine_pb2.INFO, message=text, ephemeral=True), timeout=5)
    except grpc.RpcError:
        lasting(text)


def lasting(text: str) -> None:
    """Say what was achieved; Pulumi shows it live and in the summary."""
    # The plugin's standard output is the way to the user.
    print(text, flush=True)


@cache
def _engine() -> engine_pb2_grpc.EngineStub | None:
    """The engine that started this plugin process; its address is the plugin's only argument."""
    if plugin.process() is None or len(sys.argv) < 2:
        return None
    return engine_pb2_grpc.EngineStub(grpc.insecure_channel(sys.argv[-1]))
