"""Pulumi's commands on the lab's stack, as a user gives them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
STACK = "lab"


def pulumi(*arguments: str, told: Mapping[str, Callable[[], None]] | None = None) -> None:
    """Run a pulumi command on the stack; call what is to be done as soon as its output has a text."""
    command = ["pulumi", *arguments, "--stack", STACK, "--non-interactive", "--color", "never"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    waiting, lines = dict(told or {}), []
    assert process.stdout  # noqa: S101 - opened as a pipe
    for line in process.stdout:
        lines.append(line)
        for text in [text for text in waiting if text in line]:
            waiting.pop(text)()
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(lines[-30:])}")
    if waiting:  # else a ratio would be made of another run's reading
        raise SystemExit(f"{' '.join(command)} never said {' nor '.join(waiting)}")
