"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fake_docker import FakeDocker


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """A docker without Docker."""
    return FakeDocker.on_path(tmp_path / "docker", monkeypatch)
