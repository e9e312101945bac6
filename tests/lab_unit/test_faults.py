"""What the lab says of faults that it cannot inject."""

from __future__ import annotations

import pytest

from lab import access, faults
from lab.processes import LabError


@pytest.mark.parametrize(
    ("name", "target", "heal", "wanted"),
    [
        ("remove", "serve", False, "the lab is down"),
        ("nothing", None, False, "no fault 'nothing'"),
        ("remove", "spark-1", False, "remove cannot be done to 'spark-1'"),
        ("remove", "serve", True, "remove has nothing to take back"),
    ],
)
def test_fault_that_cannot_be_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str, target: str | None, wanted: str, *, heal: bool
) -> None:
    monkeypatch.setattr(access, "is_up", lambda: False)
    with pytest.raises(LabError, match=wanted) as caught:
        faults.inject(name, target, heal=heal)
    assert caught.value.next_step
