"""What a registration that failed at the engine means, in the SDK as the program mends it."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
import pytest
from pulumi.runtime import settings

from components import monitor


class Failed(grpc.RpcError):  # type: ignore[misc]
    """An error as gRPC raises it: it is its own call."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "context canceled"


@pytest.fixture(autouse=True)
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "grpc_error_to_exception", settings.grpc_error_to_exception)
    monitor.mend()


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE])
def test_end_of_the_engine_ends_the_program_without_a_message(code: grpc.StatusCode) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.handle_grpc_error(Failed(code))
    assert ended.value.code == monitor.REPORTED


def test_any_other_error_is_one() -> None:
    with pytest.raises(Exception, match="context canceled"):
        settings.handle_grpc_error(Failed(grpc.StatusCode.INVALID_ARGUMENT))
