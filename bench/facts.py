"""How long the facts of 2 and of 8 nodes take: `python -m bench facts`.

The lab has two nodes: the 8 are these two, four times each under other names. Every name has a connection of its own,
multiplexed as in reality, and the workers' go through their head. All of them, and this machine, share its processors,
which 8 Sparks would not: what is read here for 8 is an upper bound.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.samples import Samples, console
from hosts.ssh import Connection
from hosts.survey import survey_all
from settings import Cluster, parse

COPIES = 4


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
                    with samples.timed(f"facts of {count} nodes, {state}, s"):
                        _, faults = survey_all(several)
                    if faults:
                        raise faults[0]
                hang_up(several)
            for state in ("cold", "warm"):
                ours, theirs = (f"facts of {count} nodes, {state}, s" for count in (2 * COPIES, 2))
                samples.ratio(f"{2 * COPIES} / 2 nodes, {state}", ours, theirs)


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
