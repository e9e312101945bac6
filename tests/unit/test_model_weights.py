"""ModelWeights: what is brought, verified and removed, on two nodes that are this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.ssh import Connection, Hop
from hosts.weights import look as model_look
from hosts.weights.files import ModelFiles, look
from hosts.weights.look import LEDGER, PARTIAL
from hosts.weights.plan import plan
from providers.image_copy import Source
from providers.model_weights import ModelWeightsProvider
from tests.samples import cluster, survey
from tests.samples.models import COMMIT, contents, directory, hub_entry
from tests.unit.fake_docker import FakeDocker, says

HEAD, WORKER = Connection("spark-1", ()), Connection("spark-2", ())
SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return directory(tmp_path / "one" / "m", contents())


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    return tmp_path / "two" / "m"


def props(head: Path, worker: Path, node: str = "spark-2", **changes: Any) -> dict[str, Any]:
    """What the program passes for a node after a look at both."""
    facts = {
        name: survey(1).model_copy(update={"model": ModelFiles.model_validate(model_look.look(str(path), "main"))})
        for name, path in (("spark-1", head), ("spark-2", worker))
    }
    found = plan(cluster(), facts)
    share = found.shares[node]
    ends = {"spark-1": (HEAD, head), "spark-2": (WORKER, worker)}
    given = {
        "connection": ends[node][0].dump(),
        "root": str(ends[node][1]),
        "below": found.below,
        "digest": found.digest,
        "lacks": {file: one.dump() for file, one in share.files.items()},
        "links": dict(share.links),
        "refs": dict(share.refs),
        "sources": {
            name: {**Source(connection, "127.0.0.1").dump(), "root": str(root)}
            for name, (connection, root) in ends.items()
            if name != node
        },
        "compared": {},
        "download": None,
        "token": None,
        "streams": 2.0,  # Pulumi's numbers
        "verify": "size",
        "keep": True,
    } | changes
    return {key: value for key, value in given.items() if value is not None}  # as Pulumi passes it


def created(given: dict[str, Any]) -> dict[str, Any]:
    outs = ModelWeightsProvider().create(given).outs
    assert outs
    return outs


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def test_empty_node_gets_the_model_and_is_no_change_afterwards(head: Path, worker: Path) -> None:
    outs = created(props(head, worker))
    assert names(worker) == {*contents(), LEDGER}
    assert look(WORKER, str(worker), "main").complete
    assert not ModelWeightsProvider().diff("x", outs, props(head, worker)).changes


@pytest.mark.parametrize("kept", [None, 100])
def test_missing_or_short_file_is_drift_and_just_it_is_brought(
    docker: FakeDocker, head: Path, worker: Path, kept: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    outs = created(props(head, worker))
    whole = (worker / SECOND).read_bytes()
    (worker / SECOND).unlink()
    if kept:
        (worker / SECOND).write_bytes(whole[:kept])
    drift = props(head, worker)
    assert drift["lacks"] == {SECOND: {"size": len(whole), "found": kept, "from": "spark-1"}}
    assert ModelWeightsProvider().diff("x", outs, drift).changes
    capfd.readouterr()
    mended = ModelWeightsProvider().update("x", outs, drift).outs
    assert (worker / SECOND).read_bytes() == whole
    assert mended
    assert (mended["lacks"], mended["digest"]) == ({}, outs["digest"])
    assert "0.0 MB sent" in capfd.readouterr().out
    assert docker.calls == []


def test_entry_of_the_hub_cache_arrives_with_its_links(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path / "one", contents())
    other = tmp_path / "two" / entry.name
    created(props(entry, other))
    assert names(other) - {LEDGER} == names(entry)
    assert look(WORKER, str(other), "main").complete
    link = other / "snapshots" / COMMIT / "config.json"
    link.unlink()
    drift = props(entry, other)
    assert list(drift["links"]) == [f"snapshots/{COMMIT}/config.json"]
    created(drift)
    assert link.read_bytes() == contents()["config.json"]


@pytest.mark.parametrize("blob_too", [False, True])
def test_link_that_the_head_lacks_is_set_on_the_head(tmp_path: Path, blob_too: bool) -> None:
    """Without it the head is whole all the same, and the seed: what it lacks comes from the worker."""
    entry = hub_entry(tmp_path / "one", contents() | {"generation_config.json": b"{ }"})
    other = tmp_path / "two" / entry.name
    created(props(entry, other))
    link = entry / "snapshots" / COMMIT / "generation_config.json"
    if blob_too:
        link.resolve().unlink()
    link.unlink()
    drift = props(entry, other, "spark-1")
    assert list(drift["links"]) == [f"snapshots/{COMMIT}/generation_config.json"]
    assert len(drift["lacks"]) == blob_too
    outs = created(drift)
    assert link.read_bytes() == b"{ }"
    again = props(entry, other, "spark-1")
    assert (again["lacks"], again["links"], again["refs"]) == ({}, {}, {})
    assert not ModelWeightsProvider().diff("x", outs, again).changes


def test_other_revision_converges_to_the_heads(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path / "one", contents(seed=1) | {"tokenizer.model": b"the same"})
    other = hub_entry(tmp_path / "two", contents(seed=2) | {"tokenizer.model": b"the same"}, commit="5" * 40)
    drift = props(entry, other)
    assert drift["refs"] == {"refs/main": COMMIT}
    assert set(drift["lacks"]) == set(look(HEAD, str(entry), "main").files) - set(
        look(WORKER, str(other), "main").files
    )
    outs = created(drift)
    assert (other / "refs" / "main").read_text() == COMMIT
    again = props(entry, other)
    assert (again["lacks"], again["links"], again["refs"]) == ({}, {}, {})
    assert not ModelWeightsProvider().diff("x", outs, again).changes


def test_checksums_are_compared_when_asked_for_and_what_differs_is_copied(
    head: Path, worker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outs = created(props(head, worker))
    (worker / SECOND).write_bytes((worker / SECOND).read_bytes()[:-1] + b"\0")
    files = {name: float(len(data)) for name, data in contents().items()}
    asked = props(head, worker, verify="checksum", compared={"spark-1": files})
    assert not ModelWeightsProvider().diff("x", outs, props(head, worker)).changes, "the size is right"
    assert ModelWeightsProvider().diff("x", outs, asked).changes
    verified = created(asked)
    assert (worker / SECOND).read_bytes() == contents()[SECOND]
    assert f"other checksums than spark-1's, copied anew: {SECOND}" in capfd.readouterr().out
    assert not ModelWeightsProvider().diff("x", verified, asked).changes, "once is enough"


def test_checksums_can_be_asked_for_again(head: Path, worker: Path) -> None:
    provider, outs = ModelWeightsProvider(), created(props(head, worker))
    files = {name: float(len(data)) for name, data in contents().items()}
    asked, sizes = props(head, worker, verify="checksum", compared={"spark-1": files}), props(head, worker)
    for _ in range(2):
        (worker / SECOND).write_bytes((worker / SECOND).read_bytes()[:-1] + b"\0")
        assert provider.diff("x", outs, asked).changes
        outs = provider.update("x", outs, asked).outs or {}
        assert (worker / SECOND).read_bytes() == contents()[SECOND]
        assert provider.diff("x", outs, sizes).changes, "to sizes again is remembered"
        outs = provider.update("x", outs, sizes).outs or {}
        assert not provider.diff("x", outs, sizes).changes


def test_another_way_to_the_node_is_remembered_and_no_file_is_read(head: Path, worker: Path) -> None:
    files = {name: float(len(data)) for name, data in contents().items()}
    created(props(head, worker))
    asked = props(head, worker, verify="checksum", compared={"spark-1": files})
    outs = created(asked)
    changed = {"connection": Connection("spark-2", (Hop("spark-2", "127.0.0.1", port=1),)).dump(), "keep": False}
    assert ModelWeightsProvider().diff("x", outs, asked | changed).changes
    assert ModelWeightsProvider().update("x", outs, asked | changed).outs == outs | changed


def test_own_blob_that_is_not_what_its_name_says_is_a_fault(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path, contents())
    blob = (entry / "snapshots" / COMMIT / SECOND).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
    files = {f"blobs/{path.name}": path.stat().st_size for path in (entry / "blobs").iterdir()}
    asked = props(entry, entry, verify="checksum", compared={"spark-2": files})
    with pytest.raises(Fault, match=f"not what their names say: blobs/{blob.name}"):
        created(asked)


@pytest.mark.parametrize(
    ("change", "changes", "replaces"),
    [
        ({}, False, []),
        ({"sources": {}}, False, []),
        ({"streams": 8}, False, []),
        ({"digest": "other"}, True, []),
        ({"keep": False}, True, []),
        ({"verify": "checksum"}, True, []),
        ({"root": "/elsewhere"}, True, ["root"]),
        ({"links": {"a": "b"}}, True, []),
        ({"refs": {"refs/main": "b"}}, True, []),
    ],
)
def test_what_is_a_change(head: Path, change: dict[str, Any], changes: bool, replaces: list[str]) -> None:
    given = props(head, head)
    found = ModelWeightsProvider().diff("x", given, given | change)
    assert (found.changes, found.replaces) == (changes, replaces)


def test_token_is_in_no_output(head: Path) -> None:
    assert "hf_secret" not in str(created(props(head, head, token="hf_secret")))


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("keep", [True, False])
def test_destroy_leaves_what_was_there_and_the_copies_unless_told(head: Path, worker: Path, keep: bool) -> None:
    directory(worker, {"config.json": contents()["config.json"], "mine.txt": b"x"})
    outs = created(props(head, worker, keep=keep))
    (worker / f"late.{PARTIAL}").write_bytes(b"x")
    ModelWeightsProvider().delete("x", outs)
    assert names(worker) >= {"config.json", "mine.txt"}
    if keep:
        assert names(worker) >= set(contents())
    else:
        assert names(worker) == {"config.json", "mine.txt"}


@pytest.mark.usefixtures("docker")
def test_destroy_leaves_a_model_that_was_only_mended(
    head: Path, worker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file may have come from a copy that goes too, and be the last one."""
    directory(worker, {SECOND: contents()[SECOND]})
    ModelWeightsProvider().delete("x", created(props(head, worker, keep=False)))
    assert names(worker) >= set(contents())
    assert "Model of spark-2: the model was there before and was mended: it stays" in capfd.readouterr().out


