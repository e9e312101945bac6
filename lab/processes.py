"""Child processes of the lab: bounded output, and none left behind when the command is interrupted."""

import collections
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class LabError(Exception):
    """What went wrong, the evidence, and what to do next."""

    def __init__(self, problem: str, *, evidence: str = "", next_step: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.evidence = evidence
        self.next_step = next_step


class CommandFailedError(LabError):
    """A command ended with another code than 0."""

    def __init__(self, argv: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"`{shlex.join(argv)[:200]}` ended with code {code}", evidence=output.strip()[-1500:])
        self.code = code


class StoppingError(Exception):
    """The command is being interrupted: the step gives up at once."""


_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()
TAIL_LINES = 25


def stopping() -> bool:
    """Whether the steps shall give up."""
    return _stopping.is_set()


def pause(seconds: float) -> None:
    """Wait between two looks at something; raises StoppingError as soon as the command is interrupted."""
    if _stopping.wait(seconds):
        raise StoppingError


def stop_all(grace: float = 10) -> None:
    """End every child that runs, with its own children: TERM, and KILL after `grace` seconds."""
    _stopping.set()
    with _lock:
        children = list(_running)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if child.poll() is None:
                # Each child leads a process group of its own, so nobody else's process is hit.
                os.killpg(child.pid, number)
        for child in children:
            try:
                child.wait(grace)
            except subprocess.TimeoutExpired:
                continue


def _start(argv: Sequence[str], stderr: int, env: Mapping[str, str] | None, cwd: Path | None) -> subprocess.Popen[str]:
    with _lock:
        if _stopping.is_set():
            raise StoppingError
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
                env={**os.environ, **env} if env else None,
                cwd=cwd,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise LabError(f"{argv[0]} is not installed", next_step=f"install {argv[0]} and run it again") from error
        _running.add(child)
    return child


def _finish(argv: Sequence[str], child: subprocess.Popen[str], output: str) -> None:
    with _lock:
        _running.discard(child)
    if child.returncode != 0:
        if _stopping.is_set():
            raise StoppingError
        raise CommandFailedError(argv, child.returncode, output)


def run(
    argv: Sequence[str],
    *,
    note: Callable[[str], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a long command; `note` gets every line it prints, the last lines become the evidence of a failure."""
    child = _start(argv, subprocess.STDOUT, env, cwd)
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    assert child.stdout is not None  # noqa: S101 - for the type checker
    for line in child.stdout:
        if line.strip():
            tail.append(line.rstrip())
            if note:
                note(line.strip())
    child.wait()
    _finish(argv, child, "\n".join(tail))


def capture(argv: Sequence[str], *, timeout: float = 60) -> str:
    """Standard output of a short command."""
    child = _start(argv, subprocess.PIPE, None, None)
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        stdout, stderr = child.communicate()
        stderr += f"\nno answer within {timeout:.0f} s"
    _finish(argv, child, stderr or stdout)
    return stdout


def succeeds(argv: Sequence[str], *, timeout: float = 60) -> bool:
    """Whether a short command ends with code 0 in time."""
    try:
        capture(argv, timeout=timeout)
    except LabError:
        return False
    return True
