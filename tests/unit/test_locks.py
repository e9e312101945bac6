"""Locks of a backend that is a folder: where they are, and what they tell of the run that took them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import locks


def take(folder: Path, pid: int, host: str = "") -> Path:
    """A lock as Pulumi writes it."""
    lock = {"pid": pid, "username": "aurora", "hostname": host or socket.gethostname()}
    path = folder / "79f5069f-f98c-4a3a-9647-753708fb13fc.json"
    path.write_text(json.dumps(lock | {"timestamp": "2026-11-30T11:20:49.193536069Z"}))
    return path


@pytest.fixture
def pulumi(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that name."""
    program = tmp_path / "pulumi"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_free(tmp_path: Path) -> None:
    (tmp_path / "x.json.attrs").touch()
    assert locks.held(tmp_path, "desk") is None
    assert locks.held(tmp_path / "absent", "desk") is None
    assert locks.held(None, "desk") is None


def test_run_at_work(tmp_path: Path, pulumi: subprocess.Popen[bytes]) -> None:
    take(tmp_path, pulumi.pid)
    found = locks.held(tmp_path, "desk")
    assert found
    assert found.busy
    assert found.text.startswith(f"pulumi (pid {pulumi.pid}) of aurora@{socket.gethostname()}, since 2026-11-30T")


def test_killed_run(tmp_path: Path, pulumi: subprocess.Popen[bytes]) -> None:
    take(tmp_path, pulumi.pid)
    pulumi.kill()
    os.waitid(os.P_PID, pulumi.pid, os.WEXITED | os.WNOWAIT)  # a zombie: nobody has asked for its exit code yet
    zombie = locks.held(tmp_path, "desk")
    pulumi.wait()
    assert zombie == locks.held(tmp_path, "desk")
    assert zombie
    assert not zombie.busy
    assert zombie.text.endswith("ended without giving its lock back: make unlock STACK=desk")


def test_number_of_a_killed_run_given_again(tmp_path: Path) -> None:
    take(tmp_path, os.getpid())
    found = locks.held(tmp_path, "desk")
    assert found
    assert not found.busy


def test_run_on_another_host(tmp_path: Path, pulumi: subprocess.Popen[bytes]) -> None:
    take(tmp_path, pulumi.pid, "laptop")
    found = locks.held(tmp_path, "desk")
    assert found
    assert not found.busy
    assert "aurora@laptop" in found.text
    assert found.text.endswith("if it runs there no more: make unlock STACK=desk")


def test_lock_that_a_power_cut_left_empty(tmp_path: Path) -> None:
    take(tmp_path, 1).write_text("")
    found = locks.held(tmp_path, "desk")
    assert found
    assert not found.busy
    assert found.text.endswith("cannot be read (ValidationError); if no pulumi runs: make unlock STACK=desk")


def test_lock_given_back_between_list_and_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to("absent")
    assert locks.held(tmp_path, "desk") is None


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        ("file:///srv/state", "/srv/state"),
        ("file:///srv/state?no_tmp_dir=true", "/srv/state"),
        ("file://./state", "/checkout/state"),
        ("file://~", "/home/aurora"),
        ("file://~/state", "/home/aurora/state"),
        ("https://app.pulumi.com/aurora", None),
        ("s3://bucket", None),
        (None, None),
    ],
)
def test_folder(monkeypatch: pytest.MonkeyPatch, url: str | None, backend: str | None) -> None:
    monkeypatch.setenv("HOME", "/home/aurora")
    workspace = SimpleNamespace(
        work_dir="/checkout",
        who_am_i=lambda: SimpleNamespace(url=url),
        project_settings=lambda: SimpleNamespace(name="dgx-spark-cluster"),
    )
    stack: Any = SimpleNamespace(name="desk", workspace=workspace)
    wanted = backend and Path(backend, ".pulumi/locks/organization/dgx-spark-cluster/desk")
    assert locks.folder(stack) == wanted