@pytest.mark.usefixtures("docker")
def test_destroy_of_a_copy_leaves_no_directory_of_it(tmp_path: Path) -> None:
    entry = hub_entry(tmp_path / "one", contents())
    other = tmp_path / "two" / entry.name
    ModelWeightsProvider().delete("x", created(props(entry, other, keep=False)))
    assert list((tmp_path / "two").iterdir()) == []
    assert look(HEAD, str(entry), "main").complete


SHOWN = 'ps {{.Names}} {{.Label "dgx-spark-cluster.node"}}'


def test_model_stays_while_another_name_of_the_node_has_it_mounted(
    docker: FakeDocker, head: Path, worker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was made under the name that left the settings goes last. Its own containers go with its Host."""
    outs = created(props(head, worker, keep=False))
    docker.answer(SHOWN, says("dgx-spark-cluster-desk-ray-worker spark-3\ndgx-spark-cluster-desk-serve spark-2\n"))
    ModelWeightsProvider().delete("x", outs)
    assert docker.called("ps")[-1][2:4] == ["--filter", f"volume={worker}"]
    assert names(worker) >= set(contents())
    assert f"model {worker} stays: dgx-spark-cluster-desk-ray-worker has it mounted" in capfd.readouterr().out


def test_model_that_was_there_before_is_never_removed(docker: FakeDocker, head: Path) -> None:
    docker.answer(SHOWN, says("dgx-spark-cluster-desk-serve spark-1\n"))
    ModelWeightsProvider().delete("x", created(props(head, head, keep=False)))
    assert names(head) == set(contents())
