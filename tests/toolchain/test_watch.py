"""Watching with the real engine: a stop while it repairs, and runs that hold the lock of the stack."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.toolchain.stack import Result, Stack
from toolchain.versions import ROOT

pytestmark = pytest.mark.toolchain

HANG_SECONDS = 60  # no assertion about time: only what keeps a hanging test from blocking all others
SLOW_STEP = """
import time

from pulumi.dynamic import CreateResult, Resource, ResourceProvider


class Provider(ResourceProvider):
    def create(self, props):
        open("../started", "w").close()
        time.sleep(3)  # longer than a stop takes to reach Pulumi
        return CreateResult("1", {})


class Step(Resource):
    pass


Step(Provider(), "step", {})
"""
WAITING_STEP = """
from pulumi_command import local

local.Command("step", create="touch ../started; sleep 1000 & wait")
"""
FROM_A_TERMINAL = ["sh", "-c", 'exec "$@"', "sh"]
FROM_A_SCRIPT = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]


@pytest.fixture
def make(make_stack: Callable[..., Stack]) -> Iterator[Callable[[str], Stack]]:
    """Makes a stack whose step leaves a file when it has begun; watch.py lies beside the program."""
    files = {name: (ROOT / name).read_text() for name in ("watch.py", "locks.py")}
    made: list[Stack] = []

    def begin(program: str) -> Stack:
        made.append(make_stack(program, **files))
        return made[0]

    yield begin
    for process in made[0].processes():
        process.kill()


def wait_for_step(stack: Stack) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not (stack.folder.parent / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(stack: Stack, *options: str, shell: list[str] = FROM_A_TERMINAL) -> "subprocess.Popen[str]":
    """Starts a watch in a process group of its own, as a shell does."""
    return subprocess.Popen(
        [*shell, sys.executable, "-m", "watch", "--stack", "test", *options],
        cwd=stack.folder,
        env=stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def ended(process: "subprocess.Popen[str]") -> Result:
    output, _ = process.communicate(timeout=HANG_SECONDS)
    return Result(process.returncode, output)


def locks(stack: Stack) -> list[Path]:
    return list((stack.folder.parent / "state" / ".pulumi" / "locks").rglob("*.json"))


def to_process(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    os.kill(process.pid, number)


def to_group(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    os.killpg(process.pid, number)


@pytest.mark.parametrize(
    ("shell", "send", "number"),
    [
        (FROM_A_TERMINAL, to_process, signal.SIGTERM),  # systemd
        (FROM_A_TERMINAL, to_group, signal.SIGINT),  # Ctrl-C
        (FROM_A_SCRIPT, to_process, signal.SIGTERM),
    ],
)
def test_stop_while_it_repairs_leaves_nothing_locked_or_pending(
    make: Callable[[str], Stack],
    shell: list[str],
    send: Callable[["subprocess.Popen[str]", signal.Signals], None],
    number: signal.Signals,
) -> None:
    stack = make(SLOW_STEP)
    process = start(stack, "--heal", shell=shell)
    wait_for_step(stack)
    assert locks(stack)
    send(process, number)
    result = ended(process)
    assert result.code == 0
    assert "step (create)" in result.output
    assert result.output.splitlines()[-1] == "watching ends"
    assert stack.wait_until_all_ended() == []
    assert locks(stack) == []
    exported = json.loads(stack.pulumi("stack", "export").output)
    assert not exported["deployment"].get("pending_operations")
    assert "step" in stack.resources()  # what had begun was ended, and noted


def test_a_run_that_holds_the_lock_is_no_drift_and_a_lock_left_is_explained(make: Callable[[str], Stack]) -> None:
    stack = make(WAITING_STEP)
    update = stack.start("up", "--yes", "--skip-preview")
    wait_for_step(stack)
    busy = ended(start(stack, "--once"))
    assert busy.code == 1
    assert f"busy: pulumi (pid {update.pid}) of " in busy.output
    update.kill()
    update.wait()
    left = ended(start(stack, "--once"))
    assert left.code == 1
    assert f"locked: pulumi (pid {update.pid}) of " in left.output
    assert "make unlock STACK=test" in left.output
    assert stack.pulumi("cancel", "--yes").code == 0
    assert "Command step (create)" in ended(start(stack, "--once")).output
