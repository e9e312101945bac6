"""The model between the two nodes: copied over the fabric, resumed, mended; and downloaded once from a hub."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.bundle import bundle
from hosts.fabric import choose
from hosts.faults import Fault
from hosts.model_look import LEDGER, PARTIAL
from hosts.survey import Survey, survey
from hosts.weights_plan import check, plan
from providers import hub, weights_copy
from providers.hub import Download
from providers.image_copy import Source
from providers.model_weights import ModelWeightsProvider
from providers.plugin import CANCELLED
from providers.weights_copy import RECEIVER, ByteMeter
from settings import Cluster, parse
from tests.lab.conftest import connect, lab_settings, on
from tests.samples import hub as hub_server
from tests.samples import models

HEAD, WORKER = "spark-1", "spark-2"
HOME = "/home/aurora/test-weights"
MODEL = f"{HOME}/made-up"
SHARDS, SIZE = 5, 10_000_000
SECOND = "model-00002-of-00005.safetensors"
COUNTER = "cat /sys/class/net/enp1s0f1np1/statistics/tx_bytes"
IMAGE = "dgx-spark-lab/vllm:1"
TOKEN = "hf_of-the-test"


@pytest.fixture(autouse=True)
def clean(lab: None) -> Iterator[None]:  # noqa: ARG001 - the nodes are up
    """Nothing of the test on any node, before and after."""

    def remove() -> None:
        for node in (HEAD, WORKER):
            on(node, "rm", "-rf", HOME)

    remove()
    yield
    remove()


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
        "head": connect(HEAD).dump(),
        "stack": "lab",
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


def ended(node: str, program: str) -> None:
    """Wait until a closed session has ended its program on the node: sshd takes a moment."""
    deadline = time.monotonic() + 20
    while on(node, "sh", "-c", f"pgrep -u aurora -f '{program}' | wc -l").strip() != "0":
        assert time.monotonic() < deadline, f"{program} still runs on {node}"
        time.sleep(0.2)


def test_model_is_copied_with_owner_and_times_and_then_costs_nothing() -> None:
    made()
    outs, wire = brought(cluster())
    assert SHARDS * SIZE < wire < 1.05 * SHARDS * SIZE
    assert listed(WORKER) == listed(HEAD)
    assert "aurora 644" in listed(WORKER)[0] + listed(WORKER)[1]
    again = props(cluster(), WORKER)
    assert (again["lacks"], again["links"]) == ({}, {})
    assert not ModelWeightsProvider().diff("x", outs, again).changes


@pytest.mark.parametrize("damage", ["rm {0}", "truncate -s 4096 {0}"])
def test_missing_or_short_file_is_drift_and_just_it_is_copied(damage: str) -> None:
    """C15."""
    made()
    outs, _ = brought(cluster())
    on(WORKER, "sh", "-c", damage.format(f"{MODEL}/{SECOND}"))
    drift = props(cluster(), WORKER)
    assert list(drift["lacks"]) == [SECOND]
    assert drift["lacks"][SECOND]["found"] == (4096 if "truncate" in damage else None)
    assert ModelWeightsProvider().diff("x", outs, drift).changes
    before = int(on(HEAD, "sh", "-c", COUNTER))
    mended = ModelWeightsProvider().update("x", outs, drift).outs
    assert SIZE < int(on(HEAD, "sh", "-c", COUNTER)) - before < 1.1 * SIZE
    assert mended
    assert mended["digest"] == outs["digest"], "serve is left alone"
    assert listed(WORKER) == listed(HEAD)


def test_file_that_no_node_has_is_named_before_anything_starts() -> None:
    """C15."""
    made()
    on(HEAD, "truncate", "-s", "4096", f"{MODEL}/{SECOND}")
    wanted = cluster()
    facts = {one.name: survey(wanted, one) for one in wanted.nodes}
    (fault,) = check(wanted, facts, plan(wanted, facts))
    assert fault.node == HEAD
    assert SECOND in fault.cause
    assert "bytes wanted, 4096 found" in fault.cause


def test_copy_that_was_killed_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    slow = RECEIVER.replace("self.got[number] += count", "self.got[number] += count; time.sleep(0.1)")
    monkeypatch.setattr(weights_copy, "RECEIVER", slow)
    update = ByteMeter.update

    def press(meter: ByteMeter, sent: int) -> None:
        update(meter, sent)
        if sent > SIZE / 4:
            CANCELLED.set()

    monkeypatch.setattr(ByteMeter, "update", press)
    try:
        with pytest.raises(Fault, match="interrupted while the model was on its way"):
            brought(cluster())
    finally:
        CANCELLED.clear()
    monkeypatch.undo()
    ended(WORKER, "[w]eights_receiver")
    ended(HEAD, "[w]eights_sender")
    left = on(WORKER, "find", MODEL, "-name", f"*{PARTIAL}", "-printf", "%s\n").split()
    kept = sum(map(int, left))
    assert kept > SIZE / 4
    _, wire = brought(cluster())
    assert SHARDS * SIZE - kept < wire < SHARDS * SIZE - kept + 0.1 * SIZE + 1_000_000
    assert listed(WORKER) == listed(HEAD)


def test_links_of_a_hub_cache_entry_are_valid_in_a_container() -> None:
    """C16."""
    made("hub_entry")
    wanted = cluster(f"{HOME}/models--org--made-up")
    outs, wire = brought(wanted)
    assert wire < 1.05 * SHARDS * SIZE, "each blob once"
    root, snapshot = wanted.model_root, f"{wanted.model_root}/{outs['below']}"
    assert listed(WORKER, root) == listed(HEAD, root)
    inside = f"cd {snapshot} && wc -c {SECOND} && find . -xtype l"
    run = ["docker", "run", "--rm", "--label", "dgx-spark-cluster.stack=test-weights", "--network=none"]
    told = on(WORKER, *run, f"--volume={root}:{root}:ro", "--entrypoint=sh", IMAGE, "-c", inside)
    assert int(told.split()[0]) > SIZE
    assert told.strip().endswith(SECOND), "no link dangles"


def test_link_that_the_head_lacks_is_set_and_is_no_drift_afterwards() -> None:
    """The head is whole without it, and the one that the others copy from."""
    made("hub_entry")
    wanted = cluster(f"{HOME}/models--org--made-up")
    outs, _ = brought(wanted)
    root, link = wanted.model_root, f"{outs['below']}/tokenizer.json"
    on(HEAD, "rm", f"{root}/{link}")
    drift = props(wanted, HEAD)
    assert (drift["lacks"], list(drift["links"])) == ({}, [link])
    assert ModelWeightsProvider().create(drift).outs
    assert listed(HEAD, root) == listed(WORKER, root)
    assert [props(wanted, node)[key] for node in (HEAD, WORKER) for key in ("lacks", "links", "refs")] == [{}] * 6


def test_other_revision_in_the_workers_cache_becomes_the_heads() -> None:
    made("hub_entry")
    made("hub_entry", WORKER, seed=1, commit="5" * 40)
    wanted = cluster(f"{HOME}/models--org--made-up")
    outs, wire = brought(wanted)
    assert outs["below"] == f"snapshots/{models.COMMIT}"
    assert wire > SHARDS * SIZE
    again = props(wanted, WORKER)
    assert (again["lacks"], again["links"], again["refs"]) == ({}, {}, {})
    assert not ModelWeightsProvider().diff("x", outs, again).changes
    assert on(WORKER, "cat", f"{wanted.model_root}/refs/main") == on(HEAD, "cat", f"{wanted.model_root}/refs/main")
    assert brought(wanted)[1] < SIZE, "nothing is sent again"


@pytest.fixture
def server() -> Iterator[str]:
    """A hub on the head's loopback that wants the token; its address."""
    serve = f"""
import json, threading
hub = module.Hub(sys.modules["tests.samples.models"].contents({SHARDS}, 200_000), {TOKEN!r})
threading.Thread(target=hub.serve_forever, daemon=True).start()
print(hub.server_address[1], flush=True)
sys.stdin.read()
"""
    process = connect(HEAD).start("python3", "-u", "-c", bundle(models, hub_server) + serve)
    assert process.stdin
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(10)


