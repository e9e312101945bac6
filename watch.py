"""Watch a stack: `python -m watch --every 5m [--heal]`. A preview at that pace, drift as one line, repair by `up`."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from threading import Event
from typing import Annotated

import requests
import typer
from pulumi import automation
from pulumi.automation import errors, events

import locks

ROOT = Path(__file__).parent
CHANGES = frozenset({"create", "update", "replace", "delete"})
"""Operations of Pulumi that change something, without the parts of a replacement."""
WEBHOOK_SECONDS = 10.0
STOP_SECONDS = 0.5
"""How long a running pulumi may go on before it hears of a stop."""


class Kind(StrEnum):
    """What a check came to."""

    CLEAN = "clean"
    DRIFT = "drift"
    FAULT = "fault"
    BUSY = "busy"
    LOCKED = "locked"
    HEALED = "healed"
    STOPPED = "stopped"


WELL = frozenset({Kind.CLEAN, Kind.HEALED})
PASSING = frozenset({Kind.BUSY, Kind.STOPPED})
"""No news of the cluster: these go to the log only."""


@dataclass(frozen=True)
class Finding:
    """One line."""

    kind: Kind
    text: str = ""

    def line(self, stack: str) -> str:
        """With time and stack."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        return f"{now} {stack}: {self.kind}{f': {self.text}' if self.text else ''}"


class Listener:
    """Collects what matters of the engine's events."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.errors: list[str] = []

    def __call__(self, event: events.EngineEvent) -> None:
        """Take one event."""
        if event.resource_pre_event and (metadata := event.resource_pre_event.metadata).op.value in CHANGES:
            kind, name = metadata.urn.split("::")[-2:]
            if kind.endswith("pulumi:pulumi:Stack") or ("pulumi:providers:" in kind and name.startswith("default")):
                return  # Pulumi's own: a default provider changes with its plugin, the stack with its outputs
            self.steps.append(f"{kind.rpartition(':')[2]} {name} ({metadata.op.value})")
        if event.diagnostic_event and event.diagnostic_event.severity == "error":
            # Cause of each fault; remedy and evidence are what a preview by hand is for.
            found = [line for line in event.diagnostic_event.message.splitlines() if line and not line.startswith(" ")]
            self.errors += [re.sub(r"<\{%.*?%\}>", "", line) for line in found]


class Pulumi(automation.PulumiCommand):
    """The CLI, in a process group of its own and told of a stop once.

    A Ctrl-C or a closed terminal signals a whole group. Pulumi ends in good order at the first signal and at once, with
    its lock and its pending operations left, at a second: so it is to hear of a stop from here only.
    """

    def __init__(self, stop: Event) -> None:
        super().__init__()
        self.stop = stop

    def run(
        self, args: list[str], cwd: str, additional_env: Mapping[str, str], *_: object, **__: object
    ) -> automation.CommandResult:
        """Run one command to its end; CommandError where it fails. A stop shortens those that may take minutes."""
        command = [self.command, "--non-interactive", *args]
        env = {**os.environ, **additional_env, "PULUMI_AUTOMATION_API": "true"}
        to_tell = args[0] in ("preview", "up")
        with Popen(
            command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=cwd, env=env, encoding="utf-8", process_group=0
        ) as process:
            while True:
                try:
                    out, err = process.communicate(timeout=STOP_SECONDS)
                    break
                except TimeoutExpired:
                    if to_tell and self.stop.is_set():
                        process.send_signal(signal.SIGINT)
                        to_tell = False
        result = automation.CommandResult(out, err, process.returncode)
        if result.code:
            raise errors.create_command_error(result)
        return result


@dataclass(frozen=True)
class Watched:
    """A stack, and the folder of its locks."""

    stack: automation.Stack
    locks: Path | None
    stop: Event

    @classmethod
    def select(cls, name: str, stop: Event) -> Watched:
        """An existing stack of this checkout; CommandError where there is none."""
        options = automation.LocalWorkspaceOptions(pulumi_command=Pulumi(stop))
        stack = automation.select_stack(name, work_dir=str(ROOT), opts=options)
        return cls(stack, locks.folder(stack), stop)

    def look(self) -> Finding:
        """One preview. It takes no lock and minds none: what somebody has half done would look like drift."""
        if held := self._held():
            return held
        heard = Listener()
        failed = self._failure(self.stack.preview, heard)
        # In the order of the engine's events they would be another drift each time.
        steps = sorted(heard.steps)
        if not failed and not steps:
            return Finding(Kind.CLEAN)
        return self._held() or failed or Finding(Kind.DRIFT, ", ".join(steps))

    def heal(self) -> Finding:
        """One up."""
        began = time.monotonic()
        return self._failure(self.stack.up, Listener()) or Finding(Kind.HEALED, f"in {time.monotonic() - began:.0f} s")

    def _held(self) -> Finding | None:
        found = locks.held(self.locks, self.stack.name)
        return Finding(Kind.BUSY if found.busy else Kind.LOCKED, found.text) if found else None

    def _failure(self, operation: Callable[..., object], heard: Listener) -> Finding | None:
        try:
            operation(on_event=heard, color="never")
        except automation.ConcurrentUpdateError:
            unlock = locks.UNLOCK.format(stack=self.stack.name)
            return self._held() or Finding(Kind.LOCKED, f"if no pulumi works on this stack any more: {unlock}")
        except automation.CommandError as error:
            if self.stop.is_set():
                return Finding(Kind.STOPPED)
            return Finding(Kind.FAULT, "; ".join(heard.errors) or _last_line(error))
        return None


def _last_line(error: automation.CommandError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "pulumi failed without a word"


@dataclass
class Report:
    """Says every finding, and what is new of the cluster to a webhook as Slack and its like take it."""

    stack: str
    webhook: str | None
    told: dict[Kind, str] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Take one finding; a webhook that does not answer is said, and no more."""
        line = finding.line(self.stack)
        typer.echo(line)
        if finding.kind in PASSING:
            return
        well = finding.kind in WELL
        news = self.told if well else self.told.get(finding.kind) != finding.text
        self.told = {} if well else self.told | {finding.kind: finding.text}
        if news and self.webhook:
            try:
                requests.post(self.webhook, json={"text": line}, timeout=WEBHOOK_SECONDS).raise_for_status()
            except requests.RequestException as error:
                typer.echo(f"the webhook did not take it: {type(error).__name__}", err=True)


