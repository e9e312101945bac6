"""Which node lacks which file of the model, who has it, and what is said where nobody does."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.faults import Fault
from hosts.survey import Survey
from hosts.weights.plan import LOADED, check, check_node, plan
from settings import Cluster
from tests.samples import cluster, model, survey

PATH = "/srv/models/Qwen3.5-122B-A10B-FP8"
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
WHOLE = model()["files"]
ABSENT: dict[str, Any] = {"exists": False, "weights": False, "files": {}}
HUB = "models--org--made-up"


def without(*names: str, **changes: Any) -> dict[str, Any]:
    """A model that lacks files of its index."""
    lacks = {name: {"name": name} for name in names}
    return {"files": {name: size for name, size in WHOLE.items() if name not in names}, "lacks": lacks} | changes


def cut(name: str, found: int) -> dict[str, Any]:
    """A model with a shard that is cut off."""
    lack = {"name": name, "wanted": WHOLE[name], "found": found}
    return {"files": WHOLE | {name: found}, "lacks": {name: lack}}


def nodes(*models: dict[str, Any]) -> dict[str, Survey]:
    return {f"spark-{number}": survey(number, model=model(**one)) for number, one in enumerate(models, 1)}


def three(**changes: Any) -> Cluster:
    return cluster(nodes=[{"name": f"spark-{n}", "ssh": f"aurora@10.1.230.18{n}"} for n in (1, 2, 3)], **changes)


def faults(*models: dict[str, Any], **settings: Any) -> list[Fault]:
    wanted, seen = cluster(**settings), nodes(*models)
    alone = [fault for node in wanted.nodes for fault in check_node(wanted, node, seen[node.name])]
    return alone + list(check(wanted, seen, plan(wanted, seen)))


def only(*models: dict[str, Any], **settings: Any) -> Fault:
    found = faults(*models, **settings)
    assert len(found) == 1, [str(one) for one in found]
    return found[0]


def test_complete_nodes_are_to_get_nothing() -> None:
    found = plan(cluster(), nodes({}, {}))
    assert [(one.files, one.links) for one in found.shares.values()] == [({}, {})] * 2
    assert (found.seed, found.below, found.download) == ("spark-1", "", False)
    assert faults({}, {}) == []


def test_node_that_mixes_two_versions_is_no_example_for_one_that_has_the_model() -> None:
    found = plan(cluster(), nodes({"mismatched": [FIRST], "files": WHOLE | {FIRST: 7}}, {}))
    lacking, whole = found.shares.values()
    assert (found.seed, list(lacking.files), whole.nothing) == ("spark-2", [FIRST], True)


@pytest.mark.parametrize("seed", [1, 2])
def test_empty_node_gets_everything_from_the_one_that_has_it(seed: int) -> None:
    models = [{}, ABSENT] if seed == 1 else [ABSENT, {}]
    found = plan(cluster(), nodes(*models))
    share = found.shares[f"spark-{3 - seed}"]
    assert {file: (one.size, one.found, one.owner) for file, one in share.files.items()} == {
        file: (size, None, f"spark-{seed}") for file, size in WHOLE.items()
    }
    assert found.shares[f"spark-{seed}"].files == {}
    assert faults(*models) == []


def test_just_the_file_that_is_cut_off_is_brought() -> None:
    share = plan(cluster(), nodes({}, cut(SECOND, 512))).shares["spark-2"]
    assert str(share) == f"{SECOND} (512 bytes instead of 5000000000, from spark-1)"
    assert share.size == WHOLE[SECOND]


def test_nodes_that_lack_different_files_mend_each_other() -> None:
    found = plan(cluster(), nodes(without(FIRST), cut(SECOND, 7)))
    assert {name: str(share) for name, share in found.shares.items()} == {
        "spark-1": f"{FIRST} (missing, from spark-2)",
        "spark-2": f"{SECOND} (7 bytes instead of 5000000000, from spark-1)",
    }
    assert faults(without(FIRST), cut(SECOND, 7)) == []


def test_of_two_whole_files_the_heads_is_meant() -> None:
    found = plan(cluster(), nodes({}, {"files": WHOLE | {"config.json": 2100}}))
    assert str(found.shares["spark-2"]) == "config.json (2100 bytes instead of 2000, from spark-1)"
    assert found.shares["spark-1"].files == {}


def test_whole_model_is_not_overwritten_by_a_former_version_that_the_head_has_in_part() -> None:
    former = {name: size - 10 for name, size in WHOLE.items() if name != SECOND}
    found = plan(cluster(), nodes({"files": former, "lacks": {SECOND: {"name": SECOND}}}, {}))
    assert (found.seed, set(found.owners.values())) == ("spark-2", {"spark-2"})
    assert set(found.shares["spark-1"].files) == set(WHOLE)
    assert found.shares["spark-2"].nothing


def test_two_versions_neither_of_which_is_whole_are_not_mixed() -> None:
    former = {name: size - 10 for name, size in WHOLE.items() if name != SECOND}
    fault = only({"files": former, "lacks": {SECOND: {"name": SECOND}}}, without("config.json"))
    assert f"{FIRST} is another one on each node, and nothing tells which is whole" in fault.cause


def test_third_node_is_served_as_well() -> None:
    found = plan(three(), nodes(ABSENT, {}, without(SECOND)))
    assert [len(share.files) for share in found.shares.values()] == [3, 0, 1]
    assert set(found.owners.values()) == {"spark-2"}


def test_digest_is_that_of_the_wanted_files_whoever_lacks_some() -> None:
    """A mended file replaces no serve; another model does."""
    whole = plan(cluster(), nodes({}, {}))
    assert plan(cluster(), nodes({}, cut(SECOND, 7))).digest == whole.digest
    assert plan(cluster(), nodes(cut(SECOND, 7), {})).digest == whole.digest
    other = {"files": WHOLE | {"config.json": 2100}}
    assert plan(cluster(), nodes(other, other)).digest != whole.digest


def test_file_that_no_node_has_whole_is_named_with_its_sizes_on_each_node() -> None:
    """C15."""
    first, second = faults(without(SECOND), cut(SECOND, 512))
    assert (first.node, second.node) == ("spark-1", "spark-2")
    assert first.cause == f"model directory {PATH} is not complete, nor is it elsewhere: {SECOND} (missing)"
    assert f"{SECOND} (5000000000 bytes wanted, 512 found)" in second.cause
    assert "one node that has them is enough" in first.remedy


def test_model_that_is_nowhere_is_a_fault_of_each_node() -> None:
    found = faults(ABSENT, ABSENT)
    assert [one.cause for one in found] == [f"model directory {PATH}: No such file or directory"] * 2
    others = {f"spark-{n}": survey(n, model=model(**ABSENT), models=["Qwen3", "gpt-oss"]) for n in (1, 2)}
    named = list(check(cluster(), others, plan(cluster(), others)))
    assert [one.node for one in named] == ["spark-1", "spark-2"]
    assert all(one.remedy.endswith("; models there: Qwen3, gpt-oss") for one in named)


def test_directory_without_weights_is_a_fault_unless_none_are_to_be_loaded() -> None:
    bare = {"files": {"config.json": 2000}, "weights": False}
    assert "no weights" in only(bare, ABSENT).cause
    assert faults(bare, ABSENT, engine_arguments=["--load-format=dummy"]) == []


def test_unjudged_files_of_two_sizes_are_for_the_user_to_choose() -> None:
    """Else a .gguf that a broken scp cut off on the head would take the place of the worker's whole one."""
    one, other = ({"files": WHOLE | {"m.gguf": size}, "unjudged": ["m.gguf"]} for size in (7, 9_000))
    fault = only(one, other)
    assert fault.node == "spark-1, spark-2"
    assert fault.cause == (
        "m.gguf is another one on each node, and nothing tells which is whole: 7 bytes on spark-1, 9000 bytes on "
        "spark-2"
    )
    assert fault.remedy == "remove the wrong one: the other is then copied to that node"
    assert faults(one, one) == []
    assert faults(other, {}) == [], "there is no other to be lost"


