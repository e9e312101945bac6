"""Readings by name, shown as they come and as a table at the end."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

console = Console()


class Samples:
    """Readings by name; `unit` is part of the name."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Take the seconds that the block takes."""
        began = time.monotonic()
        yield
        self.since(name, began)

    def since(self, name: str, began: float) -> None:
        """Take the seconds since a reading of the monotonic clock."""
        self.take(name, time.monotonic() - began)

    def take(self, name: str, value: float) -> None:
        """Take one reading and show it."""
        self.values[name].append(value)
        console.print(f"  {name}: {value:.2f}")

    def ratio(self, name: str, ours: str, theirs: str) -> None:
        """Take the ratio of the latest two readings."""
        self.take(f"ratio {name}", self.values[ours][-1] / self.values[theirs][-1])

    def table(self) -> Table:
        """All readings: count, min, median, max."""
        table = Table("reading", "runs", "min", "median", "max")
        for name, values in self.values.items():
            table.add_row(
                name,
                str(len(values)),
                *(f"{pick(values):.2f}" for pick in (min, statistics.median, max)),
            )
        return table
