"""NodeImage: present by identity, nothing sent when it is there, each source in its turn, clear words on failure."""

from __future__ import annotations

import contextlib
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.images import stock as image_stock
from hosts.images.identity import CONTEXT_LABEL, Image
from hosts.ssh import Connection, Hop
from providers import image_copy
from providers.image_copy import Source
from providers.node_image import NodeImageProvider
from providers.plugin import CANCELLED
from providers.transfer import follow, started
from tests.samples import inspected
from tests.samples.archives import CONFIG, Saved, oci
from tests.unit.fake_docker import FakeDocker, says

IMAGE = "vllm-qwen3.5-gb10:1"
ABSENT = says(code=1, stderr=f"Error response from daemon: No such image: {IMAGE}")
INSPECT = f"image {IMAGE}"
GRAPH, CONTAINERD = "[]", '[["driver-type","io.containerd.snapshotter.v1"]]'


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return oci(tmp_path / "image.tar", IMAGE, [b"base" * 1000, b"top" * 300])


def of(saved: Saved) -> dict[str, Any]:
    """The archive's image as Docker inspects it."""
    return inspected(saved.id, *saved.layers) | {"Config": CONFIG, "Size": 5000}


def shown(*images: dict[str, Any]) -> dict[str, Any]:
    return says("".join(json.dumps(image) + "\n" for image in images))


OTHER = inspected("sha256:" + "2e" * 32)


def stocked(docker: FakeDocker, *images: dict[str, Any], status: str = GRAPH) -> None:
    """What the node's Docker holds, and where."""
    docker.answer("info {{.DockerRootDir}}|{{json .DriverStatus}}", says(f"{docker.home}|{status}\n"))
    ids = sorted(image["Id"] for image in images)
    docker.answer("image --all", says("".join(f"{id_}\n" for id_ in ids)))
    if ids:
        docker.answer(f"image {ids[-1]}", shown(*images))


def props(saved: Saved, **changes: Any) -> dict[str, Any]:
    return {
        "connection": Connection("spark-1", ()).dump(),
        "image": IMAGE,
        "identity": Image.of_inspect(of(saved)).identity,
        "image_id": None,
        "source": None,
        "archive": None,
        "build": None,
    } | changes


def outs(props: dict[str, Any]) -> dict[str, Any]:
    found = NodeImageProvider().create(props).outs
    assert found
    return found


def other_node() -> dict[str, Any]:
    """A source that is this machine too."""
    return Source(Connection("spark-2", ()), "127.0.0.1").dump()


def names(tar: Path) -> set[str]:
    with tarfile.open(tar) as found:
        return set(found.getnames())


def test_image_that_is_there_is_not_sent(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, shown(of(saved)))
    found = NodeImageProvider().create(props(saved, archive=str(saved.path), source=other_node()))
    assert found.id == f"spark-1/{saved.id}"
    assert found.outs == props(saved, archive=str(saved.path), source=other_node(), image_id=saved.id)
    assert {call[0] for call in docker.calls} <= {"image", "tag"}


def test_any_image_of_the_name_will_do_when_none_is_pinned(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, shown(OTHER))
    found = outs(props(saved, identity=None))
    assert (found["image_id"], found["identity"]) == (OTHER["Id"], Image.of_inspect(OTHER).identity)


def test_image_that_is_there_under_another_name_is_named_and_not_sent(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, shown(OTHER))
    stocked(docker, OTHER, of(saved))
    assert outs(props(saved, archive=str(saved.path)))["image_id"] == saved.id
    assert docker.called("tag") == [["tag", saved.id, IMAGE]]
    assert not docker.called("load")


@pytest.mark.parametrize("before", [(), (OTHER,)])
def test_absent_or_other_image_is_loaded_from_the_archive(
    docker: FakeDocker, saved: Saved, before: tuple[dict[str, Any], ...], capfd: pytest.CaptureFixture[str]
) -> None:
    docker.answer(INSPECT, shown(*before) if before else ABSENT, shown(of(saved)))
    stocked(docker, *before)
    outs(props(saved, archive=str(saved.path)))
    assert names(docker.home / "loaded") == names(saved.path)
    assert capfd.readouterr().out.startswith("Image of spark-1, from image.tar: 0.0 MB sent in ")