def test_digest_is_of_what_is_loaded() -> None:
    def digest(**more: int) -> str | None:
        model = {"files": WHOLE | {name.replace("_", "."): size for name, size in more.items()}}
        return plan(cluster(), nodes(model, model)).digest

    assert digest(results_json=1) == digest()
    assert digest(tokenizer_json=1) != digest()


@pytest.mark.parametrize(
    ("name", "is_loaded"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("1_Pooling/config.json", True),
        ("generation_config.json", True),
        ("special_tokens_map.json", True),
        ("tekken.json", True),
        ("params.json", True),
        ("preprocessor_config.json", True),
        ("vocab.json", True),
        ("merges.txt", True),
        ("tokenizer.model.v3", True),
        ("chat_template.jinja", True),
        ("modeling_made_up.py", True),
        ("results.json", False),
        ("config/results.json", False),
        ("notes.txt", False),
        ("blobs/" + "1f" * 32, False),
    ],
)
def test_what_an_engine_loads(name: str, is_loaded: bool) -> None:
    assert bool(LOADED.search(name)) == is_loaded


def test_no_room_is_known_before_anything_starts() -> None:
    fault = only({}, ABSENT | {"free": 9_000_000_000})
    assert fault.node == "spark-2"
    assert fault.cause == f"no room for the model: 10.5 GB needed in {PATH}, 9.0 GB free"


