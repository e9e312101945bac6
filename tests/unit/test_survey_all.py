"""All nodes are asked at once, and those behind a jump host ride on its one connection; a script stands in for ssh."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hosts.survey import survey_all
from tests.samples import MINIMAL, cluster, spark

SSH = r"""#!/bin/sh
cd @HOME@
socket=${*##*ControlPath=\~/}
socket=${socket%%-%C*}-0123456789012345678901234567890123456789
echo "${*##*aurora@}" >> calls
case "$*" in
  *aurora@10.1.230.180" -- "*)
    if test -e dead; then echo "ssh: connect to host 10.1.230.180 port 22: No route to host" >&2; exit 255; fi
    touch "$socket"
    until test -e behind; do sleep 0.02; done
    if test -e broken; then echo "no disk" >&2; exit 1; fi ;;
  *) ls .cache/dgx-spark | grep -q . || exit 255; touch behind ;;
esac
cat answer
"""
"""The head answers only once a node behind it was asked; that one is reached only once the head has let us in."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in keeps what it was asked, and takes what it is to do."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(SSH.replace("@HOME@", str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "answer").write_text(json.dumps(spark(1)))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def calls(home: Path) -> list[str]:
    """Hosts that were dialled."""
    return sorted(line.split()[0] for line in (home / "calls").read_text().splitlines())


def test_node_behind_a_jump_host_waits_for_its_login_and_not_for_its_answer(home: Path) -> None:
    facts, faults = survey_all(cluster())
    assert (set(facts), faults) == ({"spark-1", "spark-2"}, [])
    assert calls(home) == ["10.1.230.180", "192.168.200.13"], "each once"


def test_order_of_the_settings_is_kept_wherever_the_jump_host_stands(home: Path) -> None:
    head, worker = MINIMAL["nodes"]
    facts, _ = survey_all(cluster(nodes=[worker, head]))
    assert list(facts) == ["spark-2", "spark-1"]
    assert len(calls(home)) == 2


def test_what_is_behind_a_dead_jump_host_is_not_dialled(home: Path) -> None:
    (home / "dead").touch()
    facts, faults = survey_all(cluster())
    assert facts == {}
    assert [(fault.node, fault.cause) for fault in faults] == [
        ("spark-1", "no route to host 10.1.230.180"),
        ("spark-2", "not reached through spark-1: no route to host 10.1.230.180"),
    ]
    assert calls(home) == ["10.1.230.180"]


def test_jump_host_that_gives_no_answer_still_leads_to_the_others(home: Path) -> None:
    (home / "broken").touch()
    facts, faults = survey_all(cluster())
    assert set(facts) == {"spark-2"}
    assert [fault.cause for fault in faults] == ["the survey failed with exit code 1"]
