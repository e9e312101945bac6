"""How long the facts of 2 and of 8 nodes take: `python -m bench facts`.

The lab has two nodes: the 8 are these two, four times each under other names. Every name has a connection of its own,
multiplexed as in reality, and the workers' go through their head. All of them, and this machine, share its processors,
which 8 Sparks would not: what is read here for 8 is an upper bound.

So the same is read once more as if the nodes had processors of their own: each waits as long as the survey takes on a
node that nothing else disturbs, then gives the answer that one gave. This machine's part is as it is, and both ends of
ssh and the start of Python on the nodes are still shared.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.samples import Samples, console
from hosts import survey
from hosts.ssh import Connection
from hosts.survey import survey_all
from settings import Cluster, parse

COPIES = 4
STATES = ("cold", "warm", "apart")


def measure(samples: Samples, cluster: Cluster, runs: int) -> None:
    """Take seconds of a survey of all nodes, with new connections and with those of the run before."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "ssh_config"
        config.write_text(_aliases(cluster))
        for run in range(runs):
            console.print(f"facts {run + 1} of {runs}")
            for count in (2, 2 * COPIES):
                several = _several(cluster, config, count)
                hang_up(several)
                for state in ("cold", "warm"):
                    _survey(samples, several, state)
                with _apart(several):
                    _survey(samples, several, "apart")
                hang_up(several)
            for state in STATES:
                ours, theirs = (f"facts of {count} nodes, {state}, s" for count in (2 * COPIES, 2))
                samples.ratio(f"{2 * COPIES} / 2 nodes, {state}", ours, theirs)


def _survey(samples: Samples, cluster: Cluster, state: str) -> None:
    """Take the seconds of one survey, and the processor seconds of it that are this machine's own side."""
    name, before = f"facts of {len(cluster.nodes)} nodes, {state}", _own_seconds()
    with samples.timed(f"{name}, s"):
        _, faults = survey_all(cluster)
    if faults:
        raise faults[0]
    samples.take(f"{name}, this side's CPU, s", _own_seconds() - before)


def _own_seconds() -> float:
    """Processor seconds of this process and of the ssh clients that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextmanager
def _apart(cluster: Cluster) -> Iterator[None]:
    """Nodes that only wait, as long as the last of them works when it is asked alone, and give its answer."""
    answers: list[str] = []
    run = Connection.run

    def recorded(connection: Connection, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        done = run(connection, *argv, **options)
        answers.append(done.stdout)
        return done

    with patch.object(Connection, "run", recorded):
        clock = survey.survey(cluster, cluster.nodes[-1]).clock
    assert clock  # noqa: S101 - the script always tells it
    wait = f"import time\ntime.sleep({clock.ended - clock.started})\nprint({answers[0]!r})\n"
    with patch.object(survey, "script", lambda _question: wait):
        yield


def _aliases(cluster: Cluster) -> str:
    """An ssh configuration that knows each of the first two nodes under several names, over the cluster's own."""
    hosts = "".join(
        f"Host {node.name}-{copy}\n  HostName {node.host}\n" for copy in range(COPIES) for node in cluster.nodes[:2]
    )
    return f"{hosts}Match all\n  Include {Path(cluster.ssh_config or '').resolve()}\n"


def _several(cluster: Cluster, config: Path, count: int) -> Cluster:
    """A cluster of so many nodes, alternately a head and the worker behind it."""
    head, worker = cluster.nodes[:2]
    nodes = []
    for copy in range(count // 2):
        nodes.append({"name": f"head-{copy}", "ssh": f"{head.user}@{head.name}-{copy}"})
        nodes.append({"name": f"worker-{copy}", "ssh": f"{worker.user}@{worker.name}-{copy}", "jump": f"head-{copy}"})
    given = cluster.model_dump(mode="json", exclude_unset=True)
    return parse({**given, "nodes": nodes, "ssh_config": str(config)})


def hang_up(cluster: Cluster) -> None:
    """End the connections of a run before, workers first: theirs are inside their head's."""
    for node in reversed(cluster.nodes):
        connection = Connection.of(cluster, node)
        end = ["ssh", *connection.options, "-O", "exit", connection.hops[-1].destination]
        subprocess.run(end, capture_output=True, check=False)