def test_part_that_is_there_needs_no_room_again() -> None:
    """One file of 119 GB, cut at 90, with 60 left: it goes on."""
    big = {"files": {"config.json": 2000, "m.safetensors": 119_000_000_000}}
    lacking = ABSENT | {"parts": {"m.safetensors": 90_000_000_000}}
    assert faults(big, lacking | {"free": 60_000_000_000}) == []
    assert "no room for the model: 30.5 GB needed" in only(big, lacking | {"free": 20_000_000_000}).cause
    other = ABSENT | {"parts": {"other.safetensors": 90_000_000_000}}
    assert "125.0 GB needed" in only(big, other | {"free": 60_000_000_000}).cause


def test_path_that_does_not_exist_is_one_fault_of_each_node() -> None:
    typo = ABSENT | {"writable": False}
    assert [one.cause for one in faults(typo, typo)] == [f"model directory {PATH}: No such file or directory"] * 2
    wanted = faults(typo, typo, model="org/made-up")
    assert [one.cause.rpartition(", ")[2] for one in wanted] == ["which lacks the model"] * 2


def test_revision_that_is_not_in_the_cache_names_the_snapshots() -> None:
    there = ABSENT | {"below": "snapshots/main", "snapshots": ["4" * 40, "5" * 40]}
    first, second = faults(there, there, model=f"/hub/{HUB}")
    assert (first.node, second.node) == ("spark-1", "spark-2")
    assert first.cause == f"/hub/{HUB} has no snapshot of main; there: {'4' * 40}, {'5' * 40}"
    assert first.remedy == f"give one as `model`: /hub/{HUB}/snapshots/{'5' * 40}, or correct `weights.revision`"


def test_directory_that_may_not_be_written_is_known_before_anything_starts() -> None:
    fault = only({}, cut(SECOND, 7) | {"writable": False})
    assert fault.cause.startswith(f"may not write into {PATH}, which lacks {SECOND}")
    assert f" aurora@192.168.200.13 'sudo install -d -o $USER {PATH}'" in fault.remedy
    assert faults({}, {"writable": False}) == [], "nothing is to be written"


def test_file_that_may_not_be_read_is_a_fault_where_it_must_be_copied() -> None:
    closed = {"closed": [SECOND]}
    fault = only(closed, without(SECOND))
    assert fault.node == "spark-1"
    assert fault.cause == f"may not read {SECOND} in {PATH}, which spark-2 lacks"
    assert fault.remedy.endswith(f"ssh -t aurora@10.1.230.180 'sudo chmod -R a+rX {PATH}'")
    assert faults(closed, closed) == [], "the containers' root reads it"


def test_link_that_leads_outside_is_a_fault_unless_that_is_mounted_too() -> None:
    """C16."""
    linked = {"outside": {SECOND: "/data/blobs/1f"}}
    fault = only({}, linked)
    assert fault.cause == f"{PATH}/{SECOND} is a link to /data/blobs/1f, outside of what the containers see"
    many = {"outside": {f"{number}.safetensors": f"/data/{number}" for number in range(40)}}
    fault = only({}, many)
    assert fault.cause.endswith(
        "0.safetensors is a link to /data/0, outside of what the containers see, as are 39 more"
    )
    assert fault.evidence.splitlines() == [f"{number}.safetensors -> /data/{number}" for number in range(1, 5)]
    assert faults({}, linked, mounts=[{"source": "/data", "target": "/data"}]) == []
    assert faults({}, linked, mounts=[{"source": "/dat", "target": "/dat"}])


