"""GpuGate and ServeGate as resources: created behind a wait, updated, and read as open or gone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pulumi.runtime.rpc import UNKNOWN

from hosts.containers import EVER
from hosts.faults import Fault
from hosts.ssh import Connection, Hop, Unreached
from providers import gate, wait
from providers.gate import Watched
from providers.gpu_gate import GpuGateProvider
from providers.members import MembersProvider
from providers.serve_gate import ServeGateProvider
from tests.unit.fake_docker import FakeDocker, reading, says, state

LOCAL = Connection("spark-1", ())
HEAD = Watched(LOCAL, "head0123456789", "ray-head")
SERVE = Watched(LOCAL, "serve0123456789", "serve")
ADDRESS = "192.168.200.12"
GPUS: dict[str, Any] = {
    "address": f"{ADDRESS}:6379",
    "nodes": [{"name": "spark-1", "address": ADDRESS, "gpus": 1.0}],
    "watched": [HEAD.dump()],
    "former": {},
    "stack": "lab",
    "grace": 10.0,
    "deadline": 30.0,
    "ray": None,
}
SERVING: dict[str, Any] = {
    "url": "http://127.0.0.1:30000/v1",
    "model": "qwen",
    "watched": [SERVE.dump(), HEAD.dump()],
    "addresses": [ADDRESS],
    "deadline": 30.0,
    "completion": 20.0,
    "probe": 5.0,
    "first_token_seconds": None,
    "tokens_per_second": None,
}
ALIVE: dict[str, Any] = {"ray": "2.53.0", "nodes": [{"address": ADDRESS, "alive": True, "gpus": 1.0, "reason": ""}]}
DEAD = {"ray": "2.53.0", "nodes": [{"address": ADDRESS, "alive": False, "gpus": 1.0, "reason": "gone"}]}
VERIFIED = {"state": "verified", "first_token_seconds": 0.12, "tokens_per_second": 27.1}


@pytest.fixture(autouse=True)
def operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own serves each operation of Pulumi."""
    monkeypatch.setattr(gate, "TOLD", set())
    monkeypatch.setattr(gate, "UNREACHED", {})


