"""ModelWeights in the resource graph: who waits for whom, what is mounted, and where secrets are."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi.runtime import rpc

from hosts.faults import Fault
from tests.program.stack import CONTAINER, Program
from tests.samples import STACK, model, settings, survey, surveys

SECOND = "model-00002-of-00002.safetensors"
ENTRY = "models--org--made-up"
COMMIT = "4" * 40
TOKEN = "hf_very-secret"
ABSENT = model(exists=False, weights=False, files={})


def hub(below: str = f"snapshots/{COMMIT}") -> dict[str, Any]:
    links = {f"{below}/config.json": "../../blobs/aa"}
    return model(below=below, files={"blobs/aa": 9}, links=links, refs={"refs/main": below.rpartition("/")[2]})


def test_nothing_is_asked_for_where_every_node_has_the_model(program: Program) -> None:
    found = program.run()
    for one in found.of(":ModelWeights"):
        inputs = one.inputs
        assert [inputs[key] for key in ("lacks", "links", "refs", "sources", "compared")] == [{}] * 5
        assert inputs.get("download") is None
        assert found.reaches(one, found[f"Host {one.name}"])
    assert not found.reaches(found["ModelWeights spark-1"], found["ModelWeights spark-2"])
    assert not found.reaches(found["ModelWeights spark-2"], found["ModelWeights spark-1"])


def test_what_a_node_lacks_is_named_with_its_source_over_the_fabric(program: Program) -> None:
    facts = {"spark-1": survey(1), "spark-2": survey(2, model=model(files={"config.json": 2000, SECOND: 7}))}
    inputs = program.run(facts=facts)["ModelWeights spark-2"].inputs
    assert inputs["lacks"][SECOND] == {"size": 5_000_000_000, "found": 7, "from": "spark-1"}
    assert set(inputs["lacks"]) == set(model()["files"]) - {"config.json"}
    source = inputs["sources"]["spark-1"]
    assert (source["address"], source["root"]) == ("192.168.200.12", "/srv/models/Qwen3.5-122B-A10B-FP8")


def test_serve_is_replaced_with_another_model_and_not_with_a_mended_file(program: Program) -> None:
    def loaded(facts: Any = None) -> str:
        return program.run(facts=facts)["spark-1-serve"].labels["dgx-spark-cluster.weights"]

    before = loaded()
    assert loaded({"spark-1": survey(1), "spark-2": survey(2, model=ABSENT)}) == before
    other = model(files={**model()["files"], "config.json": 2100})
    assert loaded({"spark-1": survey(1, model=other), "spark-2": survey(2, model=other)}) != before
    for one in program.run().of(CONTAINER):
        assert ("dgx-spark-cluster.weights" in one.labels) == one.name.endswith("-serve")


def test_model_that_no_node_has_whole_stops_the_program_before_anything_is_registered(program: Program) -> None:
    """C15."""
    broken = model(lacks={SECOND: {"name": SECOND, "wanted": 5_000_000_000, "found": None}}, files={"config.json": 1})
    found = program.run(facts={"spark-1": survey(1, model=broken), "spark-2": survey(2, model=ABSENT)})
    assert found.resources == []
    assert f"{SECOND} (5000000000 bytes wanted, missing)" in found.errors[0]


def test_hub_cache_entry_is_mounted_whole_and_its_snapshot_served(program: Program) -> None:
    """C16."""
    facts = {f"spark-{number}": survey(number, model=hub()) for number in (1, 2)}
    found = program.run(settings(model=f"/hub/{ENTRY}"), facts=facts)
    for one in found.of(CONTAINER):
        first = one.inputs["volumes"][0]
        assert first == {"hostPath": f"/hub/{ENTRY}", "containerPath": f"/hub/{ENTRY}", "readOnly": True}
    command = found["spark-1-serve"].inputs["command"]
    assert command[1] == f"/hub/{ENTRY}/snapshots/{COMMIT}"
    assert "--served-model-name=made-up" in command
    assert found["spark-1-serve"].environment["HF_HUB_OFFLINE"] == "1"


def test_download_is_for_one_node_and_the_others_copy_from_it(program: Program) -> None:
    absent = {f"spark-{number}": survey(number, model=ABSENT) for number in (1, 2)}
    found = program.run(
        settings(model="org/made-up", weights={"revision": "v1", "endpoint": "http://mirror.lan"}),
        facts=absent,
        hub_token=TOKEN,
        hub=(),
    )
    assert not found.errors
    first, second = found["ModelWeights spark-1"], found["ModelWeights spark-2"]
    assert first.inputs["root"] == f"/home/aurora/.cache/huggingface/hub/{ENTRY}"
    wanted = first.inputs["download"]
    assert (wanted["name"], wanted["revision"], wanted["endpoint"]) == ("org/made-up", "v1", "http://mirror.lan")
    assert wanted["stack"] == STACK
    assert found.reaches(first, found["NodeImage spark-1"]), "it is downloaded with the image's client"
    assert found.reaches(second, first)
    assert second.inputs.get("download") is None
    assert second.inputs["lacks"] == {"blobs/aa": {"size": 9, "from": "spark-1"}}
    assert second.inputs["refs"] == {"refs/main": COMMIT}
    assert found["spark-1-serve"].inputs["command"][1].endswith(f"{ENTRY}/snapshots/{COMMIT}")
    assert rpc.is_rpc_secret(first.inputs["token"])
    assert rpc.unwrap_rpc_secret(first.inputs["token"]) == TOKEN
    for one in found.resources:
        if one.urn != first.urn:
            assert TOKEN not in str(one.inputs)


def test_what_the_hub_refuses_comes_with_all_else_that_is_wrong(program: Program) -> None:
    absent = {"spark-1": survey(1, model=ABSENT, missing=["/hf"]), "spark-2": survey(2, model=ABSENT)}
    refused = Fault("spark-1", "the hub has no model org/made-up at revision v9", "correct `weights.revision`")
    found = program.run(settings(model="org/made-up"), facts=absent, hub=[(True, refused)])
    assert found.resources == []
    (error,) = found.errors
    assert "mount source /hf does not exist" in error
    assert "the hub has no model org/made-up at revision v9" in error


def test_hub_is_not_asked_for_a_directory_that_is_nowhere(program: Program) -> None:
    found = program.run(facts={f"spark-{number}": survey(number, model=ABSENT) for number in (1, 2)})
    (error,) = found.errors
    assert "spark-1: model directory" in error
    assert "hub" not in error


def test_hub_that_does_not_tell_is_a_warning(program: Program) -> None:
    absent = {f"spark-{number}": survey(number, model=ABSENT) for number in (1, 2)}
    unheard = Fault("spark-1", "no answer", "does the node reach it?")
    found = program.run(settings(model="org/made-up"), facts=absent, hub=[(False, unheard)])
    assert not found.errors
    assert str(unheard) in found.warnings
    assert found.of(":ModelWeights")


def test_hub_is_not_asked_for_what_a_node_has(program: Program) -> None:
    facts = {"spark-1": survey(1, model=hub()), "spark-2": survey(2, model=ABSENT)}
    assert not program.run(settings(model="org/made-up"), facts=facts).errors


def test_token_of_the_hub_must_be_a_secret(program: Program) -> None:
    found = program.run(hub_token=TOKEN, encrypted=False)
    assert "pulumi config set --secret hubToken" in found.errors[0]
    assert TOKEN not in found.errors[0]


def test_token_of_the_hub_is_refused_before_anything_asks_with_it(program: Program) -> None:
    found = program.run(hub_token=f"{TOKEN}\n")
    assert "hubToken: must be letters" in found.errors[0]
    assert TOKEN not in found.errors[0]


@pytest.mark.parametrize("keep", [True, False])
def test_weights_go_with_the_host_unless_they_are_to_be_removed(program: Program, keep: bool) -> None:
    found = program.run(settings(weights={"keep": keep}))
    assert found["ModelWeights spark-1"].deleted_with == (found["Host spark-1"].urn if keep else "")


def test_checksums_are_compared_with_the_owner_of_each_file(program: Program) -> None:
    found = program.run(settings(weights={"verify": "checksum"}), facts=surveys())
    assert found["ModelWeights spark-2"].inputs["compared"] == {"spark-1": model()["files"]}
    assert set(found["ModelWeights spark-2"].inputs["sources"]) == {"spark-1"}
