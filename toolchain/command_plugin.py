"""`pulumi-resource-command` in Python: `command:local:Command` with the schema and behaviour of pulumi-command 1.2.1.

The official plugin is no Go module and comes from a release server only. This one serves what a program needs that
reaches its hosts through the system's ssh. Behaviour follows provider/pkg/provider/local of pulumi/pulumi-command,
with these differences: assets and archives are refused; a secret input keeps all output out of the log and is blanked
out in errors; cancelled commands get SIGTERM before SIGKILL, and so do their children.
"""

# ruff: noqa: N802, ARG002 (method names and parameters are gRPC's)

import json
import secrets
import threading
from typing import Any, NoReturn, cast

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from toolchain import command_schema, property_values
from toolchain.command_run import DEFAULT_INTERPRETER, CommandError, Job, run
from toolchain.engine_link import GRPC_OPTIONS, run_plugin, serve
from toolchain.process_groups import ProcessGroups
from toolchain.versions import COMMAND

_COMMAND_TYPE = command_schema.COMMAND_TYPE
_OUTPUTS = ("stdout", "stderr")


class CommandProvider(provider_pb2_grpc.ResourceProviderServicer):
    """The ResourceProvider service; see provider.proto in the SDK for the contract of each method."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._children = ProcessGroups()
        self._log_lock = threading.Lock()
        self._log_stub: engine_pb2_grpc.EngineStub | None = None

    def close(self) -> None:
        """Ends all commands and waits for that."""
        self._children.close()

    def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ProviderHandshakeResponse:
        """Learns the engine's address."""
        self._engine = request.engine_address or self._engine
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        """The version of the SDK that this belongs to."""
        return plugin_pb2.PluginInfo(version=COMMAND)

    def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: grpc.ServicerContext
    ) -> provider_pb2.GetSchemaResponse:
        """The part of pulumi-command's schema that is served."""
        return provider_pb2.GetSchemaResponse(schema=json.dumps(command_schema.SCHEMA))

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        """The provider has no configuration."""
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        """The provider has no configuration."""
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        """Agrees on secrets and previews."""
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        """Checks names and types of the inputs and fills in the default."""
        _only_commands(request.urn, context)
        inputs = {"addPreviousOutputInEnv": True} | property_values.from_struct(request.news)
        failures = [
            provider_pb2.CheckFailure(property=name, reason=reason) for name, reason in command_schema.failures(inputs)
        ]
        return provider_pb2.CheckResponse(inputs=property_values.to_struct(inputs), failures=failures)

    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        """Compares inputs; a changed trigger replaces, anything else updates."""
        _only_commands(request.urn, context)
        has_inputs = request.HasField("old_inputs") and request.old_inputs.fields
        olds = property_values.from_struct(request.old_inputs if has_inputs else request.olds)
        news = property_values.from_struct(request.news)
        changed = [name for name in command_schema.INPUTS if olds.get(name) != news.get(name)]
        details = {name: provider_pb2.PropertyDiff(kind=_kind(name, olds, news), inputDiff=True) for name in changed}
        return provider_pb2.DiffResponse(
            changes=provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE,
            diffs=changed,
            replaces=[name for name in changed if name == "triggers"],
            detailedDiff=details,
            hasDetailedDiff=True,
        )

    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        """Runs `create`."""
        _only_commands(request.urn, context)
        inputs = property_values.from_struct(request.properties)
        state = inputs | dict.fromkeys(_OUTPUTS, property_values.UNKNOWN if request.preview else "")
        if not request.preview:
            self._run("create", state, request.urn, context)
        name = request.name or request.urn.rpartition("::")[2]
        return provider_pb2.CreateResponse(
            id=f"{name}{secrets.token_hex(4)}", properties=property_values.to_struct(state)
        )

    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        """Runs `update`, or `create` where there is none."""
        _only_commands(request.urn, context)
        olds = property_values.from_struct(request.olds)
        news = property_values.from_struct(request.news)
        state = news | {name: olds.get(name, "") for name in _OUTPUTS}
        if request.preview:
            state |= dict.fromkeys(_OUTPUTS, property_values.UNKNOWN)
        else:
            self._run("create" if news.get("update") is None else "update", state, request.urn, context)
        return provider_pb2.UpdateResponse(properties=property_values.to_struct(state))

    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        """Runs `delete`."""
        _only_commands(request.urn, context)
        self._run("delete", property_values.from_struct(request.properties), request.urn, context)
        return empty_pb2.Empty()

    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        """A command leaves nothing that could be read: what the state says stands."""
        _only_commands(request.urn, context)
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Invoke(self, request: provider_pb2.InvokeRequest, context: grpc.ServicerContext) -> provider_pb2.InvokeResponse:
        """Refused: `local.run` has no place in a program that must be previewed without effect."""
        _abort(context, f"{request.tok} is not served by this command plugin: it runs {_COMMAND_TYPE} only")

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        """Ends the commands that run and refuses new ones."""
        self._children.end()
        return empty_pb2.Empty()

    def _run(self, what: str, state: dict[str, Any], urn: str, context: grpc.ServicerContext) -> None:
        """Runs the command that is one of the state's properties and puts its output into the state."""
        properties = property_values.plain(state)
        if properties.get(what) is None:
            return
        # Secret outputs of before count too: the command finds them in its environment.
        secret = any(True for _ in property_values.secrets_in(state))
        wanted = {"stdoutAndStderr": _OUTPUTS, "none": ()}.get(
            properties.get("logging") or "stdoutAndStderr", (properties.get("logging"),)
        )

        def log(stream: str, lines: str) -> None:
            if stream in wanted and not secret:
                self._log(urn, lines)

        try:
            output = run(_job(what, properties, property_values.secret_texts(state)), self._children, log)
        except CommandError as error:
            _abort(context, str(error))
        for name in _OUTPUTS:
            value = getattr(output, name)
            state[name] = property_values.as_secret(value) if secret else value

    def _log(self, urn: str, lines: str) -> None:
        """Shows lines on the resource's row. A lost line is no reason to fail a command."""
        with self._log_lock:
            if self._log_stub is None and self._engine:
                self._log_stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(self._engine, options=GRPC_OPTIONS))
        if self._log_stub is not None:
            request = engine_pb2.LogRequest(severity=engine_pb2.LogSeverity.INFO, message=lines, urn=urn)
            try:
                self._log_stub.Log(request)
            except grpc.RpcError:
                return


