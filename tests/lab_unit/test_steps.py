"""Steps: order, skipping, failure, interruption."""

import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from lab import processes
from lab.processes import CommandFailedError, LabError
from lab.steps import Step, StepFailedError, run_steps


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    processes._stopping.clear()


def run(*steps: Step) -> str:
    out = StringIO()
    run_steps(steps, Console(file=out, width=200))
    return out.getvalue()


def test_needs_come_first_and_ready_steps_are_skipped() -> None:
    done: list[str] = []

    def make(name: str) -> Callable[[Callable[[str], None]], None]:
        return lambda _note: done.append(name)

    said = run(
        Step("last", lambda: False, make("last"), ("first", "right")),
        Step("first", lambda: False, make("first")),
        Step("right", lambda: True, make("right")),
    )
    assert done == ["first", "last"]
    assert "already right" in said


def test_failure_names_the_step_and_ends_the_others(tmp_path: Path) -> None:
    started = threading.Event()
    pid_file = tmp_path / "pid"
    script = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); print('on', flush=True)"

    def endless(_note: Callable[[str], None]) -> None:
        processes.run([sys.executable, "-c", f"{script}; time.sleep(600)"], note=lambda _line: started.set())

    def fail(_note: Callable[[str], None]) -> None:
        assert started.wait(30)
        raise LabError("it broke", evidence="the log", next_step="mend it")

    with pytest.raises(StepFailedError) as caught:
        run(Step("endless", lambda: False, endless), Step("broken", lambda: False, fail))
    assert (caught.value.problem, caught.value.evidence) == ("broken: it broke", "the log")
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_failed_command_keeps_its_last_lines() -> None:
    with pytest.raises(CommandFailedError) as caught:
        processes.run([sys.executable, "-c", "print('first'); print('last'); raise SystemExit(3)"])
    assert caught.value.code == 3
    assert caught.value.evidence.endswith("last")


def test_missing_program_is_an_error_of_the_lab() -> None:
    with pytest.raises(LabError, match="no-such-program is not installed"):
        processes.capture(["no-such-program"])


def test_a_command_that_does_not_answer_is_ended() -> None:
    with pytest.raises(CommandFailedError, match="ended with code -9") as caught:
        processes.capture([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.5)
    assert "no answer within" in caught.value.evidence
