"""GpuGate's judgement on what Ray really answered: recorded State API rows of Ray 2.53 and 2.60."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from providers.gate import Stuck
from providers.gpu_gate import DEAD_SECONDS, HUNG_SECONDS, judge
from tests.samples import recorded

HEAD, WORKER = "192.168.100.10", "192.168.100.11"
EXPECTED = [
    {"name": "spark-1", "address": HEAD, "gpus": 1},
    {"name": "spark-2", "address": WORKER, "gpus": 1},
]


def row(address: str, state: str, message: str | None, gpus: float = 1.0) -> dict[str, Any]:
    """A recorded row in the probe's format."""
    return {"address": address, "alive": state == "ALIVE", "gpus": gpus, "reason": message or ""}


def reading(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"ray": "2.53.0", "nodes": list(rows)}


def from_api(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows of `ray list nodes --format json` or of the dashboard's /api/v0/nodes."""
    return reading(
        [row(one["node_ip"], one["state"], one["state_message"], one["resources_total"].get("GPU", 0)) for one in rows]
    )


def from_lines(text: str) -> dict[str, Any]:
    """Samples of one JSON list per row: address, state, message and, where recorded, GPUs."""
    return reading([row(*json.loads(line)) for line in text.splitlines()])


TWO_ALIVE = {
    "2.53 cli": lambda: from_api(json.loads(recorded("ray_list_nodes_json_2.53.0.txt").partition("\n\n")[0])),
    "2.60 cli": lambda: from_api(json.loads(recorded("ray_list_nodes_json_2.60.0.txt"))),
    "2.53 dashboard": lambda: from_api(
        json.loads(recorded("dash_api_v0_nodes.json"))["data"]["result"]["result"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", TWO_ALIVE)
def test_two_living_nodes_open_the_gate(source: str) -> None:
    verdict = judge(EXPECTED, TWO_ALIVE[source]())
    assert (verdict.opened, verdict.text, verdict.fault) == (True, "2 of 2 GPUs on 2 of 2 nodes verified", None)


@pytest.mark.parametrize(("registered", "opened"), [(1000.0, True), (999.0, True), (900.0, False), (0.0, False)])
def test_entry_from_before_the_containers_last_start_does_not_count(registered: float, opened: bool) -> None:
    """A killed raylet stays alive in the GCS for 15 s; its container runs again before that."""
    rows = [row(HEAD, "ALIVE", None) | {"started": 500.0}, row(WORKER, "ALIVE", None) | {"started": registered}]
    starts = {"ray-head on spark-1": 499.5, "ray-worker on spark-2": 1000.5}
    verdict = judge(EXPECTED, reading(rows) | {"starts": starts})
    assert verdict.opened is opened
    assert opened or "spark-2 not registered since its container's start" in verdict.text


def test_counts_from_the_state_of_pulumi_are_floats() -> None:
    expected = [{**node, "gpus": 1.0} for node in EXPECTED]
    assert judge(expected, TWO_ALIVE["2.53 cli"]()).opened


def test_dead_node_closes_the_gate_though_ray_status_lists_it() -> None:
    status = recorded("ray_status_after_dead_later_2.53.0.txt")
    assert status.count(" 1 node_") == 2, "the sample no longer shows why `ray status` is not asked"
    verdict = judge(EXPECTED, from_api(json.loads(recorded("ray_list_nodes_dead_2.53.0.json"))))
    assert not verdict.opened
    assert verdict.fault is None, "Docker's restart policy may bring it back"
    assert verdict.text.startswith("1 of 2 GPUs on 1 of 2 nodes; spark-2 dead: Unexpected termination: health check")


@pytest.mark.parametrize(
    ("starts", "after"),
    [({"ray-worker on spark-2": 990.0}, HUNG_SECONDS), ({"ray-worker on spark-2": 1030.0}, DEAD_SECONDS), ({}, 45.0)],
    ids=["hangs in its container", "container restarted since", "not looked at"],
)
def test_dead_node_is_left_to_itself_while_its_container_may_bring_it_back(
    starts: dict[str, float], after: float
) -> None:
    rows = [row(HEAD, "ALIVE", None), *(row(WORKER, "DEAD", "x") | {"started": at} for at in (1000.0, 400.0))]
    verdict = judge(EXPECTED, reading(rows) | {"starts": {"ray-head on spark-1": 1.0, **starts}})
    assert verdict.stuck == Stuck(after, "spark-2")


def test_rejoined_node_is_alive_beside_its_own_dead_entry() -> None:
    assert judge(EXPECTED, from_lines(recorded("ray_list_nodes_rejoin_2.53.0.txt"))).opened


def test_node_stopped_by_sigterm_is_dead_with_ray_own_words() -> None:
    verdict = judge(EXPECTED, from_lines(recorded("ray_list_nodes_sigterm_2.53.0.txt")))
    assert not verdict.opened
    assert "spark-2 dead: Expected termination: received SIGTERM" in verdict.text


def test_node_that_has_not_joined_is_awaited() -> None:
    verdict = judge(EXPECTED, reading([row(HEAD, "ALIVE", None)]))
    assert (verdict.opened, verdict.fault) == (False, None)
    assert verdict.text == "1 of 2 GPUs on 1 of 2 nodes; spark-2 not joined"


def test_no_node_yet_is_awaited() -> None:
    assert judge(EXPECTED, reading([])).text.startswith("0 of 2 GPUs on 0 of 2 nodes; spark-1 not joined, spark-2")


@pytest.mark.parametrize(("gpus", "wanted"), [(0.0, 1), (1.0, 2), (2.0, 1)])
def test_other_gpu_count_than_wanted_is_a_fault_of_that_node(gpus: float, wanted: int) -> None:
    """C22: waiting does not change what Ray counted when the node registered."""
    expected = [EXPECTED[0], {**EXPECTED[1], "gpus": wanted}]
    verdict = judge(expected, reading([row(HEAD, "ALIVE", None), row(WORKER, "ALIVE", None, gpus)]))
    assert not verdict.opened
    assert verdict.fault
    assert verdict.fault.node == "spark-2"
    assert verdict.fault.cause == f"Ray sees {gpus:.0f} GPU(s) on {WORKER}, {wanted} wanted"


def test_gpu_counts_of_several_nodes_are_told_at_once() -> None:
    verdict = judge(EXPECTED, reading([row(HEAD, "ALIVE", None, 0.0), row(WORKER, "ALIVE", None, 0.0)]))
    assert verdict.fault
    assert verdict.fault.node == "spark-1, spark-2"
    assert verdict.fault.cause == f"Ray sees 0 GPU(s) on {HEAD}, 1 wanted; Ray sees 0 GPU(s) on {WORKER}, 1 wanted"


def test_foreign_node_is_a_fault_that_lists_both_sides() -> None:
    rows = [row(HEAD, "ALIVE", None), row(WORKER, "ALIVE", None), row("10.1.230.181", "ALIVE", None)]
    verdict = judge(EXPECTED, reading(rows))
    assert not verdict.opened
    assert verdict.fault
    assert "10.1.230.181" in verdict.fault.cause
    assert f"(ours: {HEAD}, {WORKER})" in verdict.fault.cause


def test_foreign_node_that_died_is_history() -> None:
    rows = [row(HEAD, "ALIVE", None), row(WORKER, "ALIVE", None), row("10.1.230.181", "DEAD", "gone")]
    assert judge(EXPECTED, reading(rows)).opened


@pytest.mark.parametrize(
    "error",
    [{"error": "RpcError: Timed out while waiting for GCS to become available."}, {}, {"error": "x" * 5000}],
)
def test_silent_gcs_is_awaited(error: dict[str, Any]) -> None:
    verdict = judge(EXPECTED, error)
    assert (verdict.opened, verdict.fault) == (False, None)
    assert verdict.text.startswith("the GCS does not answer yet")
    assert len(verdict.text) <= 160


def test_two_living_entries_of_one_address_are_not_verified() -> None:
    rows = [row(HEAD, "ALIVE", None), row(WORKER, "ALIVE", None), row(WORKER, "ALIVE", None)]
    assert not judge(EXPECTED, reading(rows)).opened
