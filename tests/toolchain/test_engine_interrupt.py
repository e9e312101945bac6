"""Ctrl-C and worse while the real engine is at work: it ends by itself and leaves no process behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.toolchain.stack import Result, Stack
from toolchain.versions import ROOT

pytestmark = pytest.mark.toolchain
MakeStack = Callable[..., Stack]

WAITING_PROGRAM = """
import time

with open("../started", "w") as pipe:
    pipe.write("the program")
while True:
    time.sleep(60)
"""
STUBBORN_PROGRAM = "import signal\n\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING_PROGRAM
WAITING_COMMAND = """
from pulumi_command import local

local.Command("step", create="trap '' HUP; echo the command > ../started; sleep 1000 & wait")
"""


@pytest.fixture
def start(make_stack: MakeStack, tmp_path: Path) -> Callable[[str], tuple[Stack, "subprocess.Popen[str]"]]:
    """Starts an update and returns when its program says that it has come to the point where it waits."""

    def begin(program: str) -> tuple[Stack, "subprocess.Popen[str]"]:
        stack = make_stack(program)
        os.mkfifo(tmp_path / "started")
        update = stack.start("up", "--yes", "--skip-preview")
        assert (tmp_path / "started").read_text()
        return stack, update

    return begin


@pytest.mark.parametrize("program", [WAITING_PROGRAM, STUBBORN_PROGRAM, WAITING_COMMAND])
def test_an_interrupted_update_ends_quietly(
    start: Callable[[str], tuple[Stack, "subprocess.Popen[str]"]], program: str
) -> None:
    stack, update = start(program)
    update.send_signal(signal.SIGINT)
    output, _ = update.communicate()
    assert Result(update.returncode, output).code != 0
    assert "Traceback" not in output
    assert "prematurely" not in output
    assert stack.wait_until_all_ended() == []
    assert stack.pulumi("cancel", "--yes").code is not None
    assert "step" not in stack.resources()


@pytest.mark.parametrize("program", [WAITING_PROGRAM, STUBBORN_PROGRAM, WAITING_COMMAND])
def test_a_killed_engine_takes_its_processes_with_it(
    start: Callable[[str], tuple[Stack, "subprocess.Popen[str]"]], program: str
) -> None:
    stack, update = start(program)
    update.kill()
    update.wait()
    assert stack.wait_until_all_ended() == []


def run_plugin(plugin: str, engine: str, stdout: int) -> "subprocess.CompletedProcess[bytes]":
    """Runs a plugin to its end."""
    start = f"from toolchain.{plugin} import main; main()"
    return subprocess.run([sys.executable, "-c", start, engine], cwd=ROOT, stdout=stdout, timeout=60, check=False)


@pytest.mark.parametrize("plugin", ["language_host", "command_plugin"])
def test_a_plugin_ends_where_its_engine_is_gone_before_it_has_met_it(plugin: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    ended = run_plugin(plugin, gone, subprocess.PIPE)
    assert ended.returncode == 0
    assert ended.stdout.strip().isdigit()  # it had come to serve


@pytest.mark.parametrize("plugin", ["language_host", "command_plugin"])
def test_a_plugin_ends_where_nobody_reads_its_port(plugin: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run_plugin(plugin, "127.0.0.1:9", writer)
    finally:
        os.close(writer)
    assert ended.returncode == 1
