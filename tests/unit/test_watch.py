"""Watching: what a preview's events come to, what is told, and that two watches never overlap."""

from __future__ import annotations

import json
import re
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
from watch import Finding, Kind, seconds

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
    """Stands for Pulumi: previews as told, and ups."""

    name = "lab"

    def __init__(self, *previews: list[dict[str, Any]], fails: type[automation.CommandError] | None = None) -> None:
        self.previews = list(previews)
        self.fails = fails
        self.ups = 0

    def _run(self, found: list[dict[str, Any]], on_event: Callable[[events.EngineEvent], None]) -> None:
        for event in found:
            on_event(events.EngineEvent.from_json(event))
        if self.fails:
            raise self.fails(automation._cmd.CommandResult(stdout="", stderr="error: it failed", code=255))

    def preview(self, *, on_event: Callable[[events.EngineEvent], None], color: str) -> None:
        assert color == "never"
        if not self.previews:
            raise KeyboardInterrupt
        self._run(self.previews.pop(0), on_event)

    def up(self, *, on_event: Callable[[events.EngineEvent], None], color: str) -> None:
        assert color == "never"
        self.ups += 1
        self._run([], on_event)


@pytest.mark.parametrize(
    ("stack", "finding"),
    [
        (Stack(SAME), Finding(Kind.CLEAN)),
        (
            Stack([step(op, "a:b:GpuGate", "gpus") for op in ("delete-replaced", "replace", "create-replacement")]),
            Finding(Kind.DRIFT, "GpuGate gpus (replace)"),
        ),
        (Stack([*SAME, step("update", "pulumi:pulumi:Stack", "x")]), Finding(Kind.CLEAN)),
        (
            Stack([*SAME, *GONE]),
            Finding(Kind.DRIFT, "Container spark-2-ray-worker (create), GpuGate gpus (create)"),
        ),
        (
            Stack([DEAD], fails=automation.CommandError),
            Finding(Kind.FAULT, "spark-2: 192.168.200.13 does not answer"),
        ),
        (Stack([], fails=automation.ConcurrentUpdateError), Finding(Kind.LOCKED, watch.UNLOCK.format(stack="lab"))),
    ],
)
def test_preview_comes_to_one_finding(stack: Any, finding: Finding) -> None:
    assert watch.look(stack) == finding
    assert "\n" not in finding.line("lab")


def test_failure_without_an_event_has_pulumis_last_word() -> None:
    stack: Any = Stack([], fails=automation.CommandError)
    finding = watch.look(stack)
    assert finding.kind is Kind.FAULT
    assert finding.text


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own; no pause between two checks."""
    monkeypatch.setattr(watch, "ROOT", tmp_path)
    monkeypatch.setattr("watch.time.sleep", lambda _: None)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, stack: Stack, **options: Any) -> None:
    monkeypatch.setattr(automation, "select_stack", lambda *_, **__: stack)
    watch.main(**{"stack": "lab", "every": "5m", "webhook": None, "heal_": False, "once": False} | options)


def test_changes_are_told_once_and_every_check_is_a_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, Stack(SAME, GONE, GONE, SAME, SAME), webhook=webhook[0])
    printed = capsys.readouterr().out.splitlines()
    kinds = [match[1] for line in printed if (match := re.match(r"\S+ lab: (\w+)", line))]
    assert kinds == ["clean", "drift", "drift", "clean", "clean"]
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
    assert heard.out.count(" lab: ") == 2


@pytest.mark.usefixtures("home")
def test_second_watch_of_a_stack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with watch.alone("lab"), pytest.raises(SystemExit, match="another watch of stack lab runs"):
        run(monkeypatch, Stack(SAME))
