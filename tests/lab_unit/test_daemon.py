"""The daemon's control group: little weight for the nodes, where the machine lets the lab give it."""

from pathlib import Path

import pytest

from lab import daemon


@pytest.mark.parametrize(
    ("version", "folder", "file"),
    [(1, "cpu/dgx-spark-lab", "cpu.shares"), (2, "dgx-spark-lab", "cpu.weight")],
)
def test_nodes_get_less_of_the_processors(
    version: int, folder: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == 1:
        (tmp_path / "cpu").mkdir()
    monkeypatch.setattr(daemon, "CGROUPS", tmp_path)
    options = daemon._little_weight()
    assert options[-2:] == ["--cgroup-parent", "/dgx-spark-lab"]
    assert 0 < int((tmp_path / folder / file).read_text()) < 100


def test_daemon_starts_as_ever_where_groups_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "CGROUPS", tmp_path / "absent")
    assert daemon._little_weight() == []
