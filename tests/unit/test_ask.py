"""What the asker says of a stack that has no endpoint."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

import ask


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