def download(address: str, **changes: str) -> Download:
    image = on(HEAD, "docker", "image", "inspect", "--format", "{{.Id}}", IMAGE).strip()
    given = {"name": hub_server.NAME, "revision": "main", "endpoint": address, "image": image, "stack": "test-weights"}
    return Download(**(given | changes), mounts={"/opt/venv": "/opt/venv"})  # type: ignore[arg-type]


def test_model_is_downloaded_once_and_copied_to_the_other_node(server: str) -> None:
    cache = f"{HOME}/hub"
    wanted = cluster(hub_server.NAME, download_to=cache, endpoint=server)
    given = props(wanted, HEAD) | {"download": download(server).__dict__, "token": TOKEN}
    outs = ModelWeightsProvider().create(given).outs
    assert outs
    assert TOKEN not in json.dumps(outs)
    assert outs["below"] == f"snapshots/{hub_server.COMMIT}"
    copied, _ = brought(wanted)
    assert (copied["digest"], copied["below"]) == (outs["digest"], outs["below"])
    root = wanted.model_root
    assert root == f"{cache}/models--org--made-up"
    on(WORKER, "test", "-f", f"{root}/{outs['below']}/{SECOND}")
    assert {line.split()[1] for line in listed(HEAD, root) if " aurora " in line} == {"aurora"}
    assert on(HEAD, "docker", "ps", "-aq", "--filter", "label=dgx-spark-cluster.stack=test-weights") == ""
    for node in (HEAD, WORKER):
        ModelWeightsProvider().delete("x", {**props(wanted, node), "keep": False})
        on(node, "test", "!", "-e", root)


@pytest.mark.parametrize(
    ("changes", "token", "cause"),
    [
        ({}, None, "the hub does not give model org/made-up at revision main"),
        ({"name": "org/other"}, TOKEN, "the hub does not give model org/other"),
        ({"revision": "v9"}, TOKEN, "the hub has no model org/made-up at revision v9"),
        ({"endpoint": "http://127.0.0.1:1"}, TOKEN, "model org/made-up at revision main could not be downloaded"),
    ],
)
def test_hub_that_gives_nothing_is_a_fault_with_a_next_step(
    server: str, changes: dict[str, str], token: str | None, cause: str
) -> None:
    with pytest.raises(Fault, match=cause) as caught:
        hub.download(connect(HEAD), f"{HOME}/hub", download(server, **changes), token)
    assert TOKEN not in str(caught.value)
    if token is None:
        assert "pulumi config set --secret hubToken" in caught.value.remedy
