"""The completion probe as it runs in serve's container: a process against an API that streams as vLLM does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from providers.probes import COMPLETION
from providers.serve_gate import judge

KEY = "sk-very-secret"


@dataclass
class Api:
    """What the API does, and what it was asked."""

    answer: Callable[[BaseHTTPRequestHandler, int], None]
    port: int = 0
    flowed: float = 12.0
    """Generated tokens by its metrics, which vLLM 0.32 shows so."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def stream(handler: BaseHTTPRequestHandler, *events: dict[str, Any], end: bytes = b"data: [DONE]\n\n") -> None:
    """Server-sent events in vLLM's form."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
    handler.end_headers()
    for event in events:
        handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    handler.wfile.write(end)


def chunk(text: str, reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return {"id": "cmpl-1", "object": "text_completion", "model": "qwen", "choices": [choice], "usage": None}


def usage(tokens: int) -> dict[str, Any]:
    count = {"prompt_tokens": 1, "total_tokens": 1 + tokens, "completion_tokens": tokens}
    return {"id": "cmpl-1", "object": "text_completion", "model": "qwen", "choices": [], "usage": count}


def tokens(handler: BaseHTTPRequestHandler, wanted: int) -> None:
    stream(handler, *(chunk(" a") for _ in range(wanted - 1)), chunk(" z", "length"), usage(wanted))


def error(status: int, text: str) -> Callable[[BaseHTTPRequestHandler, int], None]:
    body = json.dumps({"error": {"message": text, "type": "error", "code": status}}).encode()

    def answer(handler: BaseHTTPRequestHandler, _wanted: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def api() -> Iterator[Api]:
    """An API on a port of the loopback; `api.answer` says what it does with a request for completions."""
    state = Api(tokens)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                labels = '{engine="0",model_name="qwen"}'
                text = f"# HELP vllm:x\nvllm:prompt_tokens_total{labels} 5.0\n"
                text += f"vllm:generation_tokens_total{labels} {state.flowed}\n"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())
                return
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append(body)
            state.headers.append(dict(self.headers.items()))
            state.paths.append(self.path)
            state.answer(self, body["max_tokens"])

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    state.released.set()
    server.shutdown()
    server.server_close()


def command(url: str, *, limit: float = 5, pause: float = 0) -> list[str]:
    return [sys.executable, "-u", "-c", COMPLETION, url, "qwen", str(limit), str(pause)]


def ask(api: Api, *, limit: float = 5, pause: float = 0, key: str | None = None) -> dict[str, Any]:
    """The first reading, with a pause after word of the question; without one the probe must end by itself."""
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    environment |= {"VLLM_API_KEY": key} if key else {}
    with subprocess.Popen(
        command(api.url, limit=limit, pause=pause),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        if key:
            assert key not in Path(f"/proc/{process.pid}/cmdline").read_text()
        line = process.stdout.readline()
        if pause:
            while json.loads(line)["state"] in ("asked", "completed"):
                line = process.stdout.readline()
            process.stdin.close()
        assert process.wait(20) == 0, line + process.stdout.read()
        assert not key or key not in line
        found: dict[str, Any] = json.loads(line)
        return found


def test_one_reading_is_one_token(api: Api) -> None:
    assert ask(api) == {"state": "verified"}
    assert api.paths == ["/v1/completions"]
    assert [(body["model"], body["max_tokens"], body["stream"]) for body in api.asked] == [("qwen", 1, True)]


def test_while_waiting_a_second_completion_is_measured(api: Api) -> None:
    found = ask(api, pause=60)
    assert found["state"] == "verified"
    assert found["first_token_seconds"] >= 0
    assert found["tokens_per_second"] > 0
    assert [body["max_tokens"] for body in api.asked] == [1, 16]


def test_key_comes_from_the_environment_and_shows_nowhere(api: Api) -> None:
    assert ask(api, key=KEY) == {"state": "verified"}
    assert api.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_without_a_key_no_header_is_sent(api: Api) -> None:
    ask(api)
    assert "Authorization" not in api.headers[0]


@pytest.mark.parametrize(("status", "text"), [(401, "Unauthorized"), (404, "The model `x` does not exist.")])
def test_request_that_is_denied_is_no_reason_for_a_restart_and_the_key_shows_nowhere(
    api: Api, status: int, text: str
) -> None:
    api.answer = error(status, text)
    found = ask(api, key=KEY)
    assert found["state"] == "denied"
    assert f"HTTP {status}" in found["error"]
    assert (judge(found).opened, judge(found).stuck) == (False, None)


def test_closed_port_is_refused() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: what vLLM does while it loads
        assert ask(Api(tokens, unused.getsockname()[1])) == {"state": "refused"}


def test_error_of_a_completion_counts_though_health_is_good(api: Api) -> None:
    """C11."""
    api.answer = error(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
    found = ask(api)
    assert found["state"] == "failing"
    assert "HTTP 500" in found["error"]
    assert "EngineCore encountered an issue" in found["error"]
    assert not judge(found).opened


def test_error_inside_the_stream_is_failing(api: Api) -> None:
    event = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    api.answer = lambda handler, _wanted: stream(handler, event)
    found = ask(api)
    assert found["state"] == "failing"
    assert "EngineCore died" in found["error"]


@pytest.mark.parametrize("events", [(), (usage(0),), (chunk(""), usage(0))])
def test_stream_without_a_token_is_failing(api: Api, events: tuple[dict[str, Any], ...]) -> None:
    api.answer = lambda handler, _wanted: stream(handler, *events)
    assert ask(api) == {"state": "failing", "error": "RuntimeError: the answer had no token"}


@pytest.mark.parametrize("end", [b"data: {broken\n\n", b'data: {"choices": 5, "usage": 5}\n\n'])
def test_garbage_is_failing(api: Api, end: bytes) -> None:
    api.answer = lambda handler, _wanted: stream(handler, end=end)
    assert ask(api)["state"] == "failing"


def test_connection_that_breaks_is_failing(api: Api) -> None:
    api.answer = lambda handler, _wanted: handler.connection.shutdown(socket.SHUT_RDWR)
    assert ask(api)["state"] == "failing"


def test_hanging_answer_is_bounded_by_the_limit(api: Api) -> None:
    def hang(_handler: BaseHTTPRequestHandler, _wanted: int) -> None:
        api.released.wait()

    api.answer = hang
    found = ask(api, limit=0.3)
    assert found == {"state": "silent", "error": "no answer within 0 s (timed out)"}
    assert judge(found).stuck


def test_api_that_is_stuck_itself_is_told_without_a_completion() -> None:
    """As after SIGSTOP of its process: the kernel takes the connection, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        found = ask(Api(tokens, stopped.getsockname()[1]), limit=1000)
    assert found == {"state": "mute", "error": "no answer within 2 s, not even its metrics"}
    assert (judge(found).opened, bool(judge(found).stuck)) == (False, True)


