"""Copy of a model from head to worker against one `rsync -a` over ssh on the same link, in one run.

The plain way runs on the head with the operator's agent forwarded, as people do it by hand. Every run begins with the
same files in the head's page cache and none on the worker.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from bench.images import agent
from bench.samples import Samples, console
from hosts.fabric import choose
from hosts.ssh import Connection
from hosts.survey import survey_all
from providers.image_copy import Source
from providers.weights_copy import Order, copy
from settings import Cluster

FILES = 6
SIZE = 200_000_000
"""Bytes of each."""
ROOT = "/home/aurora/bench-weights"
MAKE = f"""
mkdir -p {ROOT} && cd {ROOT}
for n in $(seq {FILES}); do [ -e $n.safetensors ] || head -c {SIZE} /dev/urandom > $n.safetensors; done
sync; cat *.safetensors > /dev/null
"""
FORGET = f"rm -rf {ROOT}; sync"
CPU = "head -n 1 /proc/stat"
RSYNC = (
    "rsync -a -e 'ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR' "
    f"{ROOT}/ {{worker}}:{ROOT}/"
)
"""Host keys are not checked: the lab's worker is a cable away and made a minute ago."""


def busy(connection: Connection) -> tuple[int, int]:
    """Busy and total time of all cores since boot; lab nodes share those of the machine."""
    spent = [int(part) for part in connection.run("sh", "-c", CPU, check=True).stdout.split()[1:9]]
    return sum(spent) - spent[3] - spent[4], sum(spent)


def measure(samples: Samples, cluster: Cluster, runs: int) -> None:
    """Take the rate of each way, and how busy the cores were."""
    facts, faults = survey_all(cluster)
    if faults:
        raise faults[0]
    ends = choose(cluster, facts)
    head, worker = (Connection.of(cluster, node) for node in cluster.nodes[:2])
    source = Source(head, ends[cluster.head.name].address)
    files = {f"{number}.safetensors": SIZE for number in range(1, FILES + 1)}

    def one_stream() -> None:
        copy(source, worker, Order(ROOT, ROOT, files, 1))

    def streams() -> None:
        copy(source, worker, Order(ROOT, ROOT, files, cluster.weights.streams))

    def rsync() -> None:
        with tempfile.TemporaryDirectory() as name, agent(Path(name)) as socket:
            _plainly(cluster, end=ends[cluster.nodes[1].name].address, socket=socket)

    try:
        for run in range(runs):
            console.print(f"model {run + 1} of {runs}")
            for what, work in (
                ("rsync -a", rsync),
                (f"{cluster.weights.streams} streams", streams),
                ("1 stream", one_stream),
            ):
                worker.run("sh", "-c", FORGET, check=True)
                head.run("sh", "-c", MAKE, timeout=300, check=True)
                before = busy(head)
                with samples.timed(f"{what}, s"):
                    work()
                spent, total = (after - then for after, then in zip(busy(head), before, strict=True))
                samples.take(f"{what}, MB/s", FILES * SIZE / 1e6 / samples.values[f"{what}, s"][-1])
                samples.take(f"{what}, share of the cores' time", spent / total)
            with samples.timed("unchanged, s"):
                streams()
            samples.ratio("rate / rsync -a", f"{cluster.weights.streams} streams, MB/s", "rsync -a, MB/s")
            samples.ratio("rate of one stream / rsync -a", "1 stream, MB/s", "rsync -a, MB/s")
    finally:
        for connection in (head, worker):
            connection.run("sh", "-c", FORGET)


def _plainly(cluster: Cluster, *, end: str, socket: Path) -> None:
    """The plain way, on a connection of its own: a multiplexed one forwards no agent of ours."""
    head, worker = cluster.nodes[:2]
    command = RSYNC.format(worker=shlex.quote(f"{worker.user}@{end}" if worker.user else end))
    options = ["-F", cluster.ssh_config] if cluster.ssh_config else []
    own = ["-o", "BatchMode=yes", "-o", f"IdentityAgent={socket}", "-o", f"ForwardAgent={socket}"]
    done = subprocess.run(["ssh", *options, *own, head.ssh, command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