def snapshot(commit: str, *lacking: str) -> dict[str, Any]:
    links = {f"snapshots/{commit}/{name}": f"../../blobs/{commit}{number}" for number, name in enumerate(WHOLE)}
    files = {f"blobs/{commit}{number}": size for number, size in enumerate(WHOLE.values())}
    lacks = {file: {"name": file} for file in lacking}
    return {
        "below": f"snapshots/{commit}",
        "files": {file: size for file, size in files.items() if file not in lacking},
        "links": links,
        "lacks": lacks,
        "refs": {"refs/main": commit},
    }


def test_blob_of_the_hub_cache_is_brought_and_its_link_is_there() -> None:
    share = plan(cluster(model=f"/hub/{HUB}"), nodes(snapshot("a"), snapshot("a", "blobs/a2"))).shares["spark-2"]
    assert (list(share.files), share.links) == (["blobs/a2"], {})


def test_other_revision_in_a_cache_is_no_copy_of_the_heads() -> None:
    found = plan(cluster(model=f"/hub/{HUB}"), nodes(snapshot("a"), snapshot("b")))
    assert found.below == "snapshots/a"
    assert found.shares["spark-1"].files == {}
    assert found.shares["spark-1"].nothing
    share = found.shares["spark-2"]
    assert set(share.files) == {"blobs/a0", "blobs/a1", "blobs/a2"}
    assert set(share.links) == set(snapshot("a")["links"])
    assert share.refs == {"refs/main": "a"}, "else it would be another revision in every run"


def test_other_revision_need_not_be_whole() -> None:
    broken = snapshot("b", "blobs/b1")
    assert faults(snapshot("a"), broken, model=f"/hub/{HUB}") == []
    assert plan(cluster(model="org/made-up"), nodes(broken, snapshot("a", "blobs/a2"))).download
    first, second = faults(snapshot("a", "blobs/a1"), snapshot("a", "blobs/a1"), model=f"/hub/{HUB}")
    assert "is not complete, nor is it elsewhere: blobs/a1" in first.cause
    assert first.cause == second.cause


@pytest.mark.parametrize("where", ["files", "stock"])
def test_blob_that_another_revision_shares_is_there(where: str) -> None:
    there = snapshot("b")
    there[where] = {**there.get(where, {}), "blobs/a1": WHOLE[FIRST]}
    share = plan(cluster(model=f"/hub/{HUB}"), nodes(snapshot("a"), there)).shares["spark-2"]
    assert set(share.files) == {"blobs/a0", "blobs/a2"}


def test_link_that_the_seed_lacks_is_set_from_the_others() -> None:
    lacking = snapshot("a")
    blob = lacking["links"].pop(f"snapshots/a/{SECOND}")
    size = lacking["files"].pop("blobs/a2")
    found = plan(cluster(model=f"/hub/{HUB}"), nodes(lacking | {"stock": {"blobs/a2": size}}, snapshot("a")))
    assert (found.seed, found.shares["spark-1"].files) == ("spark-1", {})
    assert found.shares["spark-1"].links == {f"snapshots/a/{SECOND}": blob}
    assert str(found.shares["spark-1"]) == "1 link(s)"


def test_missing_ref_alone_is_set() -> None:
    bare = snapshot("a") | {"refs": {}}
    share = plan(cluster(model=f"/hub/{HUB}"), nodes(snapshot("a"), bare)).shares["spark-2"]
    assert (share.files, share.links, share.refs, share.nothing) == ({}, {}, {"refs/main": "a"}, False)


@pytest.mark.parametrize("there", [ABSENT, snapshot("a", "blobs/a2")])
def test_hub_name_is_downloaded_where_no_node_has_it_whole(there: dict[str, Any]) -> None:
    wanted = cluster(model="org/made-up")
    found = plan(wanted, nodes(there, ABSENT))
    assert (found.download, found.below, found.digest) == (True, None, None)
    assert list(check(wanted, nodes(there, ABSENT), found)) == []


