"""Speaks to a command provider as the engine does, in JSON instead of protobuf structs."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, provider_pb2_grpc

from toolchain.command_plugin import CommandProvider
from toolchain.engine_link import GRPC_OPTIONS
from toolchain.property_values import from_struct, to_struct

URN = "urn:pulumi:test::project::command:local:Command::step"


class EngineLog(engine_pb2_grpc.EngineServicer):
    """Keeps what providers log."""

    def __init__(self) -> None:
        self.address = ""
        self.messages: list[str] = []

    def add_to(self, server: grpc.Server) -> None:
        engine_pb2_grpc.add_EngineServicer_to_server(self, server)

    def Log(  # noqa: N802
        self,
        request: engine_pb2.LogRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> empty_pb2.Empty:
        self.messages.append(request.message)
        return empty_pb2.Empty()


class CommandClient:
    """One provider and a client of it."""

    def __init__(self, stub: provider_pb2_grpc.ResourceProviderStub) -> None:
        self._stub = stub
        self._pool = ThreadPoolExecutor(4)

    @classmethod
    @contextmanager
    def serving(cls, engine: str) -> Iterator["CommandClient"]:
        provider = CommandProvider(engine)
        server = grpc.server(ThreadPoolExecutor(8), options=GRPC_OPTIONS)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=GRPC_OPTIONS) as channel:
            yield cls(provider_pb2_grpc.ResourceProviderStub(channel))
        provider.close()
        server.stop(None).wait()

    def create(self, *, preview: bool = False, **inputs: Any) -> dict[str, Any]:
        request = provider_pb2.CreateRequest(urn=URN, name="step", properties=to_struct(inputs), preview=preview)
        return from_struct(self._stub.Create(request).properties)

    def create_in_background(self, **inputs: Any) -> "Future[dict[str, Any]]":
        return self._pool.submit(lambda: self.create(**inputs))

    def update(self, olds: dict[str, Any], *, preview: bool = False, **news: Any) -> dict[str, Any]:
        request = provider_pb2.UpdateRequest(
            id="step1", urn=URN, olds=to_struct(olds), news=to_struct(news), preview=preview
        )
        return from_struct(self._stub.Update(request).properties)

    def delete(self, **state: Any) -> None:
        self._stub.Delete(provider_pb2.DeleteRequest(id="step1", urn=URN, properties=to_struct(state)))

    def diff(self, olds: dict[str, Any], news: dict[str, Any]) -> provider_pb2.DiffResponse:
        request = provider_pb2.DiffRequest(id="step1", urn=URN, old_inputs=to_struct(olds), news=to_struct(news))
        response: provider_pb2.DiffResponse = self._stub.Diff(request)
        return response

    def check(self, news: dict[str, Any], urn: str = URN) -> tuple[dict[str, Any], dict[str, str]]:
        """The checked inputs, and the reason for each property that is wrong."""
        response = self._stub.Check(provider_pb2.CheckRequest(urn=urn, news=to_struct(news)))
        return from_struct(response.inputs), {failure.property: failure.reason for failure in response.failures}

    def cancel(self) -> None:
        self._stub.Cancel(empty_pb2.Empty())
