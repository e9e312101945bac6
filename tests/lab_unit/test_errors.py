"""The lab's API that fails while it calls itself healthy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lab.engine_plugin import errors


def answer(app: errors.Errors, path: str) -> list[Any]:
    """What one request gets."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(app({"type": "http", "path": path}, receive, send))
    return sent


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that makes it fail, already there."""
    path = tmp_path / "errors"
    path.touch()
    monkeypatch.setattr(errors, "WANTED", path)
    return path


async def sound(_scope: Any, _receive: Any, send: Any) -> None:
    """The API itself."""
    await send({"type": "http.response.start", "status": 200})


def test_completions_fail_and_health_does_not_until_the_process_is_a_new_one(wanted: Path) -> None:
    app = errors.Errors(sound)
    assert answer(app, "/v1/completions")[0]["status"] == 200, "a new process forgets it"
    wanted.touch()
    start, body = answer(app, "/v1/completions")
    assert start["status"] == 500
    assert json.loads(body["body"])["error"]["code"] == 500
    assert answer(app, "/health")[0]["status"] == 200