def test_hub_name_that_a_node_has_is_not_downloaded() -> None:
    found = plan(cluster(model="org/made-up"), nodes(ABSENT, snapshot("a")))
    assert (found.download, found.seed, len(found.shares["spark-1"].files)) == (False, "spark-2", 3)


@pytest.mark.parametrize(
    ("given", "path", "root", "name"),
    [
        ("org/made-up", f"~/.cache/huggingface/hub/{HUB}", f"~/.cache/huggingface/hub/{HUB}", "made-up"),
        (f"/hub/{HUB}", f"/hub/{HUB}", f"/hub/{HUB}", "made-up"),
        (f"/hub/{HUB}/snapshots/{'4' * 40}", f"/hub/{HUB}/snapshots/{'4' * 40}", f"/hub/{HUB}", "made-up"),
        ("~/models/m/", "~/models/m/", "~/models/m", "m"),
    ],
)
def test_mount_is_chosen_so_that_links_resolve(given: str, path: str, root: str, name: str) -> None:
    """C16."""
    found = cluster(model=given)
    assert (found.model_path, found.model_root, found.model_name) == (path, root, name)


def shards(count: int, size: int = 1_000_000) -> dict[str, int]:
    """The shards of a model of so many."""
    return {f"model-{number:05}-of-{count:05}.safetensors": size for number in range(1, count + 1)}


INDEX_FILE = "model.safetensors.index.json"
NEW = {"files": {"config.json": 2000, INDEX_FILE: 900, **shards(3)}}
OLD = {"config.json": 2000, INDEX_FILE: 600, **shards(2, 5_000_000)}


@pytest.mark.parametrize(
    "other",
    [
        {"files": OLD},
        {"files": {key: OLD[key] for key in list(OLD)[:-1]}, "lacks": {list(OLD)[-1]: {"name": list(OLD)[-1]}}},
        {"files": {"config.json": 2000, **shards(2)}},
        {"files": {"config.json": 2000, "model.safetensors": 9}},
        {"files": NEW["files"] | {"pytorch_model.bin": 9, "original/consolidated.00.pth": 9}},
    ],
    ids=["another version", "another version cut off", "without its index", "of one file", "other formats"],
)
def test_weights_of_another_version_or_format_stay_where_they_are(other: dict[str, Any]) -> None:
    found = plan(cluster(), nodes(NEW, other))
    assert found.shares["spark-1"].files == {}
    assert set(found.shares["spark-2"].files) == {
        file for file, size in NEW["files"].items() if other["files"].get(file) != size
    }
    assert faults(NEW, other) == []
    afterwards = {"files": {**NEW["files"], "pytorch_model.bin": 9}}
    assert plan(cluster(), nodes(NEW, afterwards)).digest == found.digest


def test_other_weights_without_an_index_would_be_loaded_too() -> None:
    """vLLM filters by the index alone (weight_utils.filter_duplicate_safetensors_files)."""
    fault = only(
        {"files": {"config.json": 2000, "model.safetensors": 9}}, {"files": {"config.json": 2000, **shards(1)}}
    )
    assert fault.node == "spark-2"
    assert fault.cause.endswith(", which an engine would load too: model-00001-of-00001.safetensors")
    assert "mv model-00001-of-00001.safetensors .other" in fault.remedy


def test_absolute_link_inside_the_model_is_relative_on_a_node_with_another_home() -> None:
    """The containers see the model under the head's path."""
    seen = nodes(
        {"links": {FIRST: "/home/a/m/sub/blob", "x/y.json": "/home/a/m/z.json", "out": "/elsewhere"}},
        {"links": {FIRST: "/home/b/m/sub/blob", "x/y.json": "../z.json"}},
    )
    homes = {"spark-1": "/home/a", "spark-2": "/home/b"}
    seen = {name: facts.model_copy(update={"home": homes[name]}) for name, facts in seen.items()}
    shares = plan(cluster(model="~/m"), seen).shares
    assert shares["spark-1"].links == {}
    assert shares["spark-2"].links == {FIRST: "sub/blob", "out": "/elsewhere"}


def test_absolute_links_that_lead_to_the_same_are_left_alone() -> None:
    seen = nodes({"links": {FIRST: f"{PATH}/blob"}}, {"links": {FIRST: "blob"}})
    assert [share.links for share in plan(cluster(), seen).shares.values()] == [{}, {}]
