"""The copy of a model between two nodes that are this machine: what is sent, what is resumed, what is said."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.ssh import Connection
from hosts.weights.look import LEDGER, PARTIAL
from providers import weights_copy
from providers.image_copy import NotConnected, Source
from providers.plugin import CANCELLED
from providers.weights_copy import RECEIVER, SENDER, ByteMeter, Order, copy, duration, point
from tests.samples.models import COMMIT, contents, directory, hub_entry

SOURCE = Source(Connection("spark-1", ()), "127.0.0.1")
TARGET = Connection("spark-2", ())
TOKEN = "c" * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model on the first node."""
    return directory(tmp_path / "one" / "m", contents(size=300_000) | {"sub/more.json": b"{}"})


def order(model: Path, **changes: Any) -> Order:
    """All files of a model, to a directory beside it that does not exist."""
    paths = [path for path in model.rglob("*") if path.is_file() and not path.is_symlink()]
    files = {str(path.relative_to(model)): path.stat().st_size for path in paths}
    given: dict[str, Any] = {
        "origin": str(model),
        "root": str(model.parent.parent / "two" / "m"),
        "files": files,
    }
    return Order(**({**given, "streams": 3} | changes))


def same(one: Path, other: Path) -> bool:
    """Equal names, contents, times and link targets; the ledger aside."""

    def described(root: Path) -> dict[str, Any]:
        return {
            str(path.relative_to(root)): str(path.readlink())
            if path.is_symlink()
            else (path.read_bytes(), path.stat().st_mtime_ns)
            for path in root.rglob("*")
            if (path.is_symlink() or path.is_file()) and path.name != LEDGER
        }

    return described(one) == described(other)


def same_but_times_of_refs(one: Path, other: Path) -> bool:
    """A ref is written, not copied."""
    for root in (one, other):
        for ref in (root / "refs").iterdir():
            os.utime(ref, (0, 0))
    return same(one, other)


def test_directory_is_copied_whole_with_its_times(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = order(model)
    assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values())
    assert same(model, Path(wanted.root))
    assert capfd.readouterr().out.startswith("Model of spark-2, from spark-1: 0.9 MB sent in ")
    assert set((Path(wanted.root) / LEDGER).read_text().splitlines()) == set(wanted.files)


def test_unchanged_files_are_not_sent(model: Path) -> None:
    wanted = order(model)
    copy(SOURCE, TARGET, wanted)
    assert copy(SOURCE, TARGET, wanted) == 0


def test_only_the_file_of_wrong_size_is_sent_and_is_not_noted_as_ours(model: Path) -> None:
    wanted = order(model)
    directory(Path(wanted.root), {path: (model / path).read_bytes() for path in wanted.files})
    (Path(wanted.root) / "config.json").write_bytes(b"{}")
    assert copy(SOURCE, TARGET, wanted) == wanted.files["config.json"]
    assert (Path(wanted.root) / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert not (Path(wanted.root) / LEDGER).exists()


def test_part_of_an_interrupted_run_is_used(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = order(model)
    name = "model-00002-of-00003.safetensors"
    about = (model / name).stat()
    root = directory(Path(wanted.root), {})
    root.mkdir(parents=True)
    part = root / f"{name}.{about.st_size}-{about.st_mtime_ns:x}{PARTIAL}"
    part.write_bytes((model / name).read_bytes()[:200_000])
    other = root / f"{name}.{about.st_size}-1{PARTIAL}"
    other.write_bytes(b"of another version")
    assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values()) - 200_000
    assert same(model, root)
    assert "0.2 MB were there of an earlier run" in capfd.readouterr().out


def test_entry_of_the_hub_cache_keeps_its_links(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path / "one", contents())
    links = {f"snapshots/{COMMIT}/{name}": str((entry / "snapshots" / COMMIT / name).readlink()) for name in contents()}
    wanted = order(entry, root=str(tmp_path / "two" / entry.name))
    del wanted.files["refs/main"]  # type: ignore[attr-defined]
    assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values())
    point(TARGET, wanted.root, links, {"refs/main": COMMIT})
    assert same_but_times_of_refs(entry, Path(wanted.root))
    noted = (Path(wanted.root) / LEDGER).read_text().splitlines()
    assert sorted(noted) == sorted([*wanted.files, *links, "refs/main"])
    assert copy(SOURCE, TARGET, wanted) == 0


