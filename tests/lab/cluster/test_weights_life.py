"""A model that one node has, from bare hosts to tokens: brought, mended while serve runs, and removed where told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.lab.cluster.checks import containers, copy_model
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, complete, lab_settings, on

HOME = "/home/aurora/test-weights"
MODEL = f"{HOME}/tiny-qwen3"
SECOND = "model-00002-of-00002.safetensors"
DIGESTS = f"cd {MODEL} && sha256sum *"


@pytest.fixture(scope="module")
def settings(bare: Stack) -> Iterator[list[str]]:
    """Arguments for a stack whose model only the head has."""
    for node in ("spark-1", "spark-2"):
        on(node, "rm", "-rf", HOME)
    copy_model(MODEL)
    yield bare.configured(lab_settings() | {"model": MODEL, "weights": {"keep": False}})
    for node in ("spark-1", "spark-2"):
        on(node, "rm", "-rf", HOME)


def test_up_brings_the_model_before_anything_of_the_engine_starts(stack: Stack, settings: list[str]) -> None:
    done = stack.up(*settings)
    assert done.code == 0, done.output
    assert "Model of spark-2, from spark-1:" in done.output
    assert on("spark-2", "sh", "-c", DIGESTS) == on("spark-1", "sh", "-c", DIGESTS)
    assert done.output.index("Model of spark-2, from spark-1:") < done.output.index("GPU gate:")


def test_second_up_changes_nothing(stack: Stack, settings: list[str]) -> None:
    done = stack.up("--expect-no-changes", *settings)
    assert done.code == 0, done.output


DAMAGES = {
    "missing": (f"rm {MODEL}/{SECOND}", r"\(missing, from spark-1\)"),
    "cut off": (f"truncate --size=-1 {MODEL}/{SECOND}", r"\(\d+ bytes instead of \d+, from spark-1\)"),
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_damaged_file_is_named_by_a_preview_and_mended_without_touching_serve(
    stack: Stack, settings: list[str], report: Report, fault: str
) -> None:
    damage, told = DAMAGES[fault]
    before = containers()
    on("spark-2", "sh", "-c", damage)
    with timed() as preview:
        assert stack.preview(*settings) == {"ModelWeights spark-2": "update"}
    shown = stack.pulumi("preview", "--stack", "lab", *settings)
    assert re.search(f"spark-2: the model lacks {SECOND} {told}", shown.output), shown.output
    with timed() as up:
        done = stack.up(*settings)
    assert done.code == 0, done.output
    assert on("spark-2", "sh", "-c", DIGESTS) == on("spark-1", "sh", "-c", DIGESTS)
    assert containers() == before
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    assert stack.preview(*settings) == {}
    name = f"file of the model {fault} on spark-2"
    report.repairs.append(Repair(name, "ModelWeights spark-2 (update)", "", preview[0], up[0]))


def test_destroy_removes_the_copy_and_leaves_the_model(stack: Stack, settings: list[str]) -> None:
    done = stack.destroy(*settings)
    assert done.code == 0, done.output
    on("spark-1", "test", "-f", f"{MODEL}/{SECOND}")
    on("spark-2", "test", "!", "-e", MODEL)
