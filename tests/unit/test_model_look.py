"""What the look at a model finds: whole files, missing and cut off ones, links that lead nowhere or outside."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts import fabric_link
from hosts.ssh import Connection
from hosts.weights import digest as weights_digest
from hosts.weights import forget as weights_forget
from hosts.weights import hub_download
from hosts.weights import links as weights_links
from hosts.weights import look as model_look
from hosts.weights import receiver as weights_receiver
from hosts.weights import sender as weights_sender
from hosts.weights.files import ModelFiles, look
from hosts.weights.look import header_of, whole_size
from tests.samples.models import COMMIT, contents, directory, hub_entry, safetensors

SECOND = "model-00002-of-00003.safetensors"
SCRIPTS = [
    *(fabric_link, hub_download, model_look, weights_digest, weights_forget, weights_links),
    *(weights_receiver, weights_sender),
]


def seen(path: Path, revision: str = "main") -> ModelFiles:
    """The look as it runs on a node, which is this machine."""
    return look(Connection("spark-1", ()), str(path), revision)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_of_the_python_that_nodes_have(script: ModuleType) -> None:
    ast.parse(Path(str(script.__file__)).read_text(), feature_version=(3, 8))


def test_complete_directory(tmp_path: Path) -> None:
    files = contents()
    found = seen(directory(tmp_path / "m", files))
    assert found.files == {name: len(data) for name, data in files.items()}
    assert (found.complete, found.below, found.links, found.lacks) == (True, "", {}, {})
    assert found.free > 0
    assert found.writable


def test_odd_json_that_is_whole_is_no_fault(tmp_path: Path) -> None:
    index = contents()["model.safetensors.index.json"].replace(b'"metadata": {', b'"metadata": null, "meta": {')
    odd = {"version.json": b'"1.0"', "notes.json": b"", "config.json": b"{}" + b"\n" * 100}
    found = seen(directory(tmp_path / "m", contents() | odd | {"model.safetensors.index.json": index}))
    assert (found.lacks, found.complete, found.unjudged) == ({}, True, ())


def test_missing_shard_is_named_by_the_index_with_about_its_size(tmp_path: Path) -> None:
    """C15."""
    files = contents(size=100_000)
    size = len(files.pop(SECOND))
    found = seen(directory(tmp_path / "m", files))
    assert list(found.lacks) == [SECOND]
    lack = found.lacks[SECOND]
    assert lack.wanted is not None
    assert size * 0.98 < lack.wanted <= size
    assert str(lack) == f"{SECOND} ({lack.wanted} bytes wanted, missing)"
    assert not found.complete


@pytest.mark.parametrize("kept", [0, 7, 8, 20, 500, -1])
def test_shard_that_is_cut_off_is_known_by_its_own_header(tmp_path: Path, kept: int) -> None:
    """C15."""
    files = contents()
    size = len(files[SECOND])
    files[SECOND] = files[SECOND][:kept]
    found = seen(directory(tmp_path / "m", files))
    lack = found.lacks[SECOND]
    assert (lack.name, lack.found) == (SECOND, len(files[SECOND]))
    if kept in (500, -1):  # the header is there
        assert str(lack) == f"{SECOND} ({size} bytes wanted, {len(files[SECOND])} found)"


def test_shard_that_is_too_long_is_no_better(tmp_path: Path) -> None:
    files = contents()
    files[SECOND] += b"x"
    lack = seen(directory(tmp_path / "m", files)).lacks[SECOND]
    assert (lack.wanted, lack.found) == (len(files[SECOND]) - 1, len(files[SECOND]))


def test_missing_shard_is_known_by_the_numbers_of_the_others_too(tmp_path: Path) -> None:
    files = contents()
    del files[SECOND], files["model.safetensors.index.json"]
    assert list(seen(directory(tmp_path / "m", files)).lacks) == [SECOND]


LEFT = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize("below", ["", "sub/"])
@pytest.mark.parametrize("data", [safetensors({"a": b"x"}), b"cut off"])
def test_shard_that_no_index_names_is_no_part_of_the_model(tmp_path: Path, below: str, data: bytes) -> None:
    """Left over from a version with other shards: it lacks nothing, and no other node is to get it."""
    files = {f"{below}{name}": content for name, content in contents().items()} | {"config.json": b"{}"}
    found = seen(directory(tmp_path / "m", files | {f"{below}{LEFT}": data}))
    assert (found.lacks, set(found.files)) == ({}, set(files))
    assert found.complete


def test_shard_that_is_left_over_is_not_counted_to_the_models_size(tmp_path: Path) -> None:
    files = contents(size=100_000) | {LEFT: safetensors({"a": b"x" * 50_000})}
    size = len(files.pop(SECOND))
    found = seen(directory(tmp_path / "m", files))
    assert list(found.lacks) == [SECOND]
    assert size * 0.98 < (found.lacks[SECOND].wanted or 0) <= size


def test_weights_that_the_index_says_nothing_of_stay(tmp_path: Path) -> None:
    """Adapters, another format of Mistral's, shards of another series: an engine may be told to load them."""
    other = {
        name: safetensors({"a": b"x"})
        for name in ("adapter.safetensors", "consolidated.safetensors", "adapter-00001-of-00001.safetensors")
    }
    bins = {"pytorch_model-00001-of-00002.bin": b"x"}
    found = seen(directory(tmp_path / "m", contents() | other | bins))
    assert found.complete
    assert set(other) | set(bins) <= set(found.files)
    (tmp_path / "m" / "adapter-00001-of-00002.safetensors").write_bytes(other["adapter.safetensors"])
    assert list(seen(tmp_path / "m").lacks) == ["adapter-00002-of-00002.safetensors"], "numbered, without an index"
    (tmp_path / "m" / "more-000001-of-000002.safetensors").write_bytes(other["adapter.safetensors"])
    assert "more-000002-of-000002.safetensors" in seen(tmp_path / "m").lacks, "with as many digits"


