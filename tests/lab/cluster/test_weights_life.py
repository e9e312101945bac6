"""A model that one node has, from bare hosts to tokens: brought, mended while serve runs, and removed where told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.cluster.checks import containers, copy_model
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, complete, lab_settings, on

HOME = "/home/aurora/test-weights"
MODEL = f"{HOME}/tiny-qwen3"
SECOND = "model-00002-of-00002.safetensors"


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
    assert on("spark-2", "sh", "-c", f"cd {MODEL} && sha256sum *") == on(
        "spark-1", "sh", "-c", f"cd {MODEL} && sha256sum *"
    )
    assert done.output.index("Model of spark-2, from spark-1:") < done.output.index("GPU gate:")


def test_second_up_changes_nothing(stack: Stack, settings: list[str]) -> None:
    done = stack.up("--expect-no-changes", *settings)
    assert done.code == 0, done.output


def test_missing_file_is_named_by_a_preview_and_mended_without_touching_serve(
    stack: Stack, settings: list[str], report: Report
) -> None:
    before = containers()
    on("spark-2", "rm", f"{MODEL}/{SECOND}")
    with timed() as preview:
        assert stack.preview(*settings) == {"ModelWeights spark-2": "update"}
    told = stack.pulumi("preview", "--stack", "lab", *settings)
    assert f"spark-2: the model lacks {SECOND} (missing, from spark-1)" in told.output
    with timed() as up:
        done = stack.up(*settings)
    assert done.code == 0, done.output
    on("spark-2", "test", "-f", f"{MODEL}/{SECOND}")
    assert containers() == before
    outputs = stack.outputs()
    assert complete(outputs["endpoint"], outputs["model"]) == 4
    report.repairs.append(
        Repair("file of the model missing on spark-2", "ModelWeights spark-2 (update)", "", preview[0], up[0])
    )
    assert stack.preview(*settings) == {}


def test_destroy_removes_the_copy_and_leaves_the_model(stack: Stack, settings: list[str]) -> None:
    done = stack.destroy(*settings)
    assert done.code == 0, done.output
    on("spark-1", "test", "-f", f"{MODEL}/{SECOND}")
    on("spark-2", "test", "!", "-e", MODEL)