def _job(what: str, properties: dict[str, Any], secret_texts: tuple[str, ...]) -> Job:
    environment = dict(properties.get("environment") or {})
    if properties.get("addPreviousOutputInEnv") is not False:
        environment |= {f"PULUMI_COMMAND_{n.upper()}": properties[n] for n in _OUTPUTS if properties.get(n)}
    return Job(
        command=properties[what],
        interpreter=tuple(properties.get("interpreter") or DEFAULT_INTERPRETER),
        directory=properties.get("dir"),
        environment=environment,
        stdin=properties.get("stdin") or "",
        secrets=secret_texts,
    )


def _kind(name: str, olds: dict[str, Any], news: dict[str, Any]) -> provider_pb2.PropertyDiff.Kind.ValueType:
    verb = "UPDATE" if name in olds and name in news else "ADD" if name in news else "DELETE"
    kind = f"{verb}_REPLACE" if name == "triggers" else verb
    return cast("provider_pb2.PropertyDiff.Kind.ValueType", provider_pb2.PropertyDiff.Kind.Value(kind))


def _only_commands(urn: str, context: grpc.ServicerContext) -> None:
    kind = urn.split("::")[2].rpartition("$")[2]
    if kind != _COMMAND_TYPE:
        _abort(context, f"{kind} is not served by this command plugin: it runs {_COMMAND_TYPE} only")


def _abort(context: grpc.ServicerContext, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError  # abort() does not return


def main() -> None:
    """Entry point of `pulumi-resource-command`."""

    def start(engine: str) -> None:
        provider = CommandProvider(engine)
        serve(
            lambda server: provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server),
            engine,
            provider.close,
        )

    run_plugin(start)
