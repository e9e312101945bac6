"""Host preparation in the graph: what is registered for a clean node and for a stale one, in which order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosts.survey import Survey
from tests.program.stack import CONTAINER, Outcome, Program
from tests.samples import container, settings, survey, surveys

COMMAND = "command:local:Command"
STALE: dict[str, Any] = {
    "units": [{"name": "vllm-cluster.service", "active": "active", "enabled": "enabled"}],
    "docker": {"version": "28", "containers": [container("vllm_node", "x", stack=None)]},
}
FOUND = {
    "units": {"vllm-cluster.service": {"runs": True, "enabled": "enabled"}},
    "containers": {"vllm_node": {"id": "x" * 64, "image": container("x", "x")["image"]}},
}
NOTHING: dict[str, Any] = {"units": {}, "containers": {}}


def one_stale() -> dict[str, Survey]:
    return {"spark-1": survey(1), "spark-2": survey(2, **STALE)}


def found_on(outcome: Outcome) -> dict[str, Any]:
    """What each command was told, by its name."""
    return {one.name: json.loads(one.inputs["environment"]["FOUND"]) for one in outcome.of(COMMAND)}


def test_clean_node_is_registered_as_one_where_no_change_is_seen(program: Program) -> None:
    """What was stopped at first must stay in the state when it is no longer alive."""
    outcome = program.run()
    assert found_on(outcome) == dict.fromkeys(
        ("spark-1-found", "spark-1-stopped", "spark-2-found", "spark-2-stopped"), NOTHING
    )
    assert outcome.warnings == []


def test_another_way_to_a_clean_node_stops_nothing_once_more_but_is_known_for_the_way_back(program: Program) -> None:
    """Options of ssh are part of the command; a unit that was stopped once may be gone, or run on purpose."""
    outcome = program.run()
    ignored = {one.name: set(one.ignore_changes) for one in outcome.of(COMMAND)}
    for node in ("spark-1", "spark-2"):
        assert ignored[f"{node}-found"] == {"environment"}
        assert ignored[f"{node}-stopped"] == {"create", "environment"}


def test_what_is_stale_is_named_and_given_to_its_node_alone(program: Program) -> None:
    outcome = program.run(facts=one_stale())
    assert not outcome.errors
    (warning,) = outcome.warnings
    assert warning == (
        "spark-2: preparation stops and disables unit vllm-cluster.service (active, enabled), removes container "
        "vllm_node (running); `stale_units` and `stale_containers` name them"
    )
    assert found_on(outcome) == {
        "spark-1-found": NOTHING,
        "spark-1-stopped": NOTHING,
        "spark-2-found": FOUND,
        "spark-2-stopped": FOUND,
    }
    assert [one.name for one in outcome.of(COMMAND) if one.ignore_changes] == ["spark-1-found", "spark-1-stopped"]


def test_stopping_is_repeated_whenever_something_is_alive_but_the_record_is_changed_by_new_things_only(
    program: Program,
) -> None:
    outcome = program.run(facts=one_stale())
    assert "AT" in outcome["spark-2-stopped"].inputs["environment"]
    assert set(outcome["spark-2-found"].inputs["environment"]) == {"FOUND"}


def test_nothing_is_stopped_before_every_node_has_image_and_model_and_the_image_is_found_good(
    program: Program,
) -> None:
    """A live service must not end for an image that is without Ray or a model that does not arrive."""
    outcome = program.run(facts=one_stale())
    needed = [*outcome.of(":NodeImage"), *outcome.of(":ModelWeights"), *outcome.of(":ImageGate")]
    assert len(needed) == 5
    for node in ("spark-1", "spark-2"):
        assert all(outcome.reaches(outcome[f"{node}-stopped"], one) for one in needed)


def test_what_needs_gpu_or_port_comes_after_its_node_is_prepared_and_all_leaves_before_units_are_put_back(
    program: Program,
) -> None:
    outcome = program.run(facts=one_stale())
    for node in ("spark-1", "spark-2"):
        found, stopped, host = (outcome[name] for name in (f"{node}-found", f"{node}-stopped", f"Host {node}"))
        assert outcome.reaches(stopped, found)
        assert outcome.reaches(host, found)
        roles = [one for one in outcome.of(CONTAINER) if one.labels["dgx-spark-cluster.node"] == node]
        assert roles
        assert all(outcome.reaches(one, host) and outcome.reaches(one, stopped) for one in roles)
        # Else the engine would skip the delete that puts units back.
        assert not found.deleted_with
        assert found.inputs["delete"]
        assert not stopped.inputs.get("delete")
    assert not outcome.reaches(outcome["spark-2-found"], outcome["spark-1-found"])


def test_commands_reach_the_node_as_everything_does(program: Program) -> None:
    outcome = program.run(facts=one_stale())
    assert outcome["spark-1-stopped"].inputs["create"] == ":", "there is nothing to stop"
    create = outcome["spark-2-stopped"].inputs["create"]
    assert "ProxyCommand=" in create
    assert "aurora@192.168.200.13 -- 'python3 - test/spark-2 stop 10' " in create
    assert create.endswith("< hosts/preparation_script.py")


def test_units_stay_stopped_where_the_settings_say_so(program: Program) -> None:
    first, second = settings()["nodes"]
    outcome = program.run(settings(nodes=[first, {**second, "restore_units": False}]), facts=one_stale())
    assert " test/spark-1 restore" in outcome["spark-1-found"].inputs["delete"]
    assert " test/spark-2 forget" in outcome["spark-2-found"].inputs["delete"]


@pytest.mark.parametrize(("changes", "hooks"), [({}, 1), ({"drop_page_cache": True}, 2)], ids=["left alone", "dropped"])
def test_page_cache_is_dropped_before_serve_only_and_where_it_is_wanted(
    program: Program, changes: dict[str, Any], hooks: int
) -> None:
    outcome = program.run(settings(**changes), facts=surveys())
    assert len(outcome["spark-1-serve"].before_create) == hooks
    assert len(outcome["spark-1-ray-head"].before_create) == 1
