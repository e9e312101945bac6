"""Runs the steps of `up` side by side, each as soon as what it needs is there, and tells how they get on."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from lab import processes
from lab.processes import LabError, StoppingError

HEARTBEAT = 5.0  # seconds without a line after which a running step is shown again


@dataclass(frozen=True)
class Step:
    """One thing that `up` brings about; skipped when `ready` says that it is already right."""

    name: str
    ready: Callable[[], bool]
    make: Callable[[Callable[[str], None]], None]
    needs: tuple[str, ...] = ()


class StepFailedError(LabError):
    """A step failed; names it."""

    def __init__(self, step: str, cause: LabError) -> None:
        super().__init__(
            f"{step}: {cause.problem}",
            evidence=cause.evidence,
            next_step=cause.next_step or "mend that and run `python -m lab up` again: it goes on from here",
        )


@dataclass
class _Run:
    step: Step
    console: Console
    began: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)
    last_line: str = ""
    failure: LabError | None = None
    done: bool = False
    stopped: bool = False
    thread: threading.Thread | None = None

    def note(self, line: str) -> None:
        self.last_line = line

    def show(self, mark: str, text: str) -> None:
        self.shown = time.monotonic()
        elapsed = self.shown - self.began
        self.console.print(f"{mark} {self.step.name:<22} {elapsed:6.1f} s  {escape(text)}", highlight=False, crop=True)

    def work(self) -> None:
        try:
            if self.step.ready():
                self.show("[green]=[/]", "already right")
            else:
                self.show("[cyan]>[/]", "started")
                self.step.make(self.note)
                self.show("[green]+[/]", "done")
            self.done = True
        except StoppingError:
            self.stopped = True
        except LabError as error:
            self.failure = error
        except OSError as error:
            self.failure = LabError(str(error))


def run_steps(steps: Sequence[Step], console: Console) -> None:
    """Run all steps. Raises StepFailedError for the first that fails, after ending what else runs."""
    waiting = {step.name: step for step in steps}
    runs: dict[str, _Run] = {}
    try:
        while waiting or any(run.thread and run.thread.is_alive() for run in runs.values()):
            for name, step in list(waiting.items()):
                if all(need in runs and runs[need].done for need in step.needs):
                    del waiting[name]
                    run = runs[name] = _Run(step, console)
                    run.thread = threading.Thread(target=run.work, name=name, daemon=True)
                    run.thread.start()
            time.sleep(0.05)
            for run in runs.values():
                if run.failure:
                    raise StepFailedError(run.step.name, run.failure)
                if not run.done and time.monotonic() - run.shown > HEARTBEAT:
                    run.show("[cyan]…[/]", run.last_line[:100])
    finally:
        _end(runs)


def _end(runs: dict[str, _Run]) -> None:
    alive = [run.thread for run in runs.values() if run.thread and run.thread.is_alive()]
    if alive:
        processes.stop_all()
        for thread in alive:
            thread.join(15)
