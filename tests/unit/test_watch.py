"""Watching: what a preview's events come to, what is told, what a stop does, and that two runs never overlap."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from pulumi import automation
from pulumi.automation import events

import watch
from locks import Held
from watch import Finding, Kind, Watched, seconds

URN = "urn:pulumi:lab::dgx-spark-cluster::dgx-spark-cluster:index:Cluster$"


def step(op: str, kind: str, name: str) -> dict[str, Any]:
    """An event of the engine, as its event log has it."""
    metadata = {"op": op, "urn": f"{URN}{kind}::{name}", "type": kind, "provider": ""}
    return {"sequence": 1, "timestamp": 1, "resourcePreEvent": {"metadata": metadata}}


def error(message: str) -> dict[str, Any]:
    diagnostic = {"message": message, "color": "never", "severity": "error"}
    return {"sequence": 1, "timestamp": 1, "diagnosticEvent": diagnostic}


SAME = [step("same", "docker:index/container:Container", "spark-1-serve"), step("refresh", "a:b:GpuGate", "gpus")]
GONE = [step("create", "docker:index/container:Container", "spark-2-ray-worker"), step("create", "a:b:GpuGate", "gpus")]
DEAD = error(
    "<{%reset%}>spark-2: 192.168.200.13 does not answer\n  next: is it switched on?\n  evidence:\n    ssh: x\n"
)


class Stack:
    """Stands for Pulumi: previews as told, and ups; a stop comes during the preview after these."""

    name = "lab"

    def __init__(self, *previews: list[dict[str, Any]], fails: type[automation.CommandError] | None = None) -> None:
        self.previews = list(previews)
        self.fails = fails
        self.ups = 0
        self.stopped_by = signal.SIGTERM

    def _run(self, found: list[dict[str, Any]], on_event: Callable[[events.EngineEvent], None]) -> None:
        for event in found:
            on_event(events.EngineEvent.from_json(event))
        if self.fails:
            raise self.fails(automation._cmd.CommandResult(stdout="", stderr="error: it failed", code=255))

    def preview(self, *, on_event: Callable[[events.EngineEvent], None], color: str) -> None:
        assert color == "never"
        if not self.previews:
            signal.raise_signal(self.stopped_by)
            self.fails = automation.CommandError
        self._run(self.previews.pop(0) if self.previews else [], on_event)

    def up(self, *, on_event: Callable[[events.EngineEvent], None], color: str) -> None:
        assert color == "never"
        self.ups += 1
        self._run([], on_event)


def watched(stack: Any) -> Watched:
    return Watched(stack, None, threading.Event())


@pytest.mark.parametrize(
    ("stack", "finding"),
    [
        (Stack(SAME), Finding(Kind.CLEAN)),
        (
            Stack([step(op, "a:b:GpuGate", "gpus") for op in ("delete-replaced", "replace", "create-replacement")]),
            Finding(Kind.DRIFT, "GpuGate gpus (replace)"),
        ),
        (Stack([*SAME, step("update", "pulumi:pulumi:Stack", "x")]), Finding(Kind.CLEAN)),
        (Stack([*SAME, step("update", "pulumi:providers:pulumi-python", "default")]), Finding(Kind.CLEAN)),
        (
            Stack([*SAME, *reversed(GONE)]),  # events come in any order
            Finding(Kind.DRIFT, "Container spark-2-ray-worker (create), GpuGate gpus (create)"),
        ),
        (
            Stack([DEAD], fails=automation.CommandError),
            Finding(Kind.FAULT, "spark-2: 192.168.200.13 does not answer"),
        ),
    ],
)
def test_preview_comes_to_one_finding(stack: Any, finding: Finding) -> None:
    assert watched(stack).look() == finding
    assert "\n" not in finding.line("lab")


def test_failure_without_an_event_has_pulumis_last_word() -> None:
    stack: Any = Stack([], fails=automation.CommandError)
    finding = watched(stack).look()
    assert finding.kind is Kind.FAULT
    assert finding.text


def test_up_beside_another_run_of_a_backend_that_does_not_show_its_locks() -> None:
    finding = watched(Stack([], fails=automation.ConcurrentUpdateError)).heal()
    assert finding.kind is Kind.LOCKED
    assert finding.text.endswith("make unlock STACK=lab")


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> list[Held | None]:
    """What is found of a lock, look by look; none after these."""
    found: list[Held | None] = []
    monkeypatch.setattr("watch.locks.held", lambda *_: found.pop(0) if found else None)
    return found


@pytest.mark.parametrize(("busy", "kind"), [(True, Kind.BUSY), (False, Kind.LOCKED)])
def test_no_preview_beside_a_lock(lock: list[Held | None], busy: bool, kind: Kind) -> None:
    lock.append(Held(busy, "pulumi works"))
    stack = Stack(GONE)
    assert watched(stack).look() == Finding(kind, "pulumi works")
    assert stack.previews == [GONE]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (Stack(GONE), Kind.BUSY),
        (Stack([DEAD], fails=automation.CommandError), Kind.BUSY),
        (Stack(SAME), Kind.CLEAN),
    ],
)
def test_run_that_began_during_the_preview(lock: list[Held | None], stack: Stack, kind: Kind) -> None:
    lock += [None, Held(busy=True, text="pulumi works")]
    assert watched(stack).look().kind is kind


@pytest.mark.parametrize(("text", "wanted"), [("30s", 30), ("5m", 300), ("2h", 7200)])
def test_pace(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-5m", "5 m", "5d"])
def test_no_pace(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no pace"):
        seconds(text)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A webhook and what it was told."""
    told: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", told
    server.shutdown()
    server.server_close()


