"""What the fault matrix measures, for docs/faults.md."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median


@contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of a block, in a list when it has ended."""
    seconds: list[float] = []
    began = time.monotonic()
    yield seconds
    seconds.append(time.monotonic() - began)


@dataclass(frozen=True)
class Repair:
    """One fault and its repair."""

    fault: str
    named: str
    """What the preview named."""
    replaced: str
    """Whose containers are others afterwards."""
    preview: float | None
    """Seconds of the preview that named it, or ended with the error."""
    up: float | None
    """Seconds until one `up` had brought back a completion; of the destroy where the row says so."""


@dataclass
class Report:
    """The repairs of a run beside a full start and a clean preview, all in seconds."""

    starts: list[float] = field(default_factory=list)
    clean: list[float] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    def table(self, kept: str) -> str:
        """The matrix as Markdown, with the rows of an earlier one that were not run again."""
        start, clean = (f"{median(some):.1f}" if some else "–" for some in (self.starts, self.clean))
        rows = {line.split(" | ", 1)[0]: line for line in kept.splitlines() if line.startswith("| ")}
        for one in self.repairs:
            cells = (
                one.named or "nothing",
                one.replaced or "nothing",
                _seconds(one.preview, ".1f"),
                _ratio(one.preview, self.clean),
                _seconds(one.up, ".0f"),
                _ratio(one.up, self.starts),
            )
            rows[f"| {one.fault}"] = " | ".join((f"| {one.fault}", *cells)) + " |"
        rows.pop(HEADER.split(" | ", 1)[0], None)
        return "\n".join(
            (ABOUT.format(start=start, clean=clean), HEADER, "|---|---|---|---|---|---|---|", *rows.values(), "")
        )


def _seconds(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _ratio(value: float | None, to: Sequence[float]) -> str:
    return "–" if value is None or not to else f"{value / median(to):.2f}"


HEADER = "| fault | preview names | replaced | preview, s | ÷ clean | up, s | ÷ full start |"
ABOUT = """\
# Faults and their repair

Made by `make faults` on the lab (two simulated Sparks on two processors): each fault is injected into a serving cluster
(`python -m lab fault …`, or a change of the settings), then one `pulumi up` must bring back a completion, replace only
the containers named here, and leave a preview without changes. An error ends preview and `up` until the fault is taken
back; its times are those of the preview that says it and of the `up` afterwards. Ratios are to the full start and the
clean preview of a row's own run: {start} s and {clean} s in the last one; rows that it did not run are of earlier ones.
"""
