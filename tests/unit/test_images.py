"""Identity of images, what an archive holds, and which node the others copy from."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.faults import Fault
from hosts.images.identity import CONTEXT_LABEL, Archive, Image, common, is_tag, names
from hosts.images.plan import Plan, plan, unfit
from hosts.survey import Survey
from tests.samples import IMAGE_ID, cluster, inspected, survey
from tests.samples.archives import CONFIG, legacy, oci

IMAGE = "vllm:1"
LAYERS = ("sha256:" + "a1" * 32, "sha256:" + "b2" * 32)
OTHER_ID = "sha256:" + "2e" * 32


def image(id_: str = IMAGE_ID, *layers: str, **config: Any) -> Image:
    return Image.of_inspect(inspected(id_, *(layers or LAYERS), **config))


def test_same_image_is_equal_in_every_store_and_archive(tmp_path: Path) -> None:
    """C06, second half: the containerd store has another id, and shows other fields of the configuration."""
    one = oci(tmp_path / "new.tar", IMAGE, [b"base", b"top"])
    two = legacy(tmp_path / "old.tar", IMAGE, [b"base", b"top"])
    overlay2 = image(one.id, *one.layers, **CONFIG, Hostname="", Image="sha256:parent", Labels=None)
    containerd = image(OTHER_ID, *one.layers, **CONFIG, Healthcheck={"Test": ["NONE"]}, User="")
    images = [overlay2, containerd, Archive.open(one.path, IMAGE).image, Archive.open(two.path, IMAGE).image]
    assert len({one.identity for one in images}) == 1
    assert len({one.id for one in images}) == 2
    assert not overlay2.difference(containerd)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (image(IMAGE_ID, LAYERS[0]), "layers differ from the 2. of 2 and 1 on"),
        (image(IMAGE_ID, *reversed(LAYERS)), "layers differ from the 1. of 2 and 2 on"),
        (image(Cmd=["sh"], User="x"), "same layers, other Cmd, User"),
        (Image.of_inspect({**inspected(IMAGE_ID, *LAYERS), "Architecture": "amd64"}), "linux/arm64 and linux/amd64"),
    ],
)
def test_different_images_say_how_they_differ(other: Image, words: str) -> None:
    assert image().identity != other.identity
    assert image().difference(other) == words


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_common_layers_are_the_lowest(one: list[str], other: list[str]) -> None:
    shared = common(tuple(one), tuple(other))
    assert one[:shared] == other[:shared]
    assert one[: shared + 1] != other[: shared + 1] or shared == min(len(one), len(other))


@pytest.mark.parametrize(
    ("reference", "tag"), [("a/b:1", True), ("a", True), (f"a@{IMAGE_ID}", False), (IMAGE_ID, False)]
)
def test_only_tags_can_be_carried_by_a_copy(reference: str, tag: bool) -> None:
    assert is_tag(reference) is tag


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        (f"a/b@{IMAGE_ID}", f"a/b:{IMAGE_ID.replace(':', '-')}"),
        (f"host:5000/a/b@{IMAGE_ID}", f"host:5000/a/b:{IMAGE_ID.replace(':', '-')}"),
        (f"a:1@{IMAGE_ID}", f"a:{IMAGE_ID.replace(':', '-')}"),
    ],
)
def test_copy_of_an_image_that_is_pinned_by_digest_has_a_tag_that_says_so(reference: str, tag: str) -> None:
    assert names(reference) == (reference, tag)
    assert len(tag.rpartition(":")[2]) <= 128, "Docker's limit"


@pytest.mark.parametrize("reference", ["a/b:1", "host:5000/a", IMAGE_ID])
def test_other_references_are_their_only_name(reference: str) -> None:
    assert names(reference) == (reference,)


@pytest.mark.parametrize("format_", [legacy, oci])
def test_archive_says_what_it_holds(tmp_path: Path, format_: Any) -> None:
    saved = format_(tmp_path / "image.tar", IMAGE, [b"base", b"top!", b"base"])
    found = Archive.open(saved.path, IMAGE)
    assert (found.image.id, found.image.layers) == (saved.id, tuple(saved.layers))
    assert found.sizes == (4, 4, 4 if format_ is oci else 0)


def broken(path: Path, manifest: Any) -> Path:
    return archive(path, json.dumps(manifest).encode())


def archive(path: Path, data: bytes) -> Path:
    """A tar with this as its manifest."""
    info = tarfile.TarInfo("manifest.json")
    info.size = len(data)
    with tarfile.open(path, "w") as tar:
        tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("content", [None, b"", b"no tar", [], {}, [{"Config": "x"}], [{}], [3], 3])
def test_archive_that_is_none_is_a_fault_that_names_it(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "image.tar"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        broken(path, content)
    with pytest.raises(Fault, match=r"image archive .*image\.tar"):
        Archive.open(path, IMAGE)


def test_archive_that_would_block_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    fifo, zstd, deep = tmp_path / "fifo", tmp_path / "image.tar.zst", tmp_path / "deep.tar"
    os.mkfifo(fifo)
    zstd.write_bytes(b"\x28\xb5\x2f\xfd" + os.urandom(600))
    archive(deep, b"[" * 100_000)
    for path, why in (
        (fifo, "no regular file"),
        (zstd, "no tar, plain or compressed by gzip, bzip2 or xz"),
        (deep, "maximum recursion depth exceeded"),
    ):
        with pytest.raises(Fault, match=re.escape(f"image archive {path}: {why}")):
            Archive.open(path, IMAGE)


@pytest.mark.parametrize("compression", ["gz", "xz", "bz2"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_archive_that_was_compressed_and_is_cut_off_is_a_fault(tmp_path: Path, compression: str, share: float) -> None:
    saved = oci(tmp_path / "whole.tar", IMAGE, [os.urandom(200_000), b"top!"])
    packed = {"gz": gzip, "xz": lzma, "bz2": bz2}[compression].compress(saved.path.read_bytes())
    path = tmp_path / "image.tar"
    path.write_bytes(packed)
    assert Archive.open(path, IMAGE).image.id == saved.id
    path.write_bytes(packed[: int(len(packed) * share)])
    with pytest.raises(Fault, match=r"image archive .*image\.tar"):
        Archive.open(path, IMAGE)


def test_archive_of_several_images_must_hold_the_one_named(tmp_path: Path) -> None:
    path = broken(tmp_path / "image.tar", [{"RepoTags": ["a:1"]}, {"RepoTags": None}])
    with pytest.raises(Fault, match="holds a:1, one without a name, not vllm:1"):
        Archive.open(path, IMAGE)


@pytest.mark.parametrize("format_", [oci, legacy])
def test_archive_must_be_of_the_id_that_is_named(tmp_path: Path, format_: Any) -> None:
    saved = format_(tmp_path / "image.tar", IMAGE, [b"base"])
    assert Archive.open(saved.path, saved.id).image.id == saved.id
    with pytest.raises(Fault, match=f"holds {saved.id}, not {IMAGE_ID}"):
        Archive.open(saved.path, IMAGE_ID)


@pytest.mark.parametrize(
    ("held", "wanted", "found"),
    [
        ("vllm:1", "vllm:2", False),
        ("vllm:latest", "vllm", True),
        ("docker.io/library/vllm:1", "vllm:1", True),
        ("docker.io/a/vllm:1", "a/vllm:1", True),
        ("vllm:1", f"vllm@{IMAGE_ID}", True),
    ],
)
def test_archive_of_one_image_must_hold_the_one_named_too(tmp_path: Path, held: str, wanted: str, found: bool) -> None:
    saved = oci(tmp_path / "image.tar", held, [b"base"])
    if found:
        assert Archive.open(saved.path, wanted).image.id == saved.id
    else:
        with pytest.raises(Fault, match=f"image archive .*: holds {held}, not {wanted}"):
            Archive.open(saved.path, wanted)


def facts(*images: Mapping[str, Any] | None, containerd: tuple[int, ...] = ()) -> dict[str, Survey]:
    """Surveys of nodes that have these images under the name of the settings."""
    return {
        f"spark-{number}": survey(number, docker={"image": found, "containerd": number in containerd})
        for number, found in enumerate(images, 1)
    }


MINE = inspected(IMAGE_ID, *LAYERS)
THEIRS = inspected(OTHER_ID, *reversed(LAYERS))
IN_CONTAINERD = {**MINE, "Id": OTHER_ID}


@pytest.mark.parametrize(
    ("platform", "machines", "nodes"),
    [
        ("arm64", ("aarch64", "aarch64"), None),
        ("amd64", ("aarch64", "aarch64"), "spark-1, spark-2"),
        ("arm64", ("aarch64", "x86_64"), "spark-2"),
        ("arm64", ("aarch64", "armv7l"), None),
        ("", ("aarch64", "aarch64"), None),
    ],
)
def test_image_for_other_machines_is_a_fault(platform: str, machines: tuple[str, str], nodes: str | None) -> None:
    seen = {
        name: facts.model_copy(update={"architecture": machine})
        for (name, facts), machine in zip(facts(MINE, None).items(), machines, strict=True)
    }
    found = list(unfit(cluster(), seen, Plan("spark-1", Image.of_inspect({**MINE, "Architecture": platform}))))
    assert [fault.node for fault in found] == ([nodes] if nodes else [])
    assert all(f"is for linux/{platform}, not for linux/" in fault.cause for fault in found)


@pytest.mark.parametrize(
    ("found", "seed", "ids"),
    [
        (facts(MINE, MINE), "spark-1", (IMAGE_ID, IMAGE_ID)),
        (facts(MINE, None), "spark-1", (IMAGE_ID, IMAGE_ID)),
        (facts(None, MINE), "spark-2", (IMAGE_ID, IMAGE_ID)),
        (facts(None, None), "spark-1", (None, None)),
        (facts(MINE, IN_CONTAINERD, containerd=(2,)), "spark-1", (IMAGE_ID, OTHER_ID)),
        (facts(MINE, None, containerd=(2,)), "spark-1", (IMAGE_ID, None)),
        (facts(None, IN_CONTAINERD, containerd=(2,)), "spark-2", (None, OTHER_ID)),
    ],
)
def test_seed_has_the_image_the_head_first(found: dict[str, Survey], seed: str, ids: tuple[str | None, ...]) -> None:
    made = plan(cluster(), found)
    assert (made.seed, tuple(made.ids.values())) == (seed, ids)
    assert (made.image is None) == (ids == (None, None))


def test_different_images_of_one_tag_are_a_fault_that_says_how(tmp_path: Path) -> None:
    """C06, first half; an archive says which is meant."""
    with pytest.raises(Fault, match="is a different one on each node") as caught:
        plan(cluster(), facts(MINE, THEIRS))
    assert caught.value.node == "spark-1, spark-2"
    assert "layers differ from the 1. of 2" in caught.value.evidence
    saved = oci(tmp_path / "image.tar", IMAGE, [b"base"])
    made = plan(cluster(image=IMAGE, image_archive=str(saved.path)), facts(MINE, THEIRS))
    assert (made.seed, set(made.ids.values()), made.archived) == ("spark-1", {saved.id}, True)


def test_node_that_has_what_the_archive_holds_is_the_seed(tmp_path: Path) -> None:
    saved = oci(tmp_path / "image.tar", IMAGE, [b"base"])
    same = inspected(saved.id, *saved.layers) | {"Config": CONFIG}
    assert plan(cluster(image=IMAGE, image_archive=str(saved.path)), facts(MINE, same)).seed == "spark-2"


@pytest.mark.parametrize("name", ["older.tar", "removed.tar"])
@pytest.mark.parametrize("found", [facts(MINE, MINE), facts(None, MINE)])
def test_pinned_image_that_is_there_is_meant_whatever_the_archive_holds(
    tmp_path: Path, name: str, found: dict[str, Survey]
) -> None:
    oci(tmp_path / "older.tar", IMAGE, [b"older"])
    made = plan(cluster(image_archive=str(tmp_path / name)), found)
    assert (set(made.ids.values()), made.archived) == ({IMAGE_ID}, False)


def test_archive_of_a_pinned_image_is_opened_where_no_node_has_it(tmp_path: Path) -> None:
    saved = oci(tmp_path / "image.tar", IMAGE, [b"base"])
    assert set(plan(cluster(image_archive=str(saved.path)), facts(None, None)).ids.values()) == {saved.id}
    with pytest.raises(Fault, match="No such file"):
        plan(cluster(image_archive=str(tmp_path / "removed.tar")), facts(None, None))


def test_archive_made_anew_under_the_same_tag_is_meant(tmp_path: Path) -> None:
    saved = oci(tmp_path / "image.tar", IMAGE, [b"newer"])
    made = plan(cluster(image=IMAGE, image_archive=str(saved.path)), facts(MINE, MINE))
    assert set(made.ids.values()) == {saved.id}


def test_build_is_there_when_its_directory_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM vllm:1\n")
    ours = cluster(image="ours:1", image_build={"context": str(tmp_path)})
    first = plan(ours, facts(MINE, THEIRS))
    assert (first.seed, first.image) == ("spark-1", None)
    made = inspected(OTHER_ID, *LAYERS, Labels={CONTEXT_LABEL: first.context})
    again = plan(ours, facts(MINE, made))
    assert (again.seed, again.ids["spark-1"]) == ("spark-2", OTHER_ID)
    (tmp_path / "patch").write_text("more")
    assert plan(ours, facts(MINE, made)).image is None


@pytest.mark.parametrize(
    ("file", "words"), [("other", "no Dockerfile in"), (".dockerignore", r"\.dockerignore would be ignored")]
)
def test_directory_that_cannot_be_built_from_is_a_fault(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / file).touch()
    if file == ".dockerignore":
        (tmp_path / "Dockerfile").touch()
    with pytest.raises(Fault, match=words):
        plan(cluster(image="ours:1", image_build={"context": str(tmp_path)}), facts(None, None))
