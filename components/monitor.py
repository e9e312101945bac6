"""The end of a run in which a resource failed, without a traceback of the program's own."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
import pulumi
from pulumi.runtime import settings


def mend() -> None:
    """Take a registration that the engine cancelled for what it is: the engine's end, because something else failed.

    When a command fails while the engine still starts another provider's plugin (the first second of a run), the
    registrations that wait for the plugin end with UNAVAILABLE or with CANCELLED, whichever comes first. The SDK
    (3.272) knows only the former as the engine's end, and shows the latter as an exception of the program.
    """
    original = settings.grpc_error_to_exception

    def exception(exn: grpc.RpcError) -> Exception:
        if exn.code() == grpc.StatusCode.CANCELLED:
            return pulumi.RunError("Resource monitor has terminated, shutting down")  # the SDK's words
        return original(exn)

    settings.grpc_error_to_exception = exception
