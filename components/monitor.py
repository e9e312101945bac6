"""The end of a run in which a resource failed: what failed is told, and nothing beside it."""

from __future__ import annotations

import sys

import grpc  # type: ignore[import-untyped]
from pulumi.runtime import settings

REPORTED = 32
"""Exit code by which a language host knows that the user has been told: no message of its own follows."""

_ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def mend() -> None:
    """Take a registration that the engine no longer answers for what it is: the engine's end, as something else failed.

    The SDK (3.272) tells it as a second error, "Resource monitor has terminated", beside the one that matters; where
    the engine still starts another provider's plugin (the first second of a run) registrations may end with CANCELLED
    instead of UNAVAILABLE, which it shows as an exception of the program.
    """
    original = settings.grpc_error_to_exception

    def exception(exn: grpc.RpcError) -> Exception:
        if exn.code() in _ENDED:
            sys.exit(REPORTED)
        return original(exn)

    settings.grpc_error_to_exception = exception
