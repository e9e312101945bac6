"""A made-up model on the lab's nodes, and what the program would bring of it."""

from __future__ import annotations

from typing import Any

from hosts.bundle import bundle
from hosts.fabric import choose
from hosts.survey import Survey, survey
from hosts.weights.look import LEDGER
from hosts.weights.plan import check, plan
from providers.image_copy import Source
from providers.model_weights import ModelWeightsProvider
from settings import Cluster, parse
from tests.lab.conftest import connect, lab_settings, on
from tests.samples import models

HEAD, WORKER = "spark-1", "spark-2"
HOME = "/home/aurora/test-weights"
MODEL = f"{HOME}/made-up"
SHARDS, SIZE = 5, 10_000_000
SECOND = "model-00002-of-00005.safetensors"
COUNTER = "cat /sys/class/net/enp1s0f1np1/statistics/tx_bytes"


def remove() -> None:
    """Take it from all nodes."""
    for node in (HEAD, WORKER):
        on(node, "rm", "-rf", HOME)


def cluster(model: str = MODEL, **weights: Any) -> Cluster:
    return parse(lab_settings() | {"model": model, "weights": weights})


def made(kind: str = "directory", node: str = HEAD, seed: int = 0, commit: str = models.COMMIT) -> None:
    """The model on a node, as a plain directory or in a hub's cache."""
    files = f"module.contents({SHARDS}, {SIZE}, {seed})"
    made_up = (
        f"module.Path({HOME!r}), {files}, {commit!r}" if kind == "hub_entry" else f"module.Path({MODEL!r}), {files}"
    )
    script = f"{bundle(models)}\nmodule.{kind}({made_up})\n"
    connect(node).run("python3", "-", stdin=script, check=True)


def props(wanted: Cluster, node: str) -> dict[str, Any]:
    """What the program passes for a node after its survey."""
    facts: dict[str, Survey] = {one.name: survey(wanted, one) for one in wanted.nodes}
    found, ends = plan(wanted, facts), choose(wanted, facts)
    assert list(check(wanted, facts, found)) == []
    share = found.shares[node]
    return {
        "connection": connect(node).dump(),
        "root": wanted.model_root,
        "below": found.below,
        "digest": found.digest,
        "lacks": {file: one.dump() for file, one in share.files.items()},
        "links": dict(share.links),
        "refs": dict(share.refs),
        "sources": {
            name: {**Source(connect(name), end.address).dump(), "root": wanted.model_root} for name, end in ends.items()
        },
        "compared": {},
        "download": None,
        "token": None,
        "streams": wanted.weights.streams,
        "verify": wanted.weights.verify,
        "keep": wanted.weights.keep,
    }


def brought(wanted: Cluster) -> tuple[dict[str, Any], int]:
    """The outputs of ModelWeights on the worker, and the bytes that left the head over the fabric meanwhile."""
    given = props(wanted, WORKER)
    before = int(on(HEAD, "sh", "-c", COUNTER))
    outs = ModelWeightsProvider().create(given).outs
    assert outs
    return outs, int(on(HEAD, "sh", "-c", COUNTER)) - before


def listed(node: str, root: str = MODEL) -> list[str]:
    """Checksum, owner and time of each file, and the links, of a directory; a ref is written: its time is its own."""
    files = f"find . -type f ! -name {LEDGER}"
    each = f"{files} -exec sha256sum {{}} +; {files} ! -path './refs/*' -exec stat -c '%n %U %a %Y' {{}} +"
    return sorted(on(node, "sh", "-c", f"cd {root} && {each}; find . -type l -printf '%p -> %l\\n'").splitlines())