@pytest.fixture
def running(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """Both containers run."""
    monkeypatch.setattr(wait, "LOOK_SECONDS", (0.0, 0.0))
    for one in (HEAD, SERVE):
        docker.answer(f"inspect {one.container}", state())
        docker.answer(f"logs {one.container}", says("INFO: starting\n"))
    return docker


def test_gpu_gate_is_created_with_ray_version_when_all_gpus_are_there(running: FakeDocker) -> None:
    running.answer(f"exec {HEAD.container}", reading({"error": "not yet"}, DEAD, ALIVE))
    found = GpuGateProvider().create(GPUS)
    assert (found.id, found.outs) == (f"gpus@{ADDRESS}:6379", {**GPUS, "ray": "2.53.0"})
    assert running.called("exec")[0][-2:] == [f"{ADDRESS}:6379", "0.25"]


def test_gpu_gate_does_not_exist_where_ray_head_died(running: FakeDocker) -> None:
    running.answer(f"inspect {HEAD.container}", state("exited", code=1))
    with pytest.raises(Fault, match="GPU gate: the ray-head container exited with code 1"):
        GpuGateProvider().create(GPUS)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reading(ALIVE), ""),
        (reading(DEAD), "GPU gate is gone: 0 of 1 GPUs on 0 of 1 nodes; spark-1 dead: gone\n"),
        (
            reading({"error": "Timed out while waiting for GCS"}),
            "GPU gate is gone: the GCS does not answer yet (Timed out while waiting for GCS)\n",
        ),
        (
            reading({"ray": "2.53.0", "nodes": [{**ALIVE["nodes"][0], "gpus": 0.0}]}),
            f"GPU gate is gone: Ray sees 0 GPU(s) on {ADDRESS}, 1 wanted\n",
        ),
        (
            says(code=1, stderr="Error response from daemon: container is not running"),
            "GPU gate is gone: the GCS does not answer yet (Error response from daemon: container is not running)\n",
        ),
    ],
    ids=["open", "node dead", "GCS silent", "other GPU count", "no probe"],
)
def test_gpu_gate_is_read_as_open_or_gone_with_its_reason(
    running: FakeDocker, answer: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {HEAD.container}", answer)
    found = GpuGateProvider().read("x", {**GPUS, "ray": "2.53.0"})
    assert (found.id, found.outs) == (("", {}) if said else ("x", {**GPUS, "ray": "2.53.0"}))
    assert capsys.readouterr().out == said


STRANGER = {
    **ALIVE,
    "nodes": [*ALIVE["nodes"], {"address": "192.168.200.13", "alive": True, "gpus": 1.0, "reason": ""}],
}


LEFT = {"address": "192.168.200.13", "connection": Connection("spark-2", ()).dump()}
AWAY = {"address": "192.168.200.14", "connection": Connection("spark-3", (Hop("spark-3", "127.0.0.1", "x", 1),)).dump()}
"""Refuses connections."""


def test_node_that_left_the_settings_is_taken_out_of_ray_where_it_is_still_in_it(
    running: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {HEAD.container}", reading(STRANGER, STRANGER, ALIVE))
    running.answer("ps label=dgx-spark-cluster.node=spark-2", says("w1\n"))
    found = GpuGateProvider().create({**GPUS, "former": {"spark-2": LEFT, "spark-3": AWAY}})
    assert (found.outs or {})["ray"] == "2.53.0"
    assert running.called("rm") == [["rm", "-f", "w1"]], "once"
    said = capsys.readouterr().out
    assert "spark-2: left the settings and is still in Ray; what is ours there is removed" in said
    assert "spark-3" not in said, "it is not in Ray: nothing is asked of it"


def test_former_nodes_are_left_alone_where_ray_has_no_stranger(running: FakeDocker) -> None:
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    GpuGateProvider().create({**GPUS, "former": {"spark-2": LEFT}})
    assert not running.called("rm")


@pytest.mark.parametrize(
    "former",
    [{}, {"spark-3": AWAY}, {"spark-2": LOCAL.dump()}],
    ids=["none left", "another one left", "state without addresses"],
)
def test_stranger_that_was_never_ours_is_a_fault_at_once(running: FakeDocker, former: dict[str, Any]) -> None:
    running.answer(f"exec {HEAD.container}", reading(STRANGER))
    with pytest.raises(Fault, match=r"Ray has a node that is not ours: 192\.168\.200\.13"):
        GpuGateProvider().create({**GPUS, "former": former})
    assert not running.called("rm")


def test_preview_names_the_node_that_left_the_settings_and_is_in_ray_again(
    running: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {HEAD.container}", reading(STRANGER))
    assert GpuGateProvider().read("x", {**GPUS, "former": {"spark-2": LEFT}}).id == ""
    assert capsys.readouterr().out.endswith("still in Ray, but not in the settings: spark-2\n")


def test_members_remember_who_left_until_its_name_or_its_address_is_back() -> None:
    one, two, three = (
        {"address": f"192.168.200.1{number}", "connection": Connection(f"spark-{number}", ()).dump()}
        for number in (1, 2, 3)
    )
    renamed = {"address": two["address"], "connection": Connection("spark-b", ()).dump()}
    provider, state = MembersProvider(), {"nodes": {"spark-1": one, "spark-2": two}, "former": {}}
    assert provider.create({**state, "former": None}).outs == state

    def update(*nodes: dict[str, Any]) -> Any:
        news = {"nodes": {node["connection"]["node"]: node for node in nodes}, "former": None}
        state.update(provider.update("members", state, news).outs or {})
        assert not provider.diff("members", state, news).changes
        return state["former"]

    assert update(one) == {"spark-2": two}
    assert update(one, three) == {"spark-2": two}
    assert update(one, two) == {"spark-3": three}
    assert update(one) == {"spark-2": two, "spark-3": three}
    assert update(one, renamed) == {"spark-3": three}


def test_members_of_a_state_without_addresses_are_not_remembered() -> None:
    one = {"address": ADDRESS, "connection": LOCAL.dump()}
    olds = {"nodes": {"spark-1": LOCAL.dump(), "spark-2": LOCAL.dump()}, "former": {"spark-3": LOCAL.dump()}}
    outs = MembersProvider().update("members", olds, {"nodes": {"spark-1": one}, "former": None}).outs
    assert outs == {"nodes": {"spark-1": one}, "former": {}}


def test_serve_gate_is_created_with_its_measurement(running: FakeDocker) -> None:
    running.answer(f"exec {SERVE.container}", reading({"state": "refused"}, {"state": "asked"}, VERIFIED))
    found = ServeGateProvider().create(SERVING)
    assert found.outs == {**SERVING, "first_token_seconds": 0.12, "tokens_per_second": 27.1}
    assert running.called("exec")[0][-4:] == ["http://127.0.0.1:30000/v1", "qwen", "20.0", "0.25"]


def test_serve_gate_fails_early_when_a_ray_container_dies(running: FakeDocker) -> None:
    running.answer(f"exec {SERVE.container}", reading(*({"state": "refused"},) * 9))
    running.answer(f"inspect {HEAD.container}", state(), state("exited", code=1))
    with pytest.raises(Fault, match="Serve gate: the ray-head container exited with code 1"):
        ServeGateProvider().update("x", {**SERVING, "watched": []}, SERVING)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reading({"state": "verified"}), ""),
        (reading({"state": "refused"}), "Serve gate is gone: loading (the port refuses connections)\n"),
        (reading({"state": "failing", "error": "HTTP 500"}), "Serve gate is gone: completion fails: HTTP 500\n"),
        (
            says(code=1, stderr="Error: No such container"),
            "Serve gate is gone: completion fails: Error: No such container\n",
        ),
    ],
    ids=["open", "loading", "failing", "no probe"],
)
def test_serve_gate_is_read_as_open_or_gone_with_its_reason(
    running: FakeDocker, answer: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {SERVE.container}", answer)
    found = ServeGateProvider().read("x", SERVING)
    assert (found.id, found.outs) == (("", {}) if said else ("x", SERVING))
    assert capsys.readouterr().out == said
    assert running.called("exec")[0][-4:] == ["http://127.0.0.1:30000/v1", "qwen", "5.0", "0"]


@pytest.mark.parametrize("status", ["exited", "restarting", "paused"])
def test_gates_are_gone_while_a_watched_container_does_not_run(
    running: FakeDocker, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray takes 15 s to notice a killed raylet: until then its own word would do."""
    running.answer(f"exec {SERVE.container}", reading(VERIFIED))
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    running.answer(f"inspect {HEAD.container}", state(status))
    assert ServeGateProvider().read("x", SERVING).id == ""
    assert GpuGateProvider().read("x", GPUS).id == ""
    why = f"is gone: spark-1: the ray-head container is {status}"
    assert capsys.readouterr().out == f"Serve gate {why}\nGPU gate {why}\n"


def test_gate_is_gone_whose_container_is(running: FakeDocker, capsys: pytest.CaptureFixture[str]) -> None:
    """In an `up` the container that replaces it may be there already."""
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    running.answer(f"inspect {HEAD.container}", says(code=1, stderr="Error: No such container: head"))
    assert GpuGateProvider().read("x", GPUS).id == ""
    wanted = "GPU gate is gone: spark-1: the ray-head container that it watched is missing\n"
    assert capsys.readouterr().out == wanted


def test_gate_is_gone_where_a_watched_node_does_not_answer(
    running: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have left the settings while it was down: that must not keep the others from being repaired."""
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    away = Connection("spark-2", (Hop("spark-2", "127.0.0.1", "nobody", 1),), "/dev/null")
    watched = [HEAD.dump(), Watched(away, "worker0123456789", "ray-worker").dump()]
    assert GpuGateProvider().read("x", {**GPUS, "watched": watched}).id == ""
    assert capsys.readouterr().out.startswith("GPU gate is gone: spark-2: 127.0.0.1 refuses connections")


def test_node_that_does_not_answer_costs_its_timeout_once_for_all_gates(
    running: FakeDocker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    running.answer(f"exec {SERVE.container}", reading(VERIFIED))
    away = Watched(Connection("spark-2", (Hop("spark-2", "127.0.0.1", "nobody", 1),), "/dev/null"), "w", "ray-worker")
    watched = [HEAD.dump(), away.dump()]
    assert GpuGateProvider().read("x", {**GPUS, "watched": watched}).id == ""
    monkeypatch.setattr(Connection, "run", lambda *_args, **_options: pytest.fail("asked again"))
    assert ServeGateProvider().read("x", {**SERVING, "watched": [SERVE.dump(), *watched]}).id == ""
    first, second = capsys.readouterr().out.splitlines()
    assert second.removeprefix("Serve") == first.removeprefix("GPU")


def test_node_that_did_not_answer_is_asked_again_after_a_while(
    running: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    silent = (time.monotonic() - LOCAL.connect_timeout, Unreached("spark-1", "does not answer", "wait"))
    monkeypatch.setitem(gate.UNREACHED, LOCAL, silent)
    assert GpuGateProvider().read("x", GPUS).id == "x"


@pytest.fixture
def previewing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pulumi preview` runs."""
    monkeypatch.setattr(gate, "previewing", lambda: True)


@pytest.mark.usefixtures("previewing")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reading(VERIFIED), "a completion came back"),
        (reading({"state": "refused"}), "loading (the port refuses connections)"),
    ],
    ids=["open", "loading"],
)
def test_preview_reads_a_gate_that_is_in_no_state(
    running: FakeDocker, answer: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an `up` that failed: Pulumi itself shows only that the gate is to be created."""
    running.answer(f"exec {SERVE.container}", answer)
    found = ServeGateProvider().check({}, SERVING)
    assert (found.inputs, found.failures) == (SERVING, [])
    assert capsys.readouterr().out == f"Serve gate was not verified yet: {said}\n"


@pytest.mark.usefixtures("previewing")
def test_gate_that_was_told_to_be_gone_is_not_read_twice(
    running: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer(f"exec {SERVE.container}", reading({"state": "refused"}))
    ServeGateProvider().read("x", SERVING)
    ServeGateProvider().check({}, SERVING)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("olds", [{}, SERVING], ids=["new", "known"])
@pytest.mark.parametrize("watched", [SERVING["watched"], UNKNOWN], ids=["there", "to be created"])
@pytest.mark.parametrize("preview", [True, False])
def test_check_reads_nothing_of_a_gate_without_containers_or_in_the_state_nor_in_an_up(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, olds: dict[str, Any], watched: Any, *, preview: bool
) -> None:
    monkeypatch.setattr(gate, "previewing", lambda: preview)
    ServeGateProvider().check(olds, {**SERVING, "watched": watched})
    assert bool(docker.calls) == (preview and not olds and watched != UNKNOWN)


def test_gate_that_is_gone_tells_what_the_start_before_died_of(
    running: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash loop loads most of the time, and Docker calls it running."""
    running.answer(f"exec {SERVE.container}", reading({"state": "refused"}))
    running.answer(f"inspect {SERVE.container}", state(restarts=2))
    crash = "ValueError: qwen9\nValue error, the model is of type `qwen9` [type=value_error\nINFO: starting\n"
    running.answer(f"logs {SERVE.container} {EVER}", says(crash))
    ServeGateProvider().read("x", SERVING)
    assert capsys.readouterr().out == (
        "Serve gate is gone: loading (the port refuses connections); restarts: 2, the last after: "
        "the engine refuses its configuration: the model is of type `qwen9`\n"
    )


def test_refresh_changes_nothing_on_the_node(running: FakeDocker) -> None:
    running.answer(f"exec {SERVE.container}", reading(VERIFIED))
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    ServeGateProvider().read("x", SERVING)
    GpuGateProvider().read("x", GPUS)
    assert {call[0] for call in running.calls} == {"exec", "inspect"}


def test_gates_follow_the_containers_they_watch() -> None:
    other = [{**HEAD.dump(), "container": "another"}]
    assert GpuGateProvider().diff("x", GPUS, {**GPUS, "watched": other}).changes
    assert ServeGateProvider().diff("x", SERVING, {**SERVING, "watched": other}).changes
    assert not ServeGateProvider().diff("x", {**SERVING, **VERIFIED}, SERVING).changes, "its own measurement"


def test_gates_follow_another_way_to_a_node(running: FakeDocker) -> None:
    """A refresh reads by the way in the state."""
    running.answer(f"exec {HEAD.container}", reading(ALIVE))
    moved = {**GPUS, "watched": [{**HEAD.dump(), "connection": {**LOCAL.dump(), "connect_timeout": 9.0}}]}
    assert GpuGateProvider().diff("x", GPUS, moved).changes
    assert (GpuGateProvider().update("x", GPUS, moved).outs or {})["watched"] == moved["watched"]


def test_other_limit_of_a_refresh_is_remembered_and_nothing_is_verified(running: FakeDocker) -> None:
    known = {**SERVING, "tokens_per_second": 27.1}
    longer = {**SERVING, "probe": 60.0}
    assert ServeGateProvider().diff("x", known, longer).changes
    assert ServeGateProvider().update("x", known, longer).outs == {**known, "probe": 60.0}
    assert not running.calls
