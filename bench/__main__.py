"""`python -m bench`: no-op up, preview, destroy and up to the first completion, against the floor, in one run.

`python -m bench images` measures the copy of an image, `python -m bench weights` that of a model, `python -m bench
facts` the survey of the nodes, `python -m bench scale` how `up` grows with their number.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import yaml

from bench import facts, images, scale, weights
from bench.engine import ROOT, STACK, pulumi
from bench.samples import Samples, console
from hosts.ssh import Connection
from settings import Cluster, parse

FLOOR = ROOT / "bench/floor.sh"
MIB = 1024.0

PSS = """
for pid in $(docker top "$1" -eo pid | tail -n +2); do sudo cat /proc/$pid/smaps_rollup 2>/dev/null; done |
awk '/^Pss:/ {sum += $2} END {print sum}'
"""
"""Memory of a container's processes in KiB, shared pages divided among those who share them."""

app = typer.Typer(add_completion=False)


def floor(action: str) -> None:
    """Run the plain script."""
    subprocess.run([FLOOR, action], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def cluster() -> Cluster:
    """The stack's settings."""
    command = ["pulumi", "config", "get", "cluster", "--stack", STACK]
    return parse(json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout))


@contextmanager
def peak_memory(samples: Samples) -> Iterator[None]:
    """Take the most memory in use on this machine above what was in use before, in GiB."""

    def used() -> float:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        return (total - available) / MIB / MIB

    stop, most = threading.Event(), [used()]

    def sample() -> None:
        while not stop.wait(0.25):
            most.append(used())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        samples.take("peak memory of the machine, GiB", max(most))


def head_readings(samples: Samples, head: Connection) -> None:
    """At the GPU gate: how long after the head container's start it opened, and what Ray's head weighs then."""
    opened = time.time()
    role = "label=dgx-spark-cluster.role=ray-head"
    found = head.run("docker", "ps", "-q", "--filter", role, check=True).stdout.strip()
    started = head.run("docker", "inspect", "--format", "{{.State.StartedAt}}", found, check=True).stdout.strip()
    began = datetime.fromisoformat(started[:26] + "+00:00").timestamp()
    samples.take("GPUs verified after the head container's start, s", opened - began)
    memory = head.run("sh", "-c", PSS, "sh", found, check=True).stdout
    samples.take("Ray head, MiB (PSS)", float(memory) / MIB)


@app.command("images")
def image_copy(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each way.")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="Write all readings there.")] = None,
) -> None:
    """Measure the copy of an image between the lab's nodes, which have the lab's image."""
    _measure(images.measure, runs, output)


@app.command("facts")
def facts_of_nodes(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each number of nodes.")] = 5,
    output: Annotated[Path | None, typer.Option("--json", help="Write all readings there.")] = None,
) -> None:
    """Measure the survey of 2 and of 8 nodes, with new and with open connections."""
    _measure(facts.measure, runs, output)


@app.command("scale")
def number_of_nodes(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each number of nodes.")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="Write all readings there.")] = None,
) -> None:
    """Measure `up` to the GPU gate of 1, 2, 4 and 8 nodes, of which the lab must have 8: python -m lab up --nodes 8."""
    _measure(scale.measure, runs, output)


@app.command("weights")
def weights_copy(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each way.")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="Write all readings there.")] = None,
) -> None:
    """Measure the copy of a model between the lab's nodes."""
    _measure(weights.measure, runs, output)


def _measure(measure: Callable[[Samples, Cluster, int], None], runs: int, output: Path | None) -> None:
    """Run one measurement with the lab's settings and show it."""
    samples = Samples()
    settings = yaml.safe_load((ROOT / f"Pulumi.{STACK}.yaml").read_text())["config"]["dgx-spark-cluster:cluster"]
    measure(samples, parse(settings), runs)
    console.print(samples.table())
    if output:
        output.write_text(json.dumps(samples.values, indent=2))


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of what is cheap: no-op up and preview.")] = 5,
    starts: Annotated[int, typer.Option(min=1, help="Runs of up and destroy, and of the floor.")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="Write all readings there.")] = None,
) -> None:
    """Measure on the lab; ends with the stack destroyed."""
    if context.invoked_subcommand:
        return
    os.environ["PULUMI_SKIP_UPDATE_CHECK"] = "true"
    samples = Samples()
    console.print("warming up: images, compile caches")
    pulumi("up", "--yes", "--skip-preview")
    pulumi("destroy", "--yes", "--skip-preview")
    settings = cluster()
    head = Connection.of(settings, settings.head)
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in range(starts):
        console.print(f"start {run + 1} of {starts}")
        with samples.timed("floor: start to first completion, s"):
            floor("up")
        with samples.timed("floor: stop, s"):
            floor("down")
        first = partial(samples.since, "up to first completion, s", time.monotonic())
        told: dict[str, Callable[[], None]] = {
            "2 of 2 GPUs on 2 of 2 nodes verified": partial(head_readings, samples, head),
            "first completion; measuring": first,
        }
        with peak_memory(samples), samples.timed("up to its end, s"):
            pulumi("up", "--yes", "--skip-preview", told=told)
        if run == starts - 1:
            for _ in range(repeats):
                with samples.timed("no-op up, s"):
                    pulumi("up", "--yes", "--skip-preview", "--expect-no-changes")
                with samples.timed("clean preview, s"):
                    pulumi("preview", "--expect-no-changes")
        with samples.timed("destroy, s"):
            pulumi("destroy", "--yes", "--skip-preview")
        for name, ours, theirs in (
            ("up / floor", "up to first completion, s", "floor: start to first completion, s"),
            ("destroy / floor's stop", "destroy, s", "floor: stop, s"),
        ):
            ratios[name].append(samples.values[ours][-1] / samples.values[theirs][-1])
    for name, values in ratios.items():
        samples.values[f"ratio {name}"] = values
    console.print(samples.table())
    if output:
        output.write_text(json.dumps(samples.values, indent=2))


app()
