"""Fixtures: a command provider behind gRPC, and stacks of the real engine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from tests.toolchain.command_client import CommandClient, EngineLog
from tests.toolchain.stack import Stack
from toolchain.layout import BIN, PULUMI_HOME
from toolchain.versions import ROOT


@pytest.fixture
def engine_log() -> Iterator[EngineLog]:
    """The part of the engine that providers log to."""
    log = EngineLog()
    server = grpc.server(ThreadPoolExecutor(4))
    log.add_to(server)
    log.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield log
    server.stop(None).wait()


@pytest.fixture
def command(engine_log: EngineLog) -> Iterator[CommandClient]:
    """A command provider, spoken to as the engine does."""
    with CommandClient.serving(engine_log.address) as client:
        yield client


@pytest.fixture(scope="session")
def pulumi_environment() -> dict[str, str]:
    """The environment of a person at work: what is built comes first on PATH. Builds it where it is missing."""
    made = subprocess.run([sys.executable, "-m", "toolchain"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    environment = dict(os.environ, PULUMI_SKIP_UPDATE_CHECK="true")
    if (BIN / "pulumi").exists():
        environment |= {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PULUMI_HOME": str(PULUMI_HOME),
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_DISABLE_REGISTRY_RESOLVE": "true",
        }
    return environment


@pytest.fixture
def make_stack(tmp_path: Path, pulumi_environment: dict[str, str]) -> Callable[..., Stack]:
    """Makes a project and a stack in a backend of its own: `make_stack(program, **other files)`."""

    def make(program: str, **files: str) -> Stack:
        return Stack.create(tmp_path, pulumi_environment, program, files)

    return make