def seconds(text: str) -> float:
    """Seconds of `90s`, `5m` or `1h`."""
    match = re.fullmatch(r"(\d+)([smh])", text)
    if not match or not int(match[1]):
        raise typer.BadParameter(f"{text!r} is no pace such as 30s, 5m or 1h")
    return float(int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]])


@contextmanager
def alone(stack: str) -> Iterator[None]:
    """One watch of a stack at a time on this machine; the lock ends with its process."""
    path = ROOT / ".state" / f"watch-{stack}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another watch of stack {stack} runs on this machine: end that one first")
        yield


def main(
    stack: Annotated[str, typer.Option(help="Stack to watch.")] = "lab",
    every: Annotated[str, typer.Option(help="Pace: 30s, 5m, 1h.")] = "5m",
    webhook: Annotated[str | None, typer.Option(envvar="WATCH_WEBHOOK", help="URL that is told of changes.")] = None,
    *,
    heal_: Annotated[bool, typer.Option("--heal", help="Run pulumi up when there is drift.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Check once; exit code 1 unless all is well.")] = False,
) -> None:
    """Look at a stack again and again. Ctrl-C, or systemd's stop, ends it, and in good order what Pulumi does."""
    pace, stop = seconds(every), Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, or a script's `&`, has it
            signal.signal(number, lambda *_: stop.set())
    with alone(stack):
        try:
            watched = Watched.select(stack, stop)
        except automation.CommandError as error:
            sys.exit(f"no stack {stack}: {_last_line(error)}")
        report = Report(stack, webhook)
        while not stop.is_set():
            began = time.monotonic()
            report.add(finding := watched.look())
            if heal_ and finding.kind is Kind.DRIFT and not stop.is_set():
                report.add(finding := watched.heal())
            if once:
                sys.exit(0 if finding.kind in WELL else 1)
            stop.wait(max(0.0, pace - (time.monotonic() - began)))
        typer.echo("watching ends")


if __name__ == "__main__":
    typer.run(main)
