"""Python language host: what `pulumi-language-python` is to the engine, as far as programs and policy packs need it.

It starts programs with the SDK's own `pulumi-language-python-exec`, which stands beside the CLI. Behaviour follows the
official host (sdk/python/cmd/pulumi-language-python/main.go of pulumi/pulumi): options, arguments, environment, exit
codes. Code generation, package installation from sources, debuggers and type checkers are left out.
"""

# ruff: noqa: N802, ARG002 (method names and parameters are gRPC's)

import json
import platform
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from toolchain.engine_link import run_plugin, serve
from toolchain.process_groups import EndedError, ProcessGroups
from toolchain.python_runtime import PythonRuntime, RuntimeOptionError
from toolchain.versions import PULUMI

_EXECUTOR = "pulumi-language-python-exec"
_MESSAGE_SHOWN = 32
"""Exit code of the executor when it has shown the error itself."""

_READ_BYTES = 1 << 16


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """The LanguageRuntime service; see language.proto in the SDK for the contract of each method."""

    def __init__(self, engine: str, executor: Path) -> None:
        self._engine = engine
        self._executor = executor
        self._children = ProcessGroups()

    def close(self) -> None:
        """Ends all programs and plugins and waits for that."""
        self._children.close()

    def Handshake(
        self, request: language_pb2.LanguageHandshakeRequest, context: grpc.ServicerContext
    ) -> language_pb2.LanguageHandshakeResponse:
        """Learns the engine's address, where it was not on the command line."""
        self._engine = request.engine_address or self._engine
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        """The version of the engine that this host was written for."""
        return plugin_pb2.PluginInfo(version=PULUMI)

    def GetRequiredPackages(
        self, request: language_pb2.GetRequiredPackagesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetRequiredPackagesResponse:
        """The plugins of the SDKs in the program's environment."""
        runtime = _runtime(request.info, context)
        return language_pb2.GetRequiredPackagesResponse(packages=runtime.packages())

    def About(self, request: language_pb2.AboutRequest, context: grpc.ServicerContext) -> language_pb2.AboutResponse:
        """The interpreter that runs programs."""
        runtime = _runtime(request.info, context)
        return language_pb2.AboutResponse(executable=str(runtime.python), version=platform.python_version())

    def GetProgramDependencies(
        self, request: language_pb2.GetProgramDependenciesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetProgramDependenciesResponse:
        """What is installed in the program's environment."""
        runtime = _runtime(request.info, context)
        return language_pb2.GetProgramDependenciesResponse(dependencies=runtime.dependencies())

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        """Ends what runs: the engine was interrupted and asks for no more."""
        self._children.end()
        return empty_pb2.Empty()

    def Run(self, request: language_pb2.RunRequest, context: grpc.ServicerContext) -> language_pb2.RunResponse:
        """Runs a program to its end. What it prints goes to this process's streams, which the engine shows."""
        runtime = _runtime(request.info, context)
        environment = runtime.environment() | {
            "PULUMI_CONFIG": json.dumps(dict(request.config)),
            "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
        }
        command = [str(runtime.python), "-u", str(self._executor), *self._executor_arguments(request)]
        try:
            program = self._children.start(command, env=environment, cwd=request.pwd or None)
        except EndedError:
            return language_pb2.RunResponse(bail=True)
        except OSError as error:
            return language_pb2.RunResponse(error=f"could not start {command[0]}: {error}")
        self._end_with(context, program)
        code = self._children.wait(program)
        if code == 0:
            return language_pb2.RunResponse()
        if code == _MESSAGE_SHOWN or self._children.ended:
            return language_pb2.RunResponse(bail=True)
        reason = f"program exited with non-zero exit code: {code}" if code > 0 else f"program ended by signal {-code}"
        return language_pb2.RunResponse(error=reason)

    def RunPlugin(
        self, request: language_pb2.RunPluginRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.RunPluginResponse]:
        """Runs a policy pack or another plugin written in Python, and passes on what it prints."""
        runtime = _runtime(request.info, context)
        folder = request.info.program_directory
        command = [str(runtime.python), "-u"]
        if request.kind == "analyzer":
            command += ["-m", "pulumi.policy", *request.args, folder]
        else:
            command += [folder, *request.args]
        environment = runtime.environment() | dict(entry.split("=", 1) for entry in request.env)
        # The engine's entries hold its own PATH: the activated one must win.
        environment["PATH"] = runtime.environment()["PATH"]
        code = yield from self._stream(
            command, context, language_pb2.RunPluginResponse, env=environment, cwd=request.pwd or None
        )
        yield language_pb2.RunPluginResponse(exitcode=code)

    def InstallDependencies(
        self, request: language_pb2.InstallDependenciesRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.InstallDependenciesResponse]:
        """`pulumi install`: makes the virtual environment where it is missing and installs requirements.txt."""
        folder = Path(request.info.program_directory)
        name = request.info.options.fields["virtualenv"].string_value
        if name and not Path(request.info.root_directory, name).exists():
            python3 = shutil.which("python3") or "python3"
            target = str(Path(request.info.root_directory, name))
            yield from self._checked([python3, "-m", "venv", target], context, folder)
        runtime = _runtime(request.info, context)
        if (folder / "requirements.txt").is_file():
            pip = [str(runtime.python), "-m", "pip", "install", "--requirement", "requirements.txt"]
            yield from self._checked(pip, context, folder)

    def _executor_arguments(self, request: language_pb2.RunRequest) -> list[str]:
        options = {
            "monitor": request.monitor_address,
            "engine": self._engine,
            "project": request.project,
            "root_directory": request.info.root_directory,
            "stack": request.stack,
            "pwd": request.pwd,
            "dry_run": "true" if request.dryRun else "false",
            "parallel": str(request.parallel),
            "organization": request.organization,
        }
        named = [part for name, value in options.items() if value for part in (f"--{name}", value)]
        return [*named, request.info.entry_point, *request.args]

    def _checked(
        self, command: list[str], context: grpc.ServicerContext, folder: Path
    ) -> Iterator[language_pb2.InstallDependenciesResponse]:
        code = yield from self._stream(command, context, language_pb2.InstallDependenciesResponse, cwd=folder)
        if code != 0:
            _abort(context, f"{' '.join(command)} failed with exit code {code}")

    def _stream(
        self,
        command: list[str],
        context: grpc.ServicerContext,
        message: Callable[..., Any],
        **options: Any,
    ) -> Generator[Any, None, int]:
        """Runs a command, yields its output as messages while it comes, returns the exit code."""
        try:
            process = self._children.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        except EndedError:
            _abort(context, "cancelled", grpc.StatusCode.CANCELLED)
        except OSError as error:
            _abort(context, f"could not start {command[0]}: {error}")
        self._end_with(context, process)
        chunks: queue.Queue[Any] = queue.Queue()

        def pump(stream: IO[bytes], name: str) -> None:
            while chunk := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
                chunks.put(message(**{name: chunk}))
            chunks.put(None)

        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            threading.Thread(target=pump, args=(stream, name), daemon=True).start()
        for _ in range(2):
            yield from iter(chunks.get, None)
        return self._children.wait(process)

    def _end_with(self, context: grpc.ServicerContext, process: subprocess.Popen[bytes]) -> None:
        """Ends the process when the engine gives up the call."""
        if not context.add_callback(lambda: self._children.terminate(process)):
            self._children.terminate(process)


def _runtime(info: language_pb2.ProgramInfo, context: grpc.ServicerContext) -> PythonRuntime:
    try:
        return PythonRuntime.of(info)
    except RuntimeOptionError as error:
        _abort(context, str(error), grpc.StatusCode.FAILED_PRECONDITION)


def _abort(context: grpc.ServicerContext, message: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> NoReturn:
    context.abort(code, message)
    raise AssertionError  # abort() does not return


def main() -> None:
    """Entry point of `bin/pulumi-language-python`, whose folder holds the executor too."""
    from toolchain.layout import BIN  # noqa: PLC0415

    def start(engine: str) -> None:
        host = LanguageHost(engine, BIN / _EXECUTOR)
        serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server), engine, host.close)

    run_plugin(start)
