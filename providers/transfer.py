"""Following a long command on a node: progress, Ctrl-C, and an end that leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hosts.faults import Fault
from hosts.images.sender import Counted
from hosts.images.stock import amount
from hosts.ssh import UNREACHABLE, Connection, lines
from providers import progress
from providers.plugin import CANCELLED

POLL_SECONDS = 0.25
"""Within this time Ctrl-C is noticed."""
PROGRESS_SECONDS = 2.0
END_SECONDS = 1.0
"""What a command gets to end by itself once its input is closed."""


@contextlib.contextmanager
def started(connection: Connection, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A command on the node that ends with this block, whatever happens."""
    process = connection.start(*argv)
    try:
        yield process
    finally:
        assert process.stdin and process.stdout  # noqa: S101, PT018 - opened as pipes
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_interrupt(node: str, what: str) -> None:
    """See whether the user interrupts; raises Fault then."""
    if CANCELLED.is_set():
        raise Fault(node, f"interrupted while {what} was on its way", "run it again: pulumi up")


def follow(
    connection: Connection, process: subprocess.Popen[str], status: Callable[[], str], what: str = "the image"
) -> Iterator[str]:
    """The command's lines as they come, to its end, with a passing status meanwhile.

    Raises:
        Fault: the user interrupts, the deadline of a transfer is over, or the node cannot be reached.
    """
    heard, said = lines(process), []
    began = shown = time.monotonic()
    while True:
        check_interrupt(connection.node, what)
        if time.monotonic() - began > connection.transfer_timeout:
            raise Fault(
                connection.node,
                f"{what} did not arrive within {connection.transfer_timeout:.0f} s",
                f"raise `deadlines.transfer` if it was still on its way; look at the node: {connection.by_hand()}",
                status(),
            )
        with contextlib.suppress(queue.Empty):
            line = heard.get(timeout=POLL_SECONDS)
            if line is None:
                break
            said.append(line)
            yield line
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            progress.passing(status())
    if process.wait() == UNREACHABLE and connection.hops:
        raise connection.failed("".join(said))


class Meter:
    """Bytes so far, as a status and as a last line."""

    def __init__(self, what: str, about: float) -> None:
        self.what = what
        self.about = about
        self.sent = 0
        self.began = time.monotonic()
        self.first = 0.0
        """Time of the first byte: Docker prepares the stream before that."""

    def update(self, sent: int) -> None:
        """Take the count."""
        if sent and not self.first:
            self.first = time.monotonic()
        self.sent = sent

    def __str__(self) -> str:
        if not self.first:
            return f"{self.what}: Docker prepares it, {self.seconds:.0f} s"
        return f"{self.what}: {amount(self.sent)} of about {amount(max(self.about, self.sent))}, {self.rate}/s"

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self.began

    @property
    def rate(self) -> str:
        """Amount in a second since the first byte."""
        return amount(self.sent / max(0.001, time.monotonic() - (self.first or self.began)))

    def last(self) -> str:
        """What was achieved."""
        return f"{self.what}: {amount(self.sent)} sent in {self.seconds:.1f} s ({self.rate}/s)"


def ask(process: subprocess.Popen[str], question: Mapping[str, Any]) -> None:
    """Give a started script its one line of JSON."""
    assert process.stdin  # noqa: S101 - opened as a pipe
    with contextlib.suppress(OSError):  # one that ended at once says why in its output
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()


def feed(
    connection: Connection, argv: tuple[str, ...], write: Callable[[Counted], None], meter: Meter, what: str
) -> None:
    """Run a command, `what` in words, whose input is written meanwhile; empty lines of it only show that it lives.

    Raises:
        Fault: as :func:`follow`, or the command failed, with its words.
        OSError, tarfile.TarError: from `write`, about what is read here.
    """
    failed: list[Exception] = []
    with started(connection, *argv) as process:
        assert process.stdin  # noqa: S101 - opened as a pipe
        pipe = process.stdin.buffer  # type: ignore[attr-defined]

        def send(data: bytes) -> None:
            try:
                pipe.write(data)
            except (OSError, ValueError):  # its own words say why
                raise _ReceiverEndedError from None
            meter.update(meter.sent + len(data))

        def work() -> None:
            try:
                write(Counted(send))
            except Exception as error:  # noqa: BLE001 - raised again by the one who waits
                failed.append(error)
                process.kill()
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()  # type: ignore[union-attr]

        feeder = threading.Thread(target=work, daemon=True)
        feeder.start()
        said: list[str] = []
        try:
            for line in follow(connection, process, lambda: str(meter) if feeder.is_alive() else _last(meter, said)):
                if line.strip():
                    said.append(line)  # noqa: PERF401 - the status reads it meanwhile
        except Fault:
            process.kill()  # a write that waits would keep its pipe from being closed
            raise
        feeder.join()
    if failed and not isinstance(failed[0], _ReceiverEndedError):
        raise failed[0]
    if process.returncode:
        raise Fault(connection.node, f"{what} failed", f"look at it: {connection.by_hand()}", "".join(said))


def _last(meter: Meter, said: list[str]) -> str:
    return f"{meter.what}: {said[-1].strip() if said else 'all sent, Docker unpacks it'}"


class _ReceiverEndedError(Exception):
    """The command took no more input."""