@pytest.mark.parametrize("index", [b"{", b'{"weight_map": {}}'])
def test_numbers_decide_where_the_index_names_nothing(tmp_path: Path, index: bytes) -> None:
    files = contents() | {"model.safetensors.index.json": index}
    del files[SECOND]
    found = seen(directory(tmp_path / "m", files))
    assert SECOND in found.lacks
    assert "model-00001-of-00003.safetensors" in found.files


@pytest.mark.parametrize("where", ["blob", "blob of another shard", "nowhere", "outside"])
def test_left_over_shard_is_a_link(tmp_path: Path, where: str) -> None:
    entry = hub_entry(tmp_path, contents() | ({LEFT: safetensors({"a": b"x"})} if where == "blob" else {}))
    whole = seen(hub_entry(tmp_path / "whole", contents()))
    link = entry / "snapshots" / COMMIT / LEFT
    if where != "blob":
        same = (link.parent / SECOND).readlink()
        link.symlink_to({"nowhere": "../../blobs/none", "outside": "/elsewhere"}.get(where, same))
    found = seen(entry)
    assert found.complete
    assert (found.files, found.links, found.outside) == (whole.files, whole.links, {})


@pytest.mark.parametrize("hub", [False, True], ids=["directory", "hub's cache"])
def test_absolute_link_inside_is_followed_to_the_shard(tmp_path: Path, *, hub: bool) -> None:
    """The containers see the directory under the same path."""
    top = hub_entry(tmp_path, contents()) if hub else directory(tmp_path / "m", contents())
    shard = top / "snapshots" / COMMIT / SECOND if hub else top / SECOND
    whole = seen(top)
    content = shard.resolve() if hub else shard.rename(top / "inner")
    shard.unlink(missing_ok=True)
    shard.symlink_to(content)
    found = seen(top)
    assert found.lacks == {}
    assert found.complete
    assert sum(found.files.values()) == sum(whole.files.values())


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """A FIFO would wait for who writes into it."""
    model = directory(tmp_path / "m", contents() | {"x.json": b"{}"})
    for name in (SECOND, "x.json", "model.gguf"):
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)
    (model / "y.json").symlink_to("x.json")
    found = seen(model)
    assert set(found.lacks) == {SECOND, "x.json", "model.gguf"}
    assert str(found.lacks["model.gguf"]) == "model.gguf (no regular file)"
    assert str(found.lacks[SECOND]).endswith(" bytes wanted, no regular file)")
    assert not set(found.lacks) & set(found.files)


def test_index_and_ref_that_are_no_regular_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    model = directory(tmp_path / "m", contents())
    (model / "model.safetensors.index.json").unlink()
    (model / "model.safetensors.index.json").symlink_to(tmp_path / "fifo")  # outside: no file of the model
    assert [lack.name for lack in seen(model).lacks.values()] == ["model.safetensors.index.json"]
    entry = hub_entry(tmp_path / "hub", contents(), ref=None)
    (entry / "refs").mkdir()
    os.mkfifo(entry / "refs" / "main")
    assert (seen(entry).exists, seen(entry).snapshots) == (False, (COMMIT,))


