"""Image copy from head to worker against `docker save | ssh docker load` over the same link, in one run.

The plain way runs on the head with the operator's agent forwarded, as people do it by hand.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.samples import Samples, console
from hosts.fabric import choose
from hosts.images import build_context
from hosts.images.identity import CONTEXT_LABEL, inspect
from hosts.images.stock import stock
from hosts.ssh import Connection
from hosts.survey import survey_all
from providers.image_copy import Source, copy
from providers.node_image import NodeImageProvider
from settings import Cluster

IMAGE = "test-bench-images:1"
LAYER = 64_000_000
"""Bytes of the layer that changes."""
KEY = Path(".build/lab/keys/operator")
PLAIN = "docker save {image} | ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null {worker} docker load -q"
"""Host keys are not checked: the lab's worker is a cable away and made a minute ago."""


@contextmanager
def agent(folder: Path) -> Iterator[Path]:
    """An ssh agent with the lab's key; its socket."""
    socket = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            process.poll()
        environment = os.environ | {"SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", KEY], env=environment, check=True)
        yield socket
    finally:
        process.terminate()
        process.wait()


def measure(samples: Samples, cluster: Cluster, runs: int) -> None:
    """Take seconds and megabytes of each way; the lab's image must be on both nodes."""
    facts, faults = survey_all(cluster)
    if faults:
        raise faults[0]
    ends = choose(cluster, facts)
    head, worker = (Connection.of(cluster, node) for node in cluster.nodes[:2])
    end = ends[cluster.head.name]
    source = Source(head, end.address)
    counter = f"/sys/class/net/{end.interface}/statistics/tx_bytes"

    @contextmanager
    def reading(name: str) -> Iterator[None]:
        before = int(head.run("cat", counter, check=True).stdout)
        with samples.timed(f"{name}, s"):
            yield
        sent = int(head.run("cat", counter, check=True).stdout) - before
        samples.take(f"{name}, MB on the wire", sent / 1e6)

    def node_image(connection: Connection, identity: str | None, **more: Any) -> dict[str, Any]:
        props = {"connection": connection.dump(), "image": IMAGE, "identity": identity, **more}
        return NodeImageProvider().create(props).outs or {}

    try:
        for run in range(runs):
            console.print(f"image {run + 1} of {runs}")
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "Dockerfile").write_text(f"FROM {cluster.image}\nCOPY content /content\n")
                (folder / "content").write_bytes(os.urandom(LAYER))
                build = {"context": name, "dockerfile": "Dockerfile"}
                build["digest"] = build_context.digest(folder, "Dockerfile")
                identity = node_image(head, None, build=build)["identity"]
                with reading("top layer changed"):
                    node_image(worker, identity, source=source.dump())
                with reading("unchanged"):
                    node_image(worker, identity, source=source.dump())
                image = inspect(head, IMAGE)
                assert image  # noqa: S101 - built above
                _forget(worker)
                with reading("whole"):
                    copy(source, worker, IMAGE, image, stock(worker), whole=True)
                _forget(worker)
                with agent(folder) as socket, reading("save | ssh load"):
                    _plainly(cluster, end=ends[cluster.nodes[1].name].address, socket=socket)
            for what in ("top layer changed", "whole"):
                for unit in ("s", "MB on the wire"):
                    samples.ratio(f"{what} / save | ssh load, {unit}", f"{what}, {unit}", f"save | ssh load, {unit}")
            samples.take(
                "ratio bytes / changed layer", samples.values["top layer changed, MB on the wire"][-1] * 1e6 / LAYER
            )
    finally:
        for connection in (head, worker):
            _forget(connection)


def _forget(connection: Connection) -> None:
    connection.run("sh", "-c", f"docker image rm {IMAGE}; docker image prune -f --filter label={CONTEXT_LABEL}")


def _plainly(cluster: Cluster, *, end: str, socket: Path) -> None:
    """The plain way, on a connection of its own: a multiplexed one forwards no agent of ours."""
    head, worker = cluster.nodes[:2]
    login = f"{worker.user}@{end}" if worker.user else end
    options = ["-F", cluster.ssh_config] if cluster.ssh_config else []
    command = PLAIN.format(image=IMAGE, worker=login)
    own = ["-o", "BatchMode=yes", "-o", f"IdentityAgent={socket}", "-o", f"ForwardAgent={socket}"]
    done = subprocess.run(["ssh", *options, *own, head.ssh, command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
