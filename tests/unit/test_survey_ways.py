"""How the survey goes through jump hosts: one connection to each, however many nodes are behind it."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from hosts.ssh import Connection
from hosts.survey import survey_all
from tests.samples import cluster, spark


def behind(count: int) -> list[dict[str, str]]:
    """A head, and so many workers behind it; one more behind the first of them."""
    way = [{"name": "spark-1", "ssh": "aurora@10.1.230.180"}]
    way += [{"name": f"spark-{n}", "ssh": f"aurora@192.168.200.{n}", "jump": "spark-1"} for n in range(2, count + 2)]
    return [*way, {"name": "far", "ssh": "aurora@10.9.0.1", "jump": "spark-2"}]


def test_nodes_behind_a_jump_host_share_the_connection_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    stands: list[str] = []

    def open_(self: Connection, **_: Any) -> None:
        time.sleep(0.1)  # who does not wait comes before
        stands.append(self.node)

    def answer(self: Connection, *_argv: str, **_options: Any) -> subprocess.CompletedProcess[str]:
        assert [hop.node for hop in self.hops[:-1] if hop.node not in stands] == []
        return subprocess.CompletedProcess([], 0, json.dumps(spark(1)))

    monkeypatch.setattr(Connection, "open", open_)
    monkeypatch.setattr(Connection, "run", answer)
    facts, faults = survey_all(cluster(nodes=behind(20)))
    assert (len(facts), faults) == (22, [])
    assert stands == ["spark-1", "spark-2"], "once each, and none where nothing leads through"


def test_dead_jump_host_is_dialled_once_and_all_behind_it_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []

    def run(self: Connection, *_argv: str, **_options: Any) -> None:
        dialled.append(self.node)
        raise self.unreachable("ssh: connect to host 10.1.230.180 port 22: Connection timed out")

    monkeypatch.setattr(Connection, "run", run)
    facts, faults = survey_all(cluster(nodes=behind(2), ssh_config="/dev/null"))
    assert (facts, dialled) == ({}, ["spark-1"])
    assert [(fault.node, fault.cause) for fault in faults] == [
        ("spark-1", "10.1.230.180 does not answer"),
        ("spark-2", "not reached through spark-1"),
        ("spark-3", "not reached through spark-1"),
        ("far", "not reached through spark-2"),
    ]