NESTED = b"[" * 100_000 + b"]" * 100_000
"""More than Python's parser can follow."""


@pytest.mark.parametrize("index", [b"", b"{", b"[]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {}}', NESTED])
def test_index_that_cannot_be_read_is_named(tmp_path: Path, index: bytes) -> None:
    files = contents() | {"model.safetensors.index.json": index}
    found = seen(directory(tmp_path / "m", files))
    assert [str(lack) for lack in found.lacks.values()] == [f"model.safetensors.index.json ({len(index)} found)"]


@pytest.mark.parametrize("torso", [b"", b'{"mod', b'{"model": {}', b" " * 70_000 + b'{"mod'])
def test_json_that_is_cut_off_is_no_file_to_copy_from(tmp_path: Path, torso: bytes) -> None:
    """Else the head's torso would take the place of the worker's whole tokenizer."""
    files = contents() | {"tokenizer.json": torso}
    found = seen(directory(tmp_path / "m", files))
    assert [str(lack) for lack in found.lacks.values()] == [f"tokenizer.json ({len(torso)} found)"]
    assert "tokenizer.json" not in found.whole


def test_configuration_is_part_of_a_model(tmp_path: Path) -> None:
    files = contents()
    del files["config.json"]
    assert list(seen(directory(tmp_path / "m", files)).lacks) == ["config.json"]
    assert seen(directory(tmp_path / "m", {"params.json": b"{}"})).complete


def test_directory_without_weights_says_so(tmp_path: Path) -> None:
    found = seen(directory(tmp_path / "m", {"config.json": b"{}"}))
    assert (found.weights, found.lacks, found.complete) == (False, {}, False)


def test_what_no_engine_reads_is_no_part_of_it(tmp_path: Path) -> None:
    files = contents()
    other = {
        "README.md": b"x",
        "nohup.out": b"x",
        "notes.txt": b"x",
        ".cache/a.json": b"x",
        ".git/config.json": b"x",
        "a.json.swp": b"x",
    }
    found = seen(directory(tmp_path / "m", files | other))
    assert set(found.files) == set(files)


def test_absent_directory_is_an_answer(tmp_path: Path) -> None:
    found = seen(tmp_path / "no" / "where")
    assert (found.exists, found.error, found.complete) == (False, "", False)
    assert found.free > 0


@pytest.mark.parametrize("by", ["entry", "snapshot"])
def test_entry_of_the_hub_cache(tmp_path: Path, by: str) -> None:
    files = contents()
    entry = hub_entry(tmp_path, files)
    found = seen(entry if by == "entry" else entry / "snapshots" / COMMIT)
    assert found.complete
    assert found.below == f"snapshots/{COMMIT}"
    assert set(found.links) == {f"snapshots/{COMMIT}/{name}" for name in files}
    blobs = {file: size for file, size in found.files.items() if file.startswith("blobs/")}
    assert sorted(blobs.values()) == sorted(map(len, files.values()))
    assert set(found.files) == set(blobs)
    assert found.refs == ({"refs/main": COMMIT} if by == "entry" else {})
    assert (found.stock, found.snapshots) == ({}, ())


def test_other_snapshots_of_an_entry_are_left_alone(tmp_path: Path) -> None:
    hub_entry(tmp_path, contents(seed=1))
    entry = hub_entry(tmp_path, contents(seed=2), commit="5" * 40, ref="next")
    assert seen(entry).below == f"snapshots/{COMMIT}"
    found = seen(entry, "next")
    assert found.below == "snapshots/" + "5" * 40
    assert len(found.links) == 6
    assert (seen(entry, "5" * 40).below, seen(entry, "5" * 40).refs) == ("snapshots/" + "5" * 40, {})
    both = {f"blobs/{path.name}": path.stat().st_size for path in (entry / "blobs").iterdir()}
    assert {**found.stock, **found.files} == both, "the other's blobs are known"
    assert not set(found.stock) & set(found.files)


def test_entry_without_the_wanted_revision_names_the_snapshots_that_are_there(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path, contents(), ref=None)
    found = seen(entry)
    assert (found.exists, found.snapshots, found.error) == (False, (COMMIT,), "")
    assert len(found.stock) == 6
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("")
    assert (seen(entry).exists, seen(entry).refs) == (False, {}), "of a write that was interrupted"


@pytest.mark.parametrize("lacking", [False, True])
def test_copy_in_another_format_beside_the_weights_is_not_what_is_loaded(tmp_path: Path, lacking: bool) -> None:
    """As openai/gpt-oss-120b has it: original/ with an index that names shards beside itself."""
    inner = {f"original/{name}": data for name, data in contents(seed=1).items()}
    if lacking:
        del inner[f"original/{SECOND}"]
    found = seen(directory(tmp_path / "m", contents() | inner))
    assert found.lacks == {}
    assert found.complete
    assert (f"original/{SECOND}" in found.unjudged) != lacking


def test_index_of_another_format_is_not_asked_for_its_shards(tmp_path: Path) -> None:
    index = {"pytorch_model.bin.index.json": b'{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}'}
    assert seen(directory(tmp_path / "m", contents() | index)).complete
    alone = seen(directory(tmp_path / "n", {"config.json": b"{}"} | index))
    assert list(alone.lacks) == ["pytorch_model-00001-of-00001.bin"]


def test_weights_below_the_top_are_found_beside_their_index(tmp_path: Path) -> None:
    inner = {f"sub/{name}": data for name, data in contents().items()} | {"config.json": b"{}"}
    assert seen(directory(tmp_path / "m", inner)).complete
    (tmp_path / "m" / "sub" / SECOND).unlink()
    assert list(seen(tmp_path / "m").lacks) == [f"sub/{SECOND}"]


def test_download_takes_one_format_of_one_place() -> None:
    safetensors_ = ["config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors", "merges.txt"]
    others = [
        "original/model.safetensors.index.json",
        "original/a.safetensors",
        "pytorch_model.bin.index.json",
        "m.bin",
    ]
    assert hub_download.wanted([*safetensors_, *others, "LICENSE.txt"]) == safetensors_
    assert hub_download.wanted(["config.json", "x/a.safetensors"]) == ["config.json", "x/a.safetensors"]


def test_interrupted_download_leaves_no_part_that_no_client_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of another client, and those that older clients go on with, stay."""
    ended: list[int] = []
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    other, mine, resumed = (blobs / f"{name}.incomplete" for name in ("0a.00000000", "0a.0123abcd", "0b"))
    other.touch()

    class Input:
        def read(self) -> None:
            mine.touch()
            resumed.touch()

    monkeypatch.setattr("sys.stdin", Input())
    monkeypatch.setattr("os._exit", ended.append)
    hub_download.end_with_input(tmp_path)
    assert ended == [1]
    assert set(blobs.iterdir()) == {other, resumed}


def test_files_that_nothing_judges_are_told(tmp_path: Path) -> None:
    other = {"model.gguf": b"x", "tokenizer.model": b"x", "code.py": b"x"}
    assert set(seen(directory(tmp_path / "m", contents() | other)).unjudged) == set(other)


@pytest.mark.parametrize("hub", [False, True])
def test_parts_of_an_interrupted_copy_are_counted(tmp_path: Path, hub: bool) -> None:
    model = tmp_path / "models--org--made-up" if hub else tmp_path / "m"
    file = "blobs/1f.x" if hub else "sub/model.gguf"
    for version in ("900-1", "900-17f"):
        directory(model, {f"{file}.{version}{model_look.PARTIAL}": b"x" * 300})
    found = seen(model)
    assert (found.parts, found.files, found.stock) == ({file: 600}, {}, {})


def test_words_of_the_shell_before_the_answer_are_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An echo in the node's .bashrc."""
    run = Connection.run

    def noisy(connection: Connection, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run(connection, "sh", "-c", 'echo Welcome; exec "$@"', "sh", *argv, **options)

    monkeypatch.setattr(Connection, "run", noisy)
    assert seen(directory(tmp_path / "m", contents())).complete


def test_dangling_link_is_a_missing_file_under_its_name(tmp_path: Path) -> None:
    """C16."""
    entry = hub_entry(tmp_path, contents())
    blob = (entry / "snapshots" / COMMIT / SECOND).resolve()
    blob.unlink()
    found = seen(entry)
    assert list(found.lacks) == [f"blobs/{blob.name}"]
    assert found.lacks[f"blobs/{blob.name}"].name == SECOND


def test_blob_that_is_cut_off_is_named_by_its_shard(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path, contents())
    blob = (entry / "snapshots" / COMMIT / SECOND).resolve()
    size = blob.stat().st_size
    blob.write_bytes(blob.read_bytes()[:-10])
    assert str(seen(entry).lacks[f"blobs/{blob.name}"]) == f"{SECOND} ({size} bytes wanted, {size - 10} found)"


@pytest.mark.parametrize("absolute", [True, False])
def test_link_that_leads_outside_is_told(tmp_path: Path, absolute: bool) -> None:
    """C16."""
    model = directory(tmp_path / "m", contents())
    elsewhere = tmp_path / "elsewhere.safetensors"
    (model / SECOND).rename(elsewhere)
    target = str(elsewhere) if absolute else "../elsewhere.safetensors"
    (model / SECOND).symlink_to(target)
    found = seen(model)
    assert found.outside == {SECOND: target}
    assert found.lacks == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {"layers.2.weight": b"1234", "layers.2.scale": b"1"},  # as a quantized version has beside the same names
        {"layers.9.weight": b"1234"},
        {},
    ],
)
def test_shards_of_another_version_than_the_index_are_told(tmp_path: Path, tensors: dict[str, bytes]) -> None:
    found = seen(directory(tmp_path / "m", contents() | {SECOND: safetensors(tensors)}))
    assert (found.mismatched, found.lacks) == ((SECOND,), {})
    assert seen(directory(tmp_path / "one", contents())).mismatched == ()


def test_shard_of_the_models_own_numbering_that_the_index_leaves_out_is_told(tmp_path: Path) -> None:
    """An engine loads what the index names only, and misses the rest when all is loaded."""
    files = contents()
    index = json.loads(files["model.safetensors.index.json"])
    index["weight_map"] = {tensor: name for tensor, name in index["weight_map"].items() if name != SECOND}
    found = seen(directory(tmp_path / "m", files | {"model.safetensors.index.json": json.dumps(index).encode()}))
    assert (found.mismatched, found.lacks) == ((SECOND,), {})
    assert SECOND in found.files


def test_index_names_tensors_in_any_script(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", {"config.json": b"{}", "a.safetensors": safetensors({"层": b"1", '"\\': b"2"})})
    index = {"weight_map": {"层": "./a.safetensors", '"\\': "./a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index, ensure_ascii=False))
    assert (seen(model).mismatched, seen(model).complete) == ((), True)


@pytest.mark.parametrize("other", [{}, {"training_args.bin": b"1"}])
def test_shards_of_the_older_format_are_counted_by_their_numbers(tmp_path: Path, other: dict[str, bytes]) -> None:
    names = [f"pytorch_model-0000{number}-of-00003.bin" for number in (1, 2, 3)]
    model = directory(tmp_path / "m", {"config.json": b"{}"} | other | dict.fromkeys(names, b"1"))
    assert seen(model).complete
    (model / names[1]).unlink()
    assert list(seen(model).lacks) == [names[1]]


def test_link_to_the_directory_itself_is_inside(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", contents())
    (model / "loop").symlink_to(".")
    found = seen(model)
    assert (found.complete, found.outside, found.links) == (True, {}, {"loop": "."})


@pytest.mark.parametrize("name", [b"notes\n.\n.json", b"notes-\xff.json", b"more\n.\n"])
def test_names_that_no_model_has_are_no_part_of_it(tmp_path: Path, name: bytes) -> None:
    model = directory(tmp_path / "m", contents())
    place = model / os.fsdecode(name)
    if place.suffix == ".json":
        place.touch()
    else:
        directory(place, contents())
    found = seen(model)
    assert (found.complete, set(found.files)) == (True, set(contents()))


def test_circle_of_links_ends(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", contents())
    (model / "a.json").symlink_to("b.json")
    (model / "b.json").symlink_to("a.json")
    assert not seen(model).complete


@given(sizes=st.lists(st.integers(0, 300), max_size=6), cut=st.integers(0, 4000), names=st.text(max_size=8))
def test_size_by_the_header_is_the_size_of_the_file(sizes: list[int], cut: int, names: str) -> None:
    """Whatever the tensors are called, and however much of the file is there, once the header is."""
    data = safetensors({f"{names}{number}": b"x" * size for number, size in enumerate(sizes)})
    header = 8 + int.from_bytes(data[:8], "little")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        path.write_bytes(data[: max(header, len(data) - cut)])
        assert whole_size(*header_of(str(path)), path.stat().st_size) == len(data)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(index=JSON | st.fixed_dictionaries({"weight_map": JSON, "metadata": JSON}), raw=st.binary(max_size=40))
def test_look_never_fails_on_what_stands_in_a_file(index: Any, raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = directory(Path(folder), {"config.json": b"{}", "a.safetensors": raw})
        (root / "model.safetensors.index.json").write_text(json.dumps(index))
        found = ModelFiles.model_validate(model_look.look(folder, "main"))
    assert "a.safetensors" in found.lacks or whole(raw)


def whole(raw: bytes) -> bool:
    length = int.from_bytes(raw[:8], "little")
    return len(raw) == 8 + length and raw[8:9] == b"{"
