"""Fixtures of the program tests."""

from __future__ import annotations

import pytest

from tests.program.stack import Program


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program under mocks."""
    return Program(monkeypatch)
