"""The model between the two nodes: copied over the fabric, resumed, mended."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hosts.faults import Fault
from hosts.survey import survey
from hosts.weights.look import PARTIAL
from hosts.weights.plan import check, plan
from providers import weights_copy
from providers.model_weights import ModelWeightsProvider
from providers.plugin import CANCELLED
from providers.weights_copy import RECEIVER, ByteMeter
from tests.lab.conftest import on
from tests.lab.weights import (
    COUNTER,
    HEAD,
    HOME,
    MODEL,
    SECOND,
    SHARDS,
    SIZE,
    WORKER,
    brought,
    cluster,
    listed,
    made,
    props,
    remove,
)
from tests.samples import models

IMAGE = "dgx-spark-lab/vllm:1"


@pytest.fixture(autouse=True)
def clean(image: str) -> Iterator[None]:  # noqa: ARG001 - a container of it is run
    """Nothing of the test on any node, before and after."""
    remove()
    yield
    remove()


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
    ended(WORKER, "[h]osts.weights.receiver")
    ended(HEAD, "[h]osts.weights.sender")
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
