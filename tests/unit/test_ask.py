"""What the asker says of a stack that has no endpoint."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
import typer
from typer.testing import CliRunner

import ask
from lab import access


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        ({}, "stack lab serves nothing: run pulumi up first"),
        ({"nodes": [], "ray": {"address": "192.168.200.12:6379"}}, "its settings say `serve: false`"),
    ],
)
def test_stack_that_serves_nothing_says_why(
    monkeypatch: pytest.MonkeyPatch, outputs: dict[str, Any], wanted: str
) -> None:
    done = subprocess.CompletedProcess([], 0, json.dumps(outputs), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SystemExit, match=wanted):
        ask.outputs("lab")


class Api(BaseHTTPRequestHandler):
    """Answers whom the key of the configuration opens it to."""

    def do_POST(self) -> None:
        known = self.headers["Authorization"] == "Bearer s3cret"
        answer = {"choices": [{"message": {"content": "Hi"}}], "usage": {"completion_tokens": 1}}
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer if known else {"error": "Unauthorized"}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("configured", "answered"), [("s3cret\n", True), ("", False)])
def test_key_is_that_of_the_stack(monkeypatch: pytest.MonkeyPatch, configured: str, *, answered: bool) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        outputs = json.dumps({"endpoint": f"http://127.0.0.1:{server.server_port}/v1", "model": "tiny"})

        def pulumi(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, 0, configured if "apiKey" in command else outputs, "")

        monkeypatch.setattr(subprocess, "run", pulumi)
        monkeypatch.setattr(access, "is_up", lambda: True)
        monkeypatch.delenv("API_KEY", raising=False)
        application = typer.Typer()
        application.command()(ask.main)
        done = CliRunner().invoke(application, ["--stack", "lab"])
        server.shutdown()
    assert (done.exit_code == 0) == answered
    assert ("tiny: 'Hi'" in done.output) == answered
    assert ("next: pulumi preview" in done.output) != answered


def test_lab_that_is_down_is_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its addresses are somebody else's then."""
    monkeypatch.setattr(access, "is_up", lambda: False)
    monkeypatch.setattr(ask, "outputs", lambda _: {"endpoint": "http://10.1.230.180:30000/v1", "model": "tiny"})
    monkeypatch.setattr(requests, "post", lambda *_, **__: pytest.fail("dialled"))
    with pytest.raises(SystemExit, match="the lab is down: not dialling"):
        ask.main()