def test_engine_that_is_busy_with_others_is_not_stuck(api: Api) -> None:
    def hang(_handler: BaseHTTPRequestHandler, _wanted: int) -> None:
        api.flowed += 1000
        api.released.wait()

    api.answer = hang
    found = ask(api, limit=0.3)
    assert found["state"] == "busy"
    assert judge(found).opened


def test_answer_that_drips_without_end_is_bounded_by_the_limit(api: Api) -> None:
    def drip(handler: BaseHTTPRequestHandler, _wanted: int) -> None:
        stream(handler, chunk(" a"), end=b"")
        while not api.released.wait(0.02):
            handler.wfile.write(b": keep-alive\n\n")

    api.answer = drip
    found = ask(api, limit=0.3)
    assert found == {"state": "failing", "error": "RuntimeError: no end within 0 s"}


def test_probe_goes_on_until_its_input_closes(api: Api) -> None:
    api.answer = error(503, "loading")
    with subprocess.Popen(
        command(api.url, pause=0.01), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert [json.loads(process.stdout.readline())["state"] for _ in range(2)] == ["asked", "failing"]
        api.answer = tokens
        lines = iter(process.stdout.readline, "")
        assert any(json.loads(line)["state"] == "verified" for line in lines)
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("reading", "opened", "text"),
    [
        ({"state": "verified"}, True, "a completion came back"),
        ({"state": "refused"}, False, "loading (the port refuses connections)"),
        ({"state": "asked"}, False, "loaded; waiting for the first completion"),
        ({"state": "failing", "error": "HTTP 500: x"}, False, "completion fails: HTTP 500: x"),
        ({"error": "no answer within 15 s"}, False, "completion fails: no answer within 15 s"),
        ({}, False, "completion fails: no reading"),
    ],
)
def test_gate_judges_the_reading(reading: dict[str, Any], opened: bool, text: str) -> None:
    verdict = judge(reading)
    assert (verdict.opened, verdict.text, verdict.fault) == (opened, text, None)
