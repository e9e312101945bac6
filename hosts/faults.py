"""What went wrong, where, how it is known and what to do: the only error that reaches a user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hosts.diagnosis import undecorated

EVIDENCE_LINES = 12
"""Raw output comes last and bounded."""


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818 - a fault of the user's side, not of the program
    """A fault of configuration or host. Its text is the whole message: cause, next step, evidence."""

    node: str
    """Node (or nodes) it was found on."""
    cause: str
    """What is wrong, in one line."""
    remedy: str
    """What the user does next."""
    evidence: str = ""
    """Raw output that shows it."""

    def __str__(self) -> str:
        text = f"{self.node}: {self.cause}\n  next: {self.remedy}"
        lines = [line.rstrip() for line in _without_stacks(self.evidence.strip().splitlines()) if line.strip()]
        if lines:
            text += "\n  evidence:\n" + "\n".join(f"    {line[:400]}" for line in lines[-EVIDENCE_LINES:])
        return text


def _without_stacks(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a log without the stacks of Python: the exception that ends one says what happened."""
    in_stack = False
    for line in lines:
        bare = undecorated(line)
        in_stack = bare.startswith(("Traceback (most recent", '  File "')) or (in_stack and bare.startswith("    "))
        if not in_stack:
            yield line


class Faults(Exception):  # noqa: N818 - the plural of Fault
    """Several faults found at once, so that a user need not find them one run at a time."""

    def __init__(self, faults: list[Fault], note: str = "") -> None:
        super().__init__("\n".join([*map(str, faults), *([note] if note else [])]))
        self.faults = faults
