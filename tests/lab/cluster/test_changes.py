"""Settings that change under a serving cluster: only dependents are replaced; nodes come and go."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.cluster.checks import ALL, HEAD, NODES, SERVE, WORKER, containers, copy_model, inject, plan_text
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, complete, lab_settings, on, ours, refused

pytestmark = pytest.mark.matrix
ONLY_SERVE = frozenset({"serve"})
IMAGE, MODEL = "test-changes:1", "/home/aurora/test-changes"
CHANGES: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "engine argument": (
        {"engine_arguments": ["--enforce-eager", "--max-model-len=128", "--dtype=bfloat16"]},
        ONLY_SERVE,
    ),
    "port": ({"port": 30001}, ONLY_SERVE),
    "name of the model": ({"served_model_name": "other"}, ONLY_SERVE),
    "image": ({"image": IMAGE, "image_archive": None}, ALL),
    "model": ({"model": MODEL}, ALL),
    "environment": ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "OTHER": "1"}}, ALL),
    "restart policy": ({"restart": "no"}, frozenset()),
}
"""Each on top of those before it."""


def changed(number: int) -> dict[str, Any]:
    """The lab's settings with so many of the changes."""
    settings = copy.deepcopy(lab_settings())
    for change, _ in list(CHANGES.values())[:number]:
        settings |= change
    return settings


@pytest.fixture(scope="module", autouse=True)
def others(serving: Stack) -> Iterator[None]:  # noqa: ARG001 - the image is there
    """Another image and another model, on the head only."""
    dockerfile = f"FROM {lab_settings()['image']}\nLABEL test-changes=1\n"

    def remove() -> None:
        for node in NODES:
            on(node, "sh", "-c", f"rm -rf {MODEL}; docker image rm -f {IMAGE} 2>/dev/null", check=False)

    remove()
    on("spark-1", "sh", "-ec", f"printf %s '{dockerfile}' | docker build --quiet --tag {IMAGE} -")
    copy_model(MODEL)
    yield
    remove()


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=list(CHANGES))
def test_a_changed_setting_replaces_only_its_dependents(serving: Stack, report: Report, number: int) -> None:
    done = serving.up(*serving.configured(changed(number)))
    assert done.code == 0, done.output
    before = containers()
    arguments = serving.configured(changed(number + 1))
    with timed() as preview:
        plan = serving.preview(*arguments)
    replaced = list(CHANGES.values())[number][1]
    assert {name.rpartition("-")[2] for name in plan if name.startswith("Container") and plan[name] == "replace"} == {
        role.rpartition("-")[2] for role in replaced
    }
    with timed() as up:
        done = serving.up(*arguments)
    assert done.code == 0, done.output
    after = containers()
    assert {role for role in after if after[role] != before[role]} == replaced
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview(*arguments) == {}
    name = f"setting changed: {list(CHANGES)[number]}"
    report.repairs.append(Repair(name, plan_text(plan), ", ".join(sorted(replaced)), preview[0], up[0]))


@pytest.mark.parametrize(("which", "down"), [("both", {HEAD, WORKER, SERVE}), ("spark-1", {HEAD, SERVE})])
def test_what_a_reboot_took_down_is_started_where_docker_shall_not(
    serving: Stack, report: Report, which: str, down: set[str]
) -> None:
    """After the changes: with `restart: "no"`. Where only the head went down, the worker ends at its new session."""
    arguments = serving.configured(changed(len(CHANGES)))
    assert serving.up(*arguments).code == 0
    before = containers()
    inject("reboot", which)
    with timed() as preview:
        plan = serving.preview(*arguments)
    assert {name for name in plan if name.startswith("Container")} >= down, plan
    with timed() as up:
        done = serving.up(*arguments)
    assert done.code == 0, done.output
    assert containers() == before
    assert serving.preview(*arguments) == {}
    report.repairs.append(Repair(f'reboot {which}, restart: "no"', plan_text(plan), "", preview[0], up[0]))


def one_node() -> dict[str, Any]:
    """Only the head, which then does it all; alone it would be found on another address, and be replaced."""
    settings = lab_settings()
    return settings | {"nodes": [settings["nodes"][0] | {"fabric": "192.168.200.12"}]}


@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_a_node_is_removed_from_the_settings_and_added_again(serving: Stack, report: Report, *, down: bool) -> None:
    assert serving.up().code == 0
    alone = serving.configured(one_node())
    gone = serving.preview(*alone)
    assert (gone[WORKER], gone["Host spark-2"], gone[SERVE]) == ("delete", "delete", "replace")
    assert HEAD not in gone
    if down:
        inject("off", "spark-2")
        with timed() as up:
            refused(serving.up(*alone), "spark-2: ", "pulumi state delete")
        error, rest = "error: spark-2, with the command that forgets it", "serve, which then serves alone"
        report.repairs.append(Repair("node removed from the settings while off", error, rest, None, up[0]))
        outputs = serving.outputs()
        assert complete(outputs["endpoint"], outputs["model"]) == 4, "the head does without it"
        inject("off", "spark-2", "--heal")
    with timed() as up:
        done = serving.up(*alone)
    assert done.code == 0, done.output
    assert (set(ours("spark-1")), ours("spark-2")) == ({"ray-head", "serve"}, {})
    assert on("spark-2", "docker", "volume", "ls", "-q", "--filter", "label=dgx-spark-cluster.stack=lab") == ""
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview(*alone) == {}
    if not down:
        report.repairs.append(Repair("node removed from the settings", "everything of it", "serve", None, up[0]))

    head = ours("spark-1")["ray-head"]
    added = serving.preview()
    assert (added[WORKER], added["Host spark-2"], added[SERVE]) == ("create", "create", "replace")
    assert HEAD not in added
    with timed() as up:
        done = serving.up()
    assert done.code == 0, done.output
    assert ours("spark-1")["ray-head"] == head
    outputs = serving.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert serving.preview() == {}
    if not down:
        report.repairs.append(Repair("node added to the settings", "everything of it", "serve", None, up[0]))
