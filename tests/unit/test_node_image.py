"""NodeImage: present by identity, nothing sent when it is there, and clear words when it cannot be brought."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.ssh import Connection
from providers.node_image import NodeImageProvider, archive_image_id
from tests.unit.fake_docker import FakeDocker, says

IMAGE = "vllm-qwen3.5-gb10:1"
WANTED = "sha256:" + "1f" * 32
OTHER = "sha256:" + "2e" * 32
ABSENT = says(code=1, stderr=f"Error response from daemon: No such image: {IMAGE}")
INSPECT = f"image {IMAGE}"


def props(**changes: Any) -> dict[str, Any]:
    return {
        "connection": Connection("spark-1", ()).dump(),
        "image": IMAGE,
        "image_id": WANTED,
        "archive": None,
    } | changes


def save(path: Path, config: str, **members: Any) -> Path:
    """An archive as docker save writes it."""
    with tarfile.open(path, "w") as tar:
        for name, value in ({"manifest.json": [{"Config": config, "RepoTags": [IMAGE]}]} | members).items():
            data = json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return save(tmp_path / "image.tar", f"blobs/sha256/{'1f' * 32}")


def test_image_that_is_there_is_not_sent(docker: FakeDocker, archive: Path) -> None:
    docker.answer(INSPECT, says(f"{WANTED}\n"))
    found = NodeImageProvider().create(props(archive=str(archive)))
    assert (found.id, found.outs) == (f"spark-1/{WANTED}", props(archive=str(archive)))
    assert [call[0] for call in docker.calls] == ["image"]


def test_any_image_of_the_name_will_do_when_none_is_pinned(docker: FakeDocker) -> None:
    docker.answer(INSPECT, says(f"{OTHER}\n"))
    outs = NodeImageProvider().create(props(image_id=None)).outs
    assert outs
    assert outs["image_id"] == OTHER


@pytest.mark.parametrize("before", [ABSENT, says(f"{OTHER}\n")])
def test_absent_or_other_image_is_loaded_from_the_archive(
    docker: FakeDocker, archive: Path, before: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    docker.answer(INSPECT, before, says(f"{WANTED}\n"))
    NodeImageProvider().create(props(archive=str(archive)))
    assert (docker.home / "loaded").read_bytes() == archive.read_bytes()
    assert not docker.called("pull")
    assert capfd.readouterr().out.startswith("Image of spark-1: loaded ")


def test_archive_of_another_image_is_a_fault_with_both_ids(docker: FakeDocker, archive: Path) -> None:
    docker.answer(INSPECT, ABSENT, says(f"{OTHER}\n"))
    with pytest.raises(Fault, match=f"is {OTHER} after the transfer, {WANTED} wanted"):
        NodeImageProvider().create(props(archive=str(archive)))


def test_archive_under_another_name_is_a_fault(docker: FakeDocker, archive: Path) -> None:
    docker.answer(INSPECT, ABSENT)
    with pytest.raises(Fault, match="is absent after the transfer"):
        NodeImageProvider().create(props(archive=str(archive)))


def test_load_that_fails_has_docker_own_words(docker: FakeDocker, archive: Path) -> None:
    docker.answer(INSPECT, ABSENT)
    docker.answer("load --quiet", says(code=1, stderr="write /layer.tar: no space left on device"))
    with pytest.raises(Fault, match=r"docker load of image\.tar failed") as caught:
        NodeImageProvider().create(props(archive=str(archive)))
    assert "no space left on device" in caught.value.evidence


def test_docker_that_ends_before_the_archive_does_is_a_fault(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = save(tmp_path / "large.tar", f"{'1f' * 32}.json", filler="x" * (8 << 20))
    monkeypatch.setattr("providers.node_image.CHUNK", 1 << 16)
    docker.program.write_text(
        "#!/bin/sh\n"
        'case "$1" in image) echo "No such image" >&2; exit 1;; esac\n'
        'echo "Cannot connect to the Docker daemon"; exit 1\n'
    )
    with pytest.raises(Fault, match=r"docker load of large\.tar failed") as caught:
        NodeImageProvider().create(props(archive=str(large)))
    assert "Cannot connect" in caught.value.evidence


def test_without_archive_the_image_is_pulled(docker: FakeDocker) -> None:
    docker.answer(INSPECT, ABSENT, says(f"{WANTED}\n"))
    docker.answer(f"pull {IMAGE}", says("latest: Pulling from x\nStatus: Downloaded newer image\n"))
    NodeImageProvider().create(props())
    assert docker.called("pull") == [["pull", IMAGE]]


def test_image_that_is_nowhere_is_a_fault_with_the_ways_out(docker: FakeDocker) -> None:
    docker.answer(INSPECT, ABSENT)
    docker.answer(f"pull {IMAGE}", says(code=1, stderr="manifest unknown"))
    with pytest.raises(Fault, match=f"image {IMAGE} is on no node and cannot be pulled") as caught:
        NodeImageProvider().create(props())
    assert "image_archive" in caught.value.remedy
    assert "manifest unknown" in caught.value.evidence


def test_docker_that_does_not_answer_is_not_an_absent_image(docker: FakeDocker) -> None:
    docker.answer(INSPECT, says(code=1, stderr="Cannot connect to the Docker daemon"))
    with pytest.raises(Fault, match="Docker does not answer"):
        NodeImageProvider().create(props())
    assert not docker.called("pull")


@pytest.mark.parametrize(
    ("answer", "id_"), [(says(f"{WANTED}\n"), "spark-1/x"), (says(f"{OTHER}\n"), ""), (ABSENT, "")]
)
def test_refresh_finds_the_image_or_that_it_is_gone(docker: FakeDocker, answer: dict[str, Any], id_: str) -> None:
    docker.answer(INSPECT, answer)
    found = NodeImageProvider().read("spark-1/x", props())
    assert (found.id, found.outs) == (id_, props() if id_ else {})


def test_update_brings_the_image_that_is_now_wanted(docker: FakeDocker) -> None:
    docker.answer(INSPECT, ABSENT, says(f"{OTHER}\n"))
    outs = NodeImageProvider().update("spark-1/x", props(), props(image_id=OTHER)).outs
    assert outs
    assert outs["image_id"] == OTHER


@pytest.mark.parametrize("config", [f"{'1f' * 32}.json", f"blobs/sha256/{'1f' * 32}"])
def test_archive_id_in_both_layouts_of_docker_save(tmp_path: Path, config: str) -> None:
    assert archive_image_id(save(tmp_path / "image.tar", config)) == WANTED


@pytest.mark.parametrize("content", [None, b"", b"no tar", "empty", "no manifest", "manifest null"])
def test_archive_that_is_none_is_a_fault_that_names_it(tmp_path: Path, content: str | bytes | None) -> None:
    path = tmp_path / "image.tar"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "empty":
        save(path, "x", **{"manifest.json": []})
    elif content == "no manifest":
        tarfile.open(path, "w").close()
    elif content == "manifest null":
        save(path, "x", **{"manifest.json": None})
    with pytest.raises(Fault, match=r"image archive .*image\.tar"):
        archive_image_id(path)
