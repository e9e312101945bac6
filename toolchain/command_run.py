"""Runs one command of `command:local:Command` and tells its output while it comes."""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

from toolchain.process_groups import EndedError, ProcessGroups

DEFAULT_INTERPRETER = ("/bin/sh", "-c")
_READ_BYTES = 1 << 16
_OUTPUT_BYTES = 4000
_COMMAND_BYTES = 1000
"""How much of output and command an error carries. gRPC sends it in a header, each byte that is not plain ASCII as
three, and some clients take no header above 16 KiB. The whole output has been logged."""


class CommandError(Exception):
    """The command could not be started, failed, or was ended; the message is for the operator."""


@dataclass(frozen=True)
class Job:
    """A command and what it runs in. `secrets` are texts that must not appear in an error."""

    command: str
    interpreter: tuple[str, ...] = DEFAULT_INTERPRETER
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """What a command wrote, without the last line's end."""

    stdout: str
    stderr: str


def run(job: Job, children: ProcessGroups, log: Callable[[str, str], None]) -> Output:
    """Runs a job to its end.

    Args:
        job: What to run.
        children: Where the process is registered, so that it can be ended.
        log: Called with ("stdout" or "stderr", whole lines) while the command runs, from two threads.

    Raises:
        CommandError: It could not be started, ended with a code other than 0, or was ended by us.
    """
    try:
        process = children.start(
            [*job.interpreter, job.command],
            cwd=job.directory,
            env=dict(os.environ) | dict(job.environment),
            stdin=subprocess.PIPE if job.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except EndedError:
        raise CommandError("cancelled before the command was started") from None
    except (OSError, ValueError) as error:
        raise CommandError(_why_not_started(job, error)) from None
    captured: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    everything: list[bytes] = []

    def pump(stream: IO[bytes], name: str) -> None:
        pending = b""
        while chunk := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
            captured[name].append(chunk)
            everything.append(chunk)
            lines, newline, pending = (pending + chunk).rpartition(b"\n")
            if newline:
                log(name, lines.decode(errors="replace"))
            elif len(pending) >= _READ_BYTES:  # one endless line: do not gather it a second time
                log(name, pending.decode(errors="replace"))
                pending = b""
        if pending:
            log(name, pending.decode(errors="replace"))

    threads = [
        threading.Thread(target=pump, args=(process.stdout, "stdout")),
        threading.Thread(target=pump, args=(process.stderr, "stderr")),
    ]
    for thread in threads:
        thread.start()
    if process.stdin is not None:
        _feed(process.stdin, job.stdin)
    for thread in threads:
        thread.join()
    code = children.wait(process)
    if code != 0:
        raise CommandError(_failure(job, code, _text(everything), cancelled=children.ended))
    return Output(_text(captured["stdout"]), _text(captured["stderr"]))


def _feed(stream: IO[bytes], text: str) -> None:
    try:
        with stream:
            stream.write(text.encode())
    except BrokenPipeError:
        pass  # a command need not read its input


def _text(chunks: list[bytes]) -> str:
    # Properties travel as UTF-8; what is not, must not fail the whole operation.
    return b"".join(chunks).decode(errors="replace").removesuffix("\n")


def _failure(job: Job, code: int, output: str, *, cancelled: bool) -> str:
    end = "cancelled" if cancelled else f"exit status {code}" if code > 0 else f"ended by signal {-code}"
    # Blanked out first: of a secret that is cut in two, the half could not be found.
    command = redact(job.command, job.secrets).encode()
    shown = redact(output, job.secrets).encode()
    if len(command) > _COMMAND_BYTES:
        command = command[:_COMMAND_BYTES] + "…".encode()
    if len(shown) > _OUTPUT_BYTES:
        shown = f"[… {len(shown) - _OUTPUT_BYTES} bytes before]\n".encode() + shown[-_OUTPUT_BYTES:]
    return f"{end}: running {command.decode(errors='replace')!r}:\n{shown.decode(errors='replace')}"


def _why_not_started(job: Job, error: OSError | ValueError) -> str:
    if job.directory is not None and not os.path.isdir(job.directory):  # noqa: PTH112 (any string)
        return f"the directory {job.directory!r} ('dir') does not exist or is no directory"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return (
            "the command and its environment are too long for the operating system; where a previous output is what "
            "makes them long, set addPreviousOutputInEnv to false"
        )
    return redact(f"could not start {job.interpreter[0]!r}: {error}", job.secrets)


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """Puts [secret] in place of each secret and of each of its lines."""
    lines = {line for secret in secrets for line in (secret, *secret.splitlines()) if line.strip()}
    for line in sorted(lines, key=len, reverse=True):
        text = text.replace(line, "[secret]")
    return text
