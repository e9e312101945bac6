"""The sender: which layers it leaves out, in both formats of docker save, and whom it serves."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts import fabric_link
from hosts.images import receiver as image_receiver
from hosts.images import sender as image_sender
from hosts.images.sender import Counted, chain_ids, without_held
from providers.image_copy import SENDER
from tests.samples.archives import Saved, legacy, oci
from tests.unit.fake_docker import FakeDocker, says

Format = Callable[[Path, str, Sequence[bytes]], Saved]
IMAGE = "vllm:1"
TOKEN = "c" * 64


@pytest.mark.parametrize("script", [fabric_link, image_sender, image_receiver])
def test_scripts_are_of_the_python_that_nodes_have(script: ModuleType) -> None:
    ast.parse(Path(str(script.__file__)).read_text(), feature_version=(3, 8))


def filtered(saved: Saved, held: int) -> dict[str, bytes | None]:
    """What remains of an archive: content by name, None for links."""
    out = io.BytesIO()
    sink = Counted(out.write)
    with saved.path.open("rb") as source:
        without_held(source, sink, saved.layers, held)
    assert sink.count == len(out.getvalue())
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        return {one.name: tar.extractfile(one).read() if one.isreg() else None for one in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize("format_", [legacy, oci])
@pytest.mark.parametrize("held", range(4))
def test_layers_of_the_target_are_left_out_and_nothing_else(tmp_path: Path, format_: Format, held: int) -> None:
    saved = format_(tmp_path / "image.tar", IMAGE, [b"base" * 400, b"middle", b"top"])
    everything, rest = filtered(saved, 0), filtered(saved, held)
    assert set(everything) - set(rest) == set(saved.files[:held])
    assert rest == {name: everything[name] for name in rest}


@given(
    layers=st.lists(st.sampled_from([b"", b"a", b"b" * 600, b"c"]), min_size=1, max_size=6),
    held=st.integers(0, 6),
    format_=st.sampled_from([legacy, oci]),
)
def test_every_layer_that_the_target_lacks_is_there(layers: list[bytes], held: int, format_: Format) -> None:
    """Also one that occurs below and again above, where the older format has a link to the first."""
    with tempfile.TemporaryDirectory() as folder:
        saved = format_(Path(folder) / "image.tar", IMAGE, layers)
        rest = filtered(saved, min(held, len(layers)))
        with tarfile.open(saved.path) as tar:
            links = {one.name: one.linkname for one in tar if one.issym()}
    for name, layer in list(zip(saved.files, layers, strict=True))[held:]:
        assert rest[links[name][3:] if name in links else name] == layer


def test_directory_that_cannot_be_told_is_kept(tmp_path: Path) -> None:
    saved = legacy(tmp_path / "image.tar", IMAGE, [b"base", b"top"])
    other = Saved(saved.path, saved.id, ["sha256:" + "0" * 64, "sha256:" + "1" * 64], saved.files)
    assert filtered(other, 1) == filtered(saved, 0)


@pytest.mark.parametrize("described", [b"", b"{", b"[]", b"\xff", b'{"a":1', b"{}"])
def test_unreadable_description_is_no_layer(described: bytes) -> None:
    assert image_sender.legacy_layer("0" * 64, described, chain_ids(["sha256:" + "a" * 64])) is None


def test_compressed_archive_is_read_as_docker_load_reads_it(tmp_path: Path) -> None:
    saved = oci(tmp_path / "image.tar", IMAGE, [b"base", b"top"])
    with tarfile.open(tmp_path / "image.tar.gz", "w:gz") as packed, tarfile.open(saved.path) as plain:
        for one in plain:
            packed.addfile(one, plain.extractfile(one))
    assert filtered(Saved(tmp_path / "image.tar.gz", "", saved.layers, []), 1) == filtered(saved, 1)


def test_stream_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    saved = oci(tmp_path / "image.tar", IMAGE, [b"base" * 5000, b"top"])
    saved.path.write_bytes(saved.path.read_bytes()[:3000])
    with pytest.raises(tarfile.TarError):
        filtered(saved, 0)


@contextmanager
def started(**question: Any) -> Iterator[subprocess.Popen[str]]:
    """A sender on loopback."""
    asked = {"address": "127.0.0.1", "token": TOKEN, "reference": IMAGE, "layers": [], "held": 0} | question
    with subprocess.Popen(
        [sys.executable, "-u", "-c", SENDER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        yield process
        process.kill()


@contextmanager
def sender(**question: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A sender that listens, and its port."""
    with started(**question) as process:
        assert process.stdout
        yield process, json.loads(process.stdout.readline())["port"]


def last(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says at last."""
    assert process.stdout
    found: dict[str, Any] = json.loads(process.stdout.readlines()[-1])
    return found


def receive(port: int, token: str = TOKEN) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(token.encode())
        return b"".join(iter(lambda: link.recv(1 << 16), b""))


def test_image_is_sent_once_to_the_one_with_the_token(docker: FakeDocker) -> None:
    saved = oci(docker.home / "saved", IMAGE, [b"base" * 1000, b"top"])
    with sender(layers=saved.layers, held=1) as (process, port):
        assert receive(port, "w" * 64) == b""
        received = receive(port)
        assert last(process) == {"done": len(received)}
        assert process.wait(5) == 0
        with pytest.raises(ConnectionRefusedError):
            receive(port)
    with tarfile.open(fileobj=io.BytesIO(received)) as tar:
        names = tar.getnames()
    assert saved.files[0] not in names
    assert {saved.files[1], "manifest.json"} <= set(names)
    assert docker.called("save") == [["save", IMAGE]]


def test_wrong_token_starts_nothing(docker: FakeDocker) -> None:
    with sender() as (_, port):
        assert receive(port, "x" * 64) == b""
    assert not docker.called("save")


def test_docker_that_fails_is_told_in_its_own_words(docker: FakeDocker) -> None:
    docker.answer(f"save {IMAGE}", says(code=1, stderr="no space left on device"))
    with sender() as (process, port):
        receive(port)
        assert last(process) == {"error": "no space left on device", "of": "save"}


def test_address_that_is_not_this_machine_is_told(docker: FakeDocker) -> None:  # noqa: ARG001 - no real one
    with started(address="192.0.2.1") as process:
        assert last(process)["error"].startswith("listening on 192.0.2.1: ")


@pytest.mark.parametrize("connected", [False, True])
def test_sender_ends_when_its_input_closes_and_docker_with_it(docker: FakeDocker, connected: bool) -> None:
    docker.program.write_text(f"#!/bin/sh\necho $$ > {docker.home}/pid\nexec sleep 600\n")
    with sender() as (process, port):
        link = socket.create_connection(("127.0.0.1", port), timeout=10)
        if connected:
            link.sendall(TOKEN.encode())
            until((docker.home / "pid").exists)
            until(lambda: bool((docker.home / "pid").read_text()))
        assert process.stdin
        process.stdin.close()
        assert process.wait(2) == 1
        link.close()
    if connected:
        child = int((docker.home / "pid").read_text())
        until(lambda: not alive(child))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
