"""A cluster of Ray alone (`serve: false`), with as many nodes as there are: what is left out, and what is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pulumi
import pytest

from components import node
from tests.program.stack import CONTAINER, Outcome, Program
from tests.samples import STACK, container, contents, inspected, model, settings, survey, surveys

HEAD = "10.1.230.180"
ABSENT = model(exists=False, weights=False, files={})


def ray_alone(count: int, **changes: Any) -> dict[str, Any]:
    """Settings of so many nodes without serve and model: the workers behind the head."""
    nodes = [{"name": "spark-1", "ssh": f"aurora@{HEAD}"}]
    nodes += [
        {"name": f"spark-{number}", "ssh": f"aurora@192.168.200.{11 + number}", "jump": "spark-1"}
        for number in range(2, count + 1)
    ]
    given = settings(nodes=nodes, serve=False, **changes)
    return {name: value for name, value in given.items() if name != "model" or "model" in changes}


def run(program: Program, count: int, **changes: Any) -> Outcome:
    found = program.run(ray_alone(count, **changes), facts=surveys(count))
    assert not found.errors
    return found


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_node_has_its_role_behind_one_gate(program: Program, count: int) -> None:
    found = run(program, count)
    workers = {f"spark-{number}-ray-worker" for number in range(2, count + 1)}
    assert {one.name for one in found.of(CONTAINER)} == {"spark-1-ray-head", *workers}
    for worker in workers:
        assert found.reaches(found[worker], found["spark-1-ray-head"])
        assert found.reaches(found["gpus"], found[worker])
        assert not [other for other in workers - {worker} if found.reaches(found[worker], found[other])]
    assert len(found["gpus"].inputs["nodes"]) == len(found["gpus"].inputs["watched"]) == count
    assert len(found.outputs["nodes"]) == count


@pytest.mark.parametrize("count", [2, 8])
def test_nodes_wait_for_none_but_the_one_that_has_the_image(program: Program, count: int) -> None:
    """Nothing is done on one node after another before the head's container runs."""
    found = run(program, count)
    for kind in ("Host", "docker"):
        for number in range(2, count + 1):
            assert not found.reaches(found[f"{kind} spark-{number}"], found[f"{kind} spark-{number - 1}"])
    for number in range(3, count + 1):
        assert not found.reaches(found[f"NodeImage spark-{number}"], found[f"NodeImage spark-{number - 1}"])


def test_serve_and_model_are_left_out(program: Program) -> None:
    found = run(program, 2)
    for kind in (":Serve", ":ServeGate", ":ModelWeights"):
        assert not found.of(kind)
    for one in found.of(CONTAINER):
        assert not [volume for volume in one.inputs["volumes"] if volume.get("hostPath")]
    assert set(found.outputs) == {"nodes", "ray"}
    assert found.outputs["ray"] == {"address": "192.168.200.12:6379", "version": "2.53.0"}
    assert set(found["image"].inputs["arguments"]) == {"ray start"}


def test_model_that_is_given_is_on_the_nodes_for_jobs(program: Program) -> None:
    facts = {"spark-1": survey(1), "spark-2": survey(2, model=ABSENT)}
    found = program.run(settings(serve=False), facts=facts)
    assert not found.errors
    assert found["ModelWeights spark-2"].inputs["lacks"]
    assert found.reaches(found["spark-2-ray-worker"], found["ModelWeights spark-2"])
    path = "/srv/models/Qwen3.5-122B-A10B-FP8"
    for one in found.of(CONTAINER):
        assert one.inputs["volumes"][0] == {"hostPath": path, "containerPath": path, "readOnly": True}
    assert not found.of(":Serve")


def test_without_a_model_none_is_missed(program: Program) -> None:
    facts = {name: survey(number, model=ABSENT) for number, name in enumerate(surveys(), 1)}
    assert not program.run(ray_alone(2), facts=facts).errors


def test_image_needs_ray_but_no_vllm(program: Program) -> None:
    assert not program.run(ray_alone(2), image=contents(vllm=None)).errors
    assert "has no Ray" in program.run(ray_alone(2), image=contents(ray=None)).errors[0]


def test_stale_services_are_stopped_for_ray_as_well(program: Program) -> None:
    found = run(program, 2)
    for number in (1, 2):
        assert found.reaches(found["spark-1-ray-head"], found["spark-1-stopped"])
        assert found.reaches(found[f"spark-{number}-stopped"], found["NodeImage spark-2"])


def test_names_are_freed_on_all_nodes_at_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that waits for its node holds up no other."""
    claims: list[Callable[[pulumi.ResourceHookArgs], Coroutine[Any, Any, None]]] = []

    class Hook(pulumi.ResourceHook):
        def __init__(self, name: str, callback: Any, *more: Any) -> None:
            super().__init__(name, callback, *more)
            claims.extend([callback] if name.endswith("-claim") else [])

    together = threading.Barrier(8)
    monkeypatch.setattr(pulumi, "ResourceHook", Hook)
    monkeypatch.setattr(node, "claim", lambda *_: together.wait(timeout=30) >= 0)
    taken = f"dgx-spark-cluster-{STACK}-ray-worker"
    docker = {"version": "28", "image": inspected(), "containers": [container(taken, "ray-worker")]}
    found = program.run(ray_alone(8), facts={f"spark-{n}": survey(n, docker=docker) for n in range(1, 9)})
    assert not found.errors
    arguments = pulumi.ResourceHookArgs(urn="", id="", name="", type="", new_inputs={"name": taken})

    told: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, *_: told.append(text))

    async def create() -> None:
        await asyncio.gather(*(claim(arguments) for claim in claims))

    asyncio.get_event_loop().run_until_complete(create())
    assert len(claims) == together.parties
    assert sorted(text.partition(" was there, but not in this state")[0] for text in told) == [
        f"spark-{number}: {taken}" for number in range(1, 9)
    ]
