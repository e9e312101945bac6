"""A state that was lost while the cluster runs: told, and the next up starts anew."""

from __future__ import annotations

import pytest

from tests.lab.cluster.checks import containers
from tests.lab.cluster.report import Repair, Report, timed
from tests.lab.conftest import Stack, complete, lab_settings


@pytest.mark.parametrize(
    "serve", [pytest.param(False, id="Ray alone"), pytest.param(True, id="serving", marks=pytest.mark.matrix)]
)
def test_a_lost_state_is_told_in_the_preview_and_the_next_up_starts_anew(
    bare: Stack, report: Report, *, serve: bool
) -> None:
    settings = bare.configured(lab_settings() | {"serve": serve})
    done = bare.up(*settings)
    assert done.code == 0, done.output
    before = containers()
    bare.empty()
    warning = f"dgx-spark-cluster-lab-{'serve' if serve else 'ray-head'} of stack 'lab' are there, but this state"
    with timed() as preview:
        plan = bare.preview(*settings)
    assert set(plan.values()) == {"create"}
    assert {name.rpartition("-")[2] for name in plan if name.startswith("Container")} == {
        role.rpartition("-")[2] for role in before
    }
    assert containers() == before
    with timed() as up:
        done = bare.up(*settings)
    assert done.code == 0, done.output
    assert warning in done.output
    assert set(containers()) == set(before)
    assert not set(containers().values()) & set(before.values())
    assert bare.preview(*settings) == {}
    if serve:
        outputs = bare.outputs()
        assert complete(outputs["endpoint"], outputs["model"]) == 4
        report.repairs.append(Repair("state lost", "everything (create)", "everything", preview[0], up[0]))
