"""How `up` grows with the number of nodes: `python -m bench scale`, on 1, 2, 4 and 8 nodes of the lab.

The nodes run Ray alone with small limits. All of them, and the program, share this machine's processors, which real
Sparks would not: beside the seconds stand the processor seconds that nodes and program spent until then. Their sum
divided by the number of processors is the least that the seconds can be here.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import yaml

from bench.engine import ROOT, STACK, pulumi
from bench.facts import hang_up
from bench.samples import Samples, console
from hosts.ssh import Connection
from settings import Cluster, parse

COUNTS = (1, 2, 4, 8)
BASE = 2
"""Number of nodes that the others are compared with."""
FABRIC = "192.168.200.{}"
DEFAULTS = "maxsessions 10\nmaxstartups 10:30:100"
"""What sshd says of its limits where nothing is set; with others the connections would prove nothing."""
LIMITS = "sudo sshd -T | grep -E '^max(sessions|startups) ' | sort"

NODE = """
cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || awk '/^usage_usec/ {print $2 "000"}' /sys/fs/cgroup/cpu.stat
"""
"""Nanoseconds of processors of a node of the lab, which is a control group, of version 1 or 2."""
RAY = """
for id in $(docker ps -q --filter label=dgx-spark-cluster.stack); do
  for pid in $(docker top "$id" -eo pid | tail -n +2); do sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null; done
done | awk -v tick="$(getconf CLK_TCK)" '{sum += $12 + $13 + $14 + $15} END {print sum / tick}'
"""
"""Processor seconds of the containers' processes and of their children that have ended: utime to cstime of proc(5)."""
SSHD = """
sudo journalctl --unit ssh --since "@$1" --output cat | awk '
  /^Accepted / {opened++} /MaxStartups|drop connection|no more sessions/ {refused++}
  END {print opened + 0, refused + 0}'
"""
"""Connections since a time, and how often a limit was met."""


def measure(samples: Samples, cluster: Cluster, runs: int) -> None:
    """Take seconds from the start of `up`, images present, to the GPU gate, and the ssh connections that it opened."""
    largest = _ray_alone(cluster, max(COUNTS))
    for node, limits in zip(largest.nodes, _on_each(largest, LIMITS), strict=True):
        if limits != DEFAULTS:
            raise SystemExit(f"{node.name}: sshd's limits are not its defaults: {limits}")
    console.print(f"warming up: the image on {max(COUNTS)} nodes")
    _up_and_down(largest, {})
    for run in range(runs):
        console.print(f"scale {run + 1} of {runs}")
        for count in COUNTS:
            _measure(samples, _ray_alone(cluster, count))
        for count in COUNTS:
            if count != BASE:
                samples.ratio(f"{count} / {BASE} nodes", _seconds(count), _seconds(BASE))


def _measure(samples: Samples, cluster: Cluster) -> None:
    """One `up` over new connections, and its end."""
    count = len(cluster.nodes)
    before = sum(map(int, _on_each(cluster, NODE)))
    hang_up(cluster)
    since, began = f"{time.time():.0f}", time.monotonic()

    def opened() -> None:
        samples.since(_seconds(count), began)
        program = _processor_seconds_below()
        whole = (sum(map(int, _on_each(cluster, NODE))) - before) / 1e9
        rays = sum(map(float, _on_each(cluster, RAY)))
        samples.take(f"{count} nodes: processor seconds of the program, for each", program / count)
        samples.take(f"{count} nodes: processor seconds of a node", whole / count)
        samples.take(f"{count} nodes: of these in Ray's container", rays / count)
        heads, *workers = ([int(word) for word in said.split()] for said in _on_each(cluster, SSHD, since))
        samples.take(f"{count} nodes: ssh connections to the head", heads[0])
        if workers:
            samples.take(f"{count} nodes: ssh connections to a worker, the most", max(one[0] for one in workers))
        samples.take(f"{count} nodes: refused by sshd", heads[1] + sum(one[1] for one in workers))

    _up_and_down(cluster, {f"{count} of {count} GPUs on {count} of {count} nodes verified": opened})


def _seconds(count: int) -> str:
    return f"{count} nodes: up to the GPU gate, s"


def _ray_alone(cluster: Cluster, count: int) -> Cluster:
    """The lab's cluster with so many nodes, without serve, with what Ray needs at least."""
    head = {"name": "spark-1", "ssh": cluster.head.ssh}
    workers = [
        {"name": f"spark-{number}", "ssh": f"{cluster.head.user}@{FABRIC.format(11 + number)}", "jump": head["name"]}
        for number in range(2, count + 1)
    ]
    given = cluster.model_dump(mode="json", exclude_unset=True)
    del given["model"]
    small = {"serve": False, "shm_size_mib": 256, "deadlines": {"gpus": 240}}
    ray = {**given["ray"], "object_store_bytes": 80_000_000}
    return parse({**given, **small, "ray": ray, "nodes": [head, *workers]})


def _up_and_down(cluster: Cluster, told: Mapping[str, Callable[[], None]]) -> None:
    """Converge a cluster on the nodes, and remove it."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name) / "Pulumi.scale.yaml"
        stack = yaml.safe_load((ROOT / f"Pulumi.{STACK}.yaml").read_text())
        stack["config"]["dgx-spark-cluster:cluster"] = cluster.model_dump(mode="json", exclude_unset=True)
        own.write_text(yaml.safe_dump(stack))
        options = ("--yes", "--skip-preview", "--config-file", str(own))
        pulumi("up", *options, told=told)
        pulumi("destroy", *options)


def _on_each(cluster: Cluster, script: str, *arguments: str) -> list[str]:
    """What a script says on each node, all asked at once."""

    def ask(connection: Connection) -> str:
        return connection.run("sh", "-c", script, "sh", *arguments, check=True).stdout.strip()

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(ask, (Connection.of(cluster, node) for node in cluster.nodes)))


def _processor_seconds_below() -> float:
    """What this process's children and theirs have spent, ended ones included, but not ssh's shared connections."""
    spent = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(child.cpu_times()[:4])
    return spent