def test_links_and_refs_take_the_place_of_what_is_wrong_there(tmp_path: Path) -> None:
    root = directory(tmp_path / "m", {"refs/main": b"b" * 40, f"refs/main{PARTIAL}": b"of an interrupted run"})
    (root / "a.json").symlink_to("nowhere")
    (root / f"a.json{PARTIAL}").symlink_to("nowhere")
    point(TARGET, str(root), {"a.json": "config.json"}, {"refs/main": COMMIT})
    assert (root / "a.json").readlink() == Path("config.json")
    assert (root / "refs" / "main").read_text() == COMMIT
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["a.json", "refs", "refs/main"]


def test_directory_that_does_not_take_links_is_told_with_its_words(tmp_path: Path) -> None:
    root = directory(tmp_path / "m", {"snapshots": b"a file in the place of the directory"})
    with pytest.raises(Fault, match="the model cannot be written") as caught:
        point(TARGET, str(root), {"snapshots/a/config.json": "../../blobs/1f"}, {})
    assert caught.value.node == "spark-2"
    assert caught.value.evidence.strip().startswith(("Not a directory: ", "File exists: "))


@pytest.mark.parametrize("words", ["Welcome!", "5", '"x"', "[1]", "null"])
def test_words_of_the_shell_before_the_first_of_ours_do_no_harm(
    model: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """An echo in .bashrc, or a banner: ssh's words are in the same stream."""
    monkeypatch.setattr(weights_copy, "SENDER", f"print({words!r}, flush=True)\n{SENDER}")
    monkeypatch.setattr(weights_copy, "RECEIVER", f"print({words!r}, flush=True)\n{RECEIVER}")
    monkeypatch.setattr(weights_copy, "DIGEST", f"print({words!r}, flush=True)\n{weights_copy.DIGEST}")
    wanted = order(model)
    assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values())
    assert weights_copy.differing(SOURCE, TARGET, wanted) == []


def test_checksums_find_what_sizes_do_not(tmp_path: Path, model: Path) -> None:
    wanted = order(model)
    copy(SOURCE, TARGET, wanted)
    assert weights_copy.differing(SOURCE, TARGET, wanted) == []
    (Path(wanted.root) / "config.json").write_bytes(b"x" * wanted.files["config.json"])
    assert weights_copy.differing(SOURCE, TARGET, wanted) == ["config.json"]
    assert copy(SOURCE, TARGET, wanted) == 0
    again = order(model, files={"config.json": wanted.files["config.json"]}, anew=True)
    assert copy(SOURCE, TARGET, again) == wanted.files["config.json"]
    assert weights_copy.differing(SOURCE, TARGET, wanted) == []
    entry = hub_entry(tmp_path / "hub", contents())
    blobs = order(entry, root=str(entry))
    assert weights_copy.differing(SOURCE, TARGET, blobs) == [], "blobs are what their names say"


def test_file_that_has_changed_since_the_survey_is_told(model: Path) -> None:
    wanted = order(model)
    with (model / "config.json").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Fault, match=r"config\.json has \d+ bytes, \d+ a moment ago") as caught:
        copy(SOURCE, TARGET, wanted)
    assert caught.value.node == "spark-1"


def test_file_that_has_gone_since_the_survey_is_told(model: Path) -> None:
    wanted = order(model)
    (model / "config.json").unlink()
    with pytest.raises(Fault, match="sending the model failed") as caught:
        copy(SOURCE, TARGET, wanted)
    assert "No such file or directory" in caught.value.evidence
    assert not Path(wanted.root).exists()


def test_source_not_reached_over_the_fabric_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_copy, "RECEIVER", RECEIVER.replace('question["port"])', "1)"))
    with pytest.raises(NotConnected, match=r"spark-1 is not reached on 127\.0\.0\.1 \(fabric\)") as caught:
        copy(SOURCE, TARGET, order(model))
    assert caught.value.node == "spark-2"
    assert "Connection refused" in caught.value.evidence


def test_no_room_is_known_before_the_first_byte(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_copy, "RECEIVER", RECEIVER.replace("SLACK = 1.01", "SLACK = 1e12"))
    wanted = order(model)
    with pytest.raises(Fault, match="the model cannot be written") as caught:
        copy(SOURCE, TARGET, wanted)
    assert "no room: " in caught.value.evidence
    assert [path for path in Path(wanted.root).rglob("*") if path.is_file()] == []


def test_disk_that_refuses_is_told_with_its_words(model: Path) -> None:
    wanted = order(model)
    directory(Path(wanted.root), {"sub": b"a file in the place of the directory"})
    with pytest.raises(Fault, match="the model cannot be written") as caught:
        copy(SOURCE, TARGET, wanted)
    assert "File exists" in caught.value.evidence


