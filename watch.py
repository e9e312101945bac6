"""Watch a stack: `python -m watch --every 5m [--heal]`. A preview at that pace, drift as one line, repair by `up`."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Annotated

import requests
import typer
from pulumi import automation
from pulumi.automation import events

ROOT = Path(__file__).parent
CHANGES = frozenset({"create", "update", "replace", "delete"})
"""Operations of Pulumi that change something, without the parts of a replacement."""
WEBHOOK_SECONDS = 10.0
UNLOCK = (
    "another pulumi works on this stack, or one that was killed left its lock; if none runs: make unlock STACK={stack}"
)


class Kind(StrEnum):
    """What a check came to."""

    CLEAN = "clean"
    DRIFT = "drift"
    FAULT = "fault"
    LOCKED = "locked"
    HEALED = "healed"


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
            self.steps.append(f"{kind.rpartition(':')[2]} {name} ({metadata.op.value})")
        if event.diagnostic_event and event.diagnostic_event.severity == "error":
            # Cause of each fault; remedy and evidence are what a preview by hand is for.
            found = [line for line in event.diagnostic_event.message.splitlines() if line and not line.startswith(" ")]
            self.errors += [re.sub(r"<\{%.*?%\}>", "", line) for line in found]


def look(stack: automation.Stack) -> Finding:
    """One preview."""
    heard = Listener()
    try:
        stack.preview(on_event=heard, color="never")
    except automation.ConcurrentUpdateError:
        return Finding(Kind.LOCKED, UNLOCK.format(stack=stack.name))
    except automation.CommandError as error:
        return Finding(Kind.FAULT, "; ".join(heard.errors) or _last_line(error))
    # A stack's own step says only that its outputs change with the others.
    steps = [step for step in heard.steps if not step.startswith("Stack ")]
    return Finding(Kind.DRIFT, ", ".join(steps)) if steps else Finding(Kind.CLEAN)


def heal(stack: automation.Stack) -> Finding:
    """One up."""
    heard, began = Listener(), time.monotonic()
    try:
        stack.up(on_event=heard, color="never")
    except automation.ConcurrentUpdateError:
        return Finding(Kind.LOCKED, UNLOCK.format(stack=stack.name))
    except automation.CommandError as error:
        return Finding(Kind.FAULT, "; ".join(heard.errors) or _last_line(error))
    return Finding(Kind.HEALED, f"in {time.monotonic() - began:.0f} s")


def _last_line(error: automation.CommandError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "pulumi failed without a word"


def tell(line: str, webhook: str | None) -> None:
    """Send a line to a webhook as Slack and its like take it; one that does not answer is said, and no more."""
    if webhook:
        try:
            requests.post(webhook, json={"text": line}, timeout=WEBHOOK_SECONDS).raise_for_status()
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
    """Look at a stack again and again. Ctrl-C, or systemd's stop, ends it after what Pulumi does at that moment."""
    pace = seconds(every)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with alone(stack):
        try:
            found = automation.select_stack(stack, work_dir=str(ROOT))
        except automation.CommandError as error:
            sys.exit(f"no stack {stack}: {_last_line(error)}")
        told: dict[Kind, str] = {}
        try:
            while True:
                began = time.monotonic()
                finding = look(found)
                typer.echo(finding.line(stack))
                findings = [finding]
                if heal_ and finding.kind is Kind.DRIFT:
                    findings.append(heal(found))
                    typer.echo(findings[-1].line(stack))
                for one in findings:
                    well = one.kind in (Kind.CLEAN, Kind.HEALED)
                    if told if well else told.get(one.kind) != one.text:
                        tell(one.line(stack), webhook)
                    told = {} if well else told | {one.kind: one.text}
                if once:
                    sys.exit(1 if told else 0)
                time.sleep(max(0.0, pace - (time.monotonic() - began)))
        except KeyboardInterrupt:
            typer.echo("watching ends")


if __name__ == "__main__":
    typer.run(main)