def test_archive_in_the_home_directory_is_loaded(
    docker: FakeDocker, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    monkeypatch.setenv("HOME", str(saved.path.parent))
    found = outs(props(saved, archive="~/image.tar"))
    assert names(docker.home / "loaded") == names(saved.path)
    assert found["archive"] == "~/image.tar", "the state is the same for every operator"


@pytest.mark.parametrize(("status", "left_out"), [(GRAPH, 1), (CONTAINERD, 0)])
def test_archive_is_loaded_without_the_layers_that_are_there(
    docker: FakeDocker, saved: Saved, status: str, left_out: int
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker, inspected("sha256:" + "5f" * 32, saved.layers[0], "sha256:" + "60" * 32), status=status)
    outs(props(saved, archive=str(saved.path)))
    assert names(saved.path) - names(docker.home / "loaded") == set(saved.files[:left_out])


def test_another_image_after_the_transfer_is_a_fault(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, ABSENT, shown(OTHER))
    stocked(docker)
    with pytest.raises(Fault, match=f"is {OTHER['Id']} after the transfer, another one is wanted"):
        outs(props(saved, archive=str(saved.path)))


def test_load_that_fails_has_docker_own_words(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, ABSENT)
    stocked(docker)
    docker.answer("load --quiet", says(code=1, stderr="write /layer.tar: no space left on device"))
    with pytest.raises(Fault, match=r"docker load of image\.tar failed") as caught:
        outs(props(saved, archive=str(saved.path)))
    assert "no space left on device" in caught.value.evidence


def test_no_room_is_known_before_the_first_byte(
    docker: FakeDocker, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer(INSPECT, ABSENT)
    stocked(docker)
    monkeypatch.setattr(image_stock, "SLACK", 1e12)
    with pytest.raises(Fault, match=r"no room for image archive image\.tar: [\d.]+ GB needed in .*, [\d.]+ GB free"):
        outs(props(saved, archive=str(saved.path)))
    assert not docker.called("load")


def test_image_is_copied_from_the_node_that_has_it(
    docker: FakeDocker, saved: Saved, capfd: pytest.CaptureFixture[str]
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker, inspected("sha256:" + "5f" * 32, saved.layers[0]))
    (docker.home / "saved").write_bytes(saved.path.read_bytes())
    outs(props(saved, source=other_node()))
    assert names(saved.path) - names(docker.home / "loaded") == {saved.files[0]}
    assert docker.called("save") == [["save", IMAGE]]
    said = capfd.readouterr().out
    assert "Image of spark-1, from spark-2: 0.0 MB sent in " in said
    assert "1 of 2 layers were there" in said


def test_copy_of_an_image_pinned_by_digest_goes_by_its_id_and_is_named(docker: FakeDocker, saved: Saved) -> None:
    pinned = f"vllm@{saved.id}"
    docker.answer(f"image {pinned}", ABSENT, shown(of(saved)), ABSENT)
    stocked(docker)
    docker.answer("image --all", says(), says(), says(), says(f"{saved.id}\n"))
    docker.answer(f"image {saved.id}", shown(of(saved)))
    (docker.home / "saved").write_bytes(saved.path.read_bytes())
    assert outs(props(saved, image=pinned, source=other_node()))["image_id"] == saved.id
    assert docker.called("save") == [["save", saved.id]]
    assert docker.called("tag") == [["tag", saved.id, f"vllm:{saved.id.replace(':', '-')}"]]


@pytest.mark.parametrize("by_id", [False, True], ids=["pulled", "by its id"])
def test_image_that_is_found_by_a_digest_needs_no_tag(docker: FakeDocker, saved: Saved, *, by_id: bool) -> None:
    reference = saved.id if by_id else f"vllm@{saved.id}"
    docker.answer(f"image {reference}", shown(of(saved)))
    assert outs(props(saved, image=reference))["image_id"] == saved.id
    assert not docker.called("tag")


def test_partial_image_that_is_refused_is_sent_whole(
    docker: FakeDocker, saved: Saved, capfd: pytest.CaptureFixture[str]
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker, inspected("sha256:" + "5f" * 32, saved.layers[0]))
    (docker.home / "saved").write_bytes(saved.path.read_bytes())
    docker.answer("load --quiet", says(code=1, stderr="layer not found"), says())
    outs(props(saved, source=other_node()))
    assert names(docker.home / "loaded") == names(saved.path)
    assert "refused, all are sent: layer not found" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("key", "node", "words"),
    [("load --quiet", "spark-1", "docker load failed"), (f"save {IMAGE}", "spark-2", "sending the image failed")],
)
def test_end_that_fails_is_named_with_its_words(
    docker: FakeDocker, saved: Saved, key: str, node: str, words: str
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    (docker.home / "saved").write_bytes(saved.path.read_bytes())
    docker.answer(key, says(code=1, stderr="what Docker says"))
    with pytest.raises(Fault, match=words) as caught:
        outs(props(saved, source=other_node()))
    assert (caught.value.node, caught.value.evidence.strip()) == (node, "what Docker says")


def test_source_without_room_for_docker_save_is_named(
    docker: FakeDocker, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer(INSPECT, ABSENT, shown({**of(saved), "Size": 10**18}))
    stocked(docker)
    docker.answer(f"history {saved.id}", says("900\n4000\n"))
    monkeypatch.setattr(image_copy, "started", None)
    with pytest.raises(Fault, match=r"no room for `docker save`") as caught:
        outs(props(saved, source=other_node()))
    assert caught.value.node == "spark-2"


@pytest.mark.parametrize("with_archive", [False, True])
def test_source_not_reached_over_the_fabric_is_named_or_the_archive_taken(
    docker: FakeDocker, saved: Saved, monkeypatch: pytest.MonkeyPatch, with_archive: bool
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    monkeypatch.setattr(image_copy, "RECEIVER", image_copy.RECEIVER.replace('question["port"])', "1)"))
    wanted = props(saved, source=other_node(), archive=str(saved.path) if with_archive else None)
    if with_archive:
        outs(wanted)
        assert names(docker.home / "loaded") == names(saved.path)
    else:
        with pytest.raises(Fault, match=r"spark-2 is not reached on 127\.0\.0\.1 \(fabric\)") as caught:
            outs(wanted)
        assert "Connection refused" in caught.value.evidence


@pytest.mark.parametrize("how", ["copy", "load", "pull", "build"])
def test_interrupt_ends_it_and_what_it_started(
    docker: FakeDocker, saved: Saved, monkeypatch: pytest.MonkeyPatch, how: str, tmp_path: Path
) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    program = docker.program.read_text()
    hang = 'case "$1" in save|load|pull|build) echo $$ >> @HOME@/pids; exec sleep 600;; esac\n'.replace(
        "@HOME@", str(docker.home)
    )
    docker.program.write_text(program.replace("#!/bin/bash\n", f"#!/bin/bash\n{hang}"))
    monkeypatch.setattr("providers.transfer.CANCELLED", Pressed(docker.home / "pids"))
    sources: dict[str, dict[str, Any]] = {
        "copy": {"source": other_node()},
        "load": {"archive": str(saved.path)},
        "pull": {},
        "build": {"build": {"context": str(tmp_path), "dockerfile": "Dockerfile", "digest": "d1"}},
    }
    with pytest.raises(Fault, match="interrupted while the image was on its way"):
        outs(props(saved, **sources[how]))
    deadline = time.monotonic() + 20  # a build notices within a second that nobody listens
    while any(map(runs, (docker.home / "pids").read_text().split())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not CANCELLED.is_set()


def test_transfer_has_a_deadline_and_what_it_started_ends() -> None:
    connection = Connection("spark-2", (), transfer_timeout=0.1)
    with started(connection, "sleep", "600") as process, pytest.raises(Fault) as late:
        list(follow(connection, process, lambda: "1 of 2 B"))
    assert (late.value.node, late.value.cause) == ("spark-2", "the image did not arrive within 0 s")
    assert "`deadlines.transfer`" in late.value.remedy
    assert late.value.evidence == "1 of 2 B"
    assert process.poll() is not None


def runs(pid: str) -> bool:
    """Whether a process lives; of one that has ended the command line is empty."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


class Pressed:
    """Ctrl-C as soon as docker runs."""

    def __init__(self, pids: Path) -> None:
        self.pids = pids

    def is_set(self) -> bool:
        return self.pids.exists() and bool(self.pids.read_text())


def test_directory_is_built_with_its_hash_as_label(docker: FakeDocker, saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM vllm:1\n")
    label = {CONTEXT_LABEL: "d1"}
    docker.answer(INSPECT, shown(OTHER), shown(inspected("sha256:" + "77" * 32, Labels=label)))
    stocked(docker)
    build = {"context": str(folder), "dockerfile": "Dockerfile", "digest": "d1"}
    assert outs(props(saved, identity=None, build=build))["image_id"] == "sha256:" + "77" * 32
    assert names(docker.home / "context") == {"Dockerfile"}
    own = ["--force-rm", "--label", f"{CONTEXT_LABEL}=d1", "--file", "Dockerfile", "-"]
    assert docker.called("build") == [["build", "--tag", IMAGE, *own]]


def test_build_that_fails_has_docker_own_words(docker: FakeDocker, saved: Saved, tmp_path: Path) -> None:
    docker.answer(INSPECT, ABSENT)
    stocked(docker)
    docker.answer("build -", says(code=1, stderr="unknown instruction: FORM"))
    build = {"context": str(tmp_path), "dockerfile": "Dockerfile", "digest": "d1"}
    with pytest.raises(Fault, match="docker build failed") as caught:
        outs(props(saved, identity=None, build=build))
    assert "unknown instruction: FORM" in caught.value.evidence
    assert caught.value.remedy == f"correct {tmp_path}/Dockerfile"


def test_build_whose_directory_does_not_fit_is_not_begun(
    docker: FakeDocker, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer(INSPECT, ABSENT)
    stocked(docker)
    monkeypatch.setattr(image_stock, "SLACK", 1e12)
    build = {"context": str(tmp_path), "dockerfile": "Dockerfile", "digest": "d1"}
    with pytest.raises(Fault, match=r"no room for the directory .* that image .* is built from: [\d.]+ GB needed in"):
        outs(props(saved, identity=None, build=build))
    assert not docker.called("build")


def test_room_is_known_where_what_is_above_docker_is_closed_to_the_user(docker: FakeDocker, saved: Saved) -> None:
    """To `df` it is the same as a directory that is not there."""
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    docker.answer("info {{.DockerRootDir}}|{{json .DriverStatus}}", says(f"{docker.home}/closed/docker|{GRAPH}\n"))
    outs(props(saved, archive=str(saved.path)))
    assert docker.called("load")


def test_without_other_source_the_image_is_pulled(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, ABSENT, shown(of(saved)))
    stocked(docker)
    docker.answer(f"pull {IMAGE}", says("latest: Pulling from x\nStatus: Downloaded newer image\n"))
    outs(props(saved))
    assert docker.called("pull") == [["pull", IMAGE]]


def test_image_that_is_nowhere_is_a_fault_with_the_ways_out(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, ABSENT)
    stocked(docker)
    docker.answer(f"pull {IMAGE}", says(code=1, stderr="manifest unknown"))
    with pytest.raises(Fault, match=f"image {IMAGE} is on no node and cannot be pulled") as caught:
        outs(props(saved))
    assert "image_archive" in caught.value.remedy
    assert "manifest unknown" in caught.value.evidence


def test_docker_that_does_not_answer_is_not_an_absent_image(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, says(code=1, stderr="Cannot connect to the Docker daemon"))
    with pytest.raises(Fault, match="Docker does not answer"):
        outs(props(saved))
    docker.answer(INSPECT, ABSENT)
    docker.answer("info {{.DockerRootDir}}|{{json .DriverStatus}}", says(code=1, stderr="Cannot connect"))
    with pytest.raises(Fault, match="Docker does not answer"):
        outs(props(saved))
    assert not docker.called("pull")


@pytest.mark.parametrize("there", ["same", "other", "absent"])
def test_refresh_finds_the_image_or_that_it_is_gone(
    docker: FakeDocker, saved: Saved, there: str, capfd: pytest.CaptureFixture[str]
) -> None:
    docker.answer(INSPECT, {"same": shown(of(saved)), "other": shown(OTHER), "absent": ABSENT}[there])
    known = props(saved, image_id=saved.id)
    found = NodeImageProvider().read("spark-1/x", known)
    assert (found.id, found.outs) == (("spark-1/x", known) if there == "same" else ("", {}))
    told = {"same": "", "other": "is another one now (sha256:", "absent": "is not there any more"}[there]
    assert (f"{IMAGE} {told}" if told else "") in capfd.readouterr().out


def test_update_brings_the_image_that_is_now_wanted(docker: FakeDocker, saved: Saved) -> None:
    docker.answer(INSPECT, shown(OTHER), shown(of(saved)))
    stocked(docker, OTHER)
    before = props(saved, identity=Image.of_inspect(OTHER).identity, image_id=OTHER["Id"])
    found = NodeImageProvider().update("spark-1/x", before, props(saved, archive=str(saved.path))).outs
    assert found
    assert found["image_id"] == saved.id


def test_another_way_to_the_node_is_remembered_and_nothing_is_asked_of_it(docker: FakeDocker, saved: Saved) -> None:
    """A refresh reads by the way in the state."""
    known = props(saved, image_id=saved.id)
    moved = props(saved, connection=Connection("spark-1", (Hop("spark-1", "127.0.0.1", port=1),)).dump())
    assert NodeImageProvider().diff("spark-1/x", known, moved).changes
    found = NodeImageProvider().update("spark-1/x", known, moved).outs
    assert found == {**known, "connection": moved["connection"]}
    assert not NodeImageProvider().diff("spark-1/x", found, moved).changes
    assert not docker.calls


@pytest.mark.parametrize("change", [{"source": other_node()}, {"archive": "/elsewhere.tar"}])
def test_where_an_image_that_is_there_would_come_from_is_no_change(saved: Saved, change: dict[str, Any]) -> None:
    known = props(saved, image_id=saved.id)
    assert not NodeImageProvider().diff("spark-1/x", known, {**known, **change}).changes
