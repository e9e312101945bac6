"""Says what is being built and for how long: a live table on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from toolchain.process_groups import EndedError

HEARTBEAT_SECONDS = 15.0
"""Between two plain lines of a task that is still at work."""


class Task:
    """One piece of work; `detail` may be set from any thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.detail = ""
        self.started = time.monotonic()

    @property
    def elapsed(self) -> str:
        """Whole time since the start, as 4 min 05 s."""
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


class Reporter:
    """Shows tasks while they run; to be used as a context manager around all of them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._tasks: dict[Task, TaskID | None] = {}
        self._closed = threading.Event()
        self._live = (
            Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[now]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self._beat = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._beat.join()
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        """A line of its own."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def task(self, name: str, expected: str = "") -> Iterator[Task]:
        """Shows a task until the block ends; says at the end how long it took."""
        task = Task(name)
        self.say(f"{name}: started{f' ({expected})' if expected else ''}")
        with self._lock:
            self._tasks[task] = self._live.add_task(name, total=None, now="") if self._live else None
        outcome = "failed"
        try:
            yield task
            outcome = "done"
        except EndedError:
            outcome = "ended"
            raise
        finally:
            with self._lock:
                shown = self._tasks.pop(task)
                if self._live and shown is not None:
                    self._live.remove_task(shown)
            self.say(f"{name}: {outcome} after {task.elapsed}")

    def _follow(self) -> None:
        while not self._closed.wait(0.25 if self._live else HEARTBEAT_SECONDS):
            with self._lock:
                for task, shown in self._tasks.items():
                    if self._live and shown is not None:
                        self._live.update(shown, now=task.detail)
                    else:
                        self.say(f"{task.name}: at work for {task.elapsed}{f', {task.detail}' if task.detail else ''}")