class Impatient(threading.Event):
    """Waits for a stop no longer than it takes to look."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        return self.is_set()


SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of its own; no pause between two checks."""
    monkeypatch.setattr(watch, "ROOT", tmp_path)
    monkeypatch.setattr(watch, "Event", Impatient)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}  # a script's `&` ignores SIGINT
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, stack: Any, **options: Any) -> None:
    monkeypatch.setattr(Watched, "select", lambda _, stop: Watched(stack, None, stop))
    watch.main(**{"stack": "lab", "every": "5m", "webhook": None, "heal_": False, "once": False} | options)


def test_changes_are_told_once_and_every_check_is_a_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, Stack(SAME, GONE, GONE, SAME, SAME), webhook=webhook[0])
    printed = capsys.readouterr().out.splitlines()
    kinds = [match[1] for line in printed if (match := re.match(r"\S+ lab: (\w+)", line))]
    assert kinds == ["clean", "drift", "drift", "clean", "clean", "stopped"]
    assert printed[-1] == "watching ends"
    assert [re.sub(r"^\S+ ", "", line) for line in webhook[1]] == [
        "lab: drift: Container spark-2-ray-worker (create), GpuGate gpus (create)",
        "lab: clean",
    ]
    assert (home / ".state").is_dir()


@pytest.mark.usefixtures("home")
def test_heal_follows_drift_only(monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[str]]) -> None:
    stack = Stack(SAME, GONE, SAME)
    run(monkeypatch, stack, heal_=True, webhook=webhook[0])
    assert stack.ups == 1
    assert [line.split()[2].rstrip(":") for line in webhook[1]] == ["drift", "healed"]


@pytest.mark.usefixtures("home")
def test_heal_that_fails_again_and_again_is_told_once(
    monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[str]]
) -> None:
    stack: Any = Stack(GONE, GONE, GONE, SAME)

    def fails(**_: Any) -> None:
        raise automation.CommandError(automation._cmd.CommandResult(stdout="", stderr="error: it failed", code=255))

    stack.up = fails
    run(monkeypatch, stack, heal_=True, webhook=webhook[0])
    assert [line.split()[2].rstrip(":") for line in webhook[1]] == ["drift", "fault", "clean"]


@pytest.mark.usefixtures("home")
def test_without_heal_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(GONE)
    run(monkeypatch, stack)
    assert stack.ups == 0


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("preview", "heal", "code"), [(SAME, False, 0), (GONE, False, 1), (GONE, True, 0)])
def test_once_tells_by_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, preview: list[dict[str, Any]], heal: bool, code: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, Stack(preview), once=True, heal_=heal)
    assert ended.value.code == code


@pytest.mark.usefixtures("home")
def test_webhook_that_does_not_answer_is_said_and_watching_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, Stack(GONE, SAME), webhook="http://127.0.0.1:9/secret")
    heard = capsys.readouterr()
    assert "the webhook did not take it: ConnectionError" in heard.err
    assert "secret" not in heard.err + heard.out
    assert heard.out.count(" lab: ") == 3


@pytest.mark.usefixtures("home")
def test_second_watch_of_a_stack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with watch.alone("lab"), pytest.raises(SystemExit, match="another watch of stack lab runs"):
        run(monkeypatch, Stack(SAME))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("number", SIGNALS)
def test_stop(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    stack = Stack(SAME)
    stack.stopped_by = number
    run(monkeypatch, stack)
    assert capsys.readouterr().out.splitlines()[-1] == "watching ends"


@pytest.mark.usefixtures("home")
def test_no_repair_is_begun_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(GONE)
    drift = stack.preview

    def preview(**options: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        drift(**options)

    monkeypatch.setattr(stack, "preview", preview)
    run(monkeypatch, stack, heal_=True)
    assert stack.ups == 0


@pytest.mark.usefixtures("home")
def test_signal_that_was_ignored_from_the_start_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run(monkeypatch, Stack(SAME))
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("home")
def test_run_of_somebody_else_is_no_news(
    monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[str]], lock: list[Held | None]
) -> None:
    lock += [None, None, Held(busy=True, text="pulumi works")]
    run(monkeypatch, Stack(GONE, GONE), webhook=webhook[0])
    assert [line.split()[2].rstrip(":") for line in webhook[1]] == ["drift"]


PULUMI = """#!/bin/sh
case "$*" in
    version) echo v3.250.0 ;;
    *up*)
        trap 'echo interrupted >> "$JOURNAL"' INT
        ps -o pgid=,pid= -p $$ > "$JOURNAL.group"
        until [ -e "$JOURNAL" ]; do sleep 0.02; done
        sleep 0.2
        echo "error: update canceled" >&2; exit 255 ;;
    *) sleep 0.2; echo whole ;;
esac
"""


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> watch.Pulumi:
    """A CLI that notes its process group and what it is told; the stop has already come."""
    (tmp_path / "pulumi").write_text(PULUMI)
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setattr(watch, "STOP_SECONDS", 0.02)
    stop = threading.Event()
    stop.set()
    return watch.Pulumi(stop)


def test_pulumi_hears_of_a_stop_once_and_in_a_group_of_its_own(pulumi: watch.Pulumi, tmp_path: Path) -> None:
    with pytest.raises(automation.CommandError, match="update canceled"):
        pulumi.run(["up", "--yes"], str(tmp_path), {})
    assert (tmp_path / "journal").read_text() == "interrupted\n"
    group, process = (tmp_path / "journal.group").read_text().split()
    assert group == process


def test_question_to_pulumi_is_not_cut_short(pulumi: watch.Pulumi, tmp_path: Path) -> None:
    assert pulumi.run(["whoami"], str(tmp_path), {}).stdout == "whole\n"
