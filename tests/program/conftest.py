"""Fixtures of the program tests."""

from __future__ import annotations

import asyncio

import pytest

from tests.program.stack import Program


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program under mocks, with the event loop that they need."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    return Program(monkeypatch)