def test_interrupt_ends_both_ends_and_the_parts_stay(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = order(model, streams=1)
    # A receiver that stands still after its first bytes.
    slow = RECEIVER.replace("self.got[number] += count", "self.got[number] += count; time.sleep(60)")
    monkeypatch.setattr(weights_copy, "RECEIVER", slow)
    update = ByteMeter.update

    def press(meter: ByteMeter, sent: int) -> None:
        update(meter, sent)
        if sent:
            CANCELLED.set()

    monkeypatch.setattr(ByteMeter, "update", press)
    processes: list[subprocess.Popen[str]] = []
    start = Connection.start

    def noted(connection: Connection, *argv: str) -> subprocess.Popen[str]:
        processes.append(start(connection, *argv))
        return processes[-1]

    monkeypatch.setattr(Connection, "start", noted)
    try:
        with pytest.raises(Fault, match="interrupted while the model was on its way"):
            copy(SOURCE, TARGET, wanted)
    finally:
        CANCELLED.clear()
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)
    (part,) = Path(wanted.root).rglob(f"*{PARTIAL}")
    kept = part.stat().st_size
    assert kept > 0
    monkeypatch.undo()
    assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values()) - kept
    assert same(model, Path(wanted.root))


def test_copy_waits_for_the_end_of_another_into_the_same_directory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write into one part, which then had the right size and other bytes."""
    wanted = order(model)
    holding = RECEIVER.replace("say(need=need, kept=kept)", "say(need=need, kept=kept); time.sleep(60)")
    assert holding != RECEIVER
    question = {"address": "127.0.0.1", "port": 1, "token": TOKEN, "root": wanted.root, "anew": False, "streams": 1}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout
        other.stdin.write(json.dumps({**question, "files": {"config.json": [2, 1]}}) + "\n")
        other.stdin.flush()
        assert "need" in json.loads(other.stdout.readline())
        update, told = ByteMeter.update, []

        def end(meter: ByteMeter, sent: int) -> None:
            update(meter, sent)
            if meter.waiting:
                told.append(str(meter))
                assert other.stdin
                other.stdin.close()

        monkeypatch.setattr(ByteMeter, "update", end)
        assert copy(SOURCE, TARGET, wanted) == sum(wanted.files.values())
    assert told[0].endswith("an earlier run's copy is still on its way there: waiting for its end")
    assert same(model, Path(wanted.root))


@contextmanager
def sender(model: Path, script: str = SENDER) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A sender of the model's configuration, and what it offers."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        question = {"address": "127.0.0.1", "token": TOKEN, "root": str(model), "files": ["config.json"]}
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        yield process, json.loads(process.stdout.readline())
        process.kill()


def asked(port: int, token: str, request: dict[str, Any]) -> bytes:
    """What one connection gives."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(token.encode())
        try:
            link.sendall(json.dumps(request).encode() + b"\n")
            link.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: link.recv(1 << 16), b""))
        except OSError:  # it has hung up
            return b""


def test_sender_gives_what_is_offered_to_who_has_the_token_and_nothing_else(model: Path) -> None:
    with sender(model) as (process, offer):
        content = (model / "config.json").read_bytes()
        request = {"file": "config.json", "offset": 3}
        assert asked(offer["port"], "w" * 64, request) == b""
        assert asked(offer["port"], TOKEN, request) == content[3:]
        assert asked(offer["port"], TOKEN, {"file": "../../../etc/passwd", "offset": 0}) == b""
        assert asked(offer["port"], TOKEN, {"file": "tokenizer.json", "offset": 0}) == b""
        assert process.stdin
        process.stdin.close()
        assert process.wait(5) == 0


def test_sender_waits_as_long_as_a_login_takes(model: Path) -> None:
    script = SENDER.replace("CONNECT_SECONDS = 30.0", "CONNECT_SECONDS = 0.05")
    assert script != SENDER
    with sender(model, script) as (_, offer):
        for _ in range(2):
            time.sleep(0.3)
            content = asked(offer["port"], TOKEN, {"file": "config.json", "offset": 0})
            assert content == (model / "config.json").read_bytes()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (600, "10 min")])
def test_time_left_is_shown_as_people_read_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_has_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("providers.transfer.time.monotonic", lambda: now[0])
    meter = ByteMeter("Model of spark-2, from spark-1", 119e9)
    meter.update(1)
    now[0] += 10
    meter.update(20_000_000_000)
    assert str(meter) == "Model of spark-2, from spark-1: 20.0 GB of 119.0 GB, 2.0 GB/s, 50 s left"
