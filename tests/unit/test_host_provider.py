"""Host and the containers behind it: what is removed from a node, in which order, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosts.containers import claim, remove_all
from hosts.faults import Fault
from hosts.operation import LEAVE_OUT
from hosts.ssh import Connection
from providers import host
from providers.host import HostProvider
from tests.samples import IMAGE_ID, inspected
from tests.unit.fake_docker import FakeDocker, says

LOCAL = Connection("spark-1", ())
OURS = "label=dgx-spark-cluster.stack=lab"
HERE = "label=dgx-spark-cluster.node=spark-1"
REFUSED = says(code=1, stderr="Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")


def props(**changes: Any) -> dict[str, Any]:
    """The inputs as Pulumi passes them: numbers are floats."""
    return {
        "connection": LOCAL.dump(),
        "stack": "lab",
        "facts": {"hostname": "spark-1"},
        "grace": 7.0,
        "timeout": 30.0,
        "discard": "",
    } | changes


@pytest.fixture
def full(docker: FakeDocker) -> FakeDocker:
    """A node with serve, Ray's head, an orphan of another role and a volume of the stack."""
    docker.answer("ps label=dgx-spark-cluster.role=serve", says("s1\n"))
    docker.answer("ps label=dgx-spark-cluster.role=ray-head", says("h1\nh2\n"))
    docker.answer(f"ps {HERE}", says("s1\nh1\nh2\nx1\n"))
    docker.answer(f"volume {HERE}", says("cache\nray\n"))
    return docker


def test_delete_stops_serve_first_and_the_head_last_then_removes_everything(full: FakeDocker) -> None:
    HostProvider().delete("lab/spark-1", props())
    changes = [call for call in full.calls if call[0] in ("stop", "rm") or call[:2] == ["volume", "rm"]]
    assert changes == [
        ["stop", "-t", "7", "s1"],
        ["stop", "-t", "7", "h1", "h2"],
        ["rm", "-f", "s1", "h1", "h2", "x1"],
        ["volume", "rm", "-f", "cache", "ray"],
    ]


def test_only_what_carries_the_labels_of_stack_and_node_is_asked_for(full: FakeDocker) -> None:
    HostProvider().delete("lab/spark-1", props())
    listing = [call for call in full.calls if call[0] == "ps" or call[:2] == ["volume", "ls"]]
    assert len(listing) == 5
    assert all(OURS in call and HERE in call for call in listing)


def test_takeover_removes_what_was_made_under_another_name_of_the_node_too(docker: FakeDocker) -> None:
    docker.answer(f"ps {OURS}", says("old\n"))
    remove_all(LOCAL, "lab", 7)
    assert docker.called("rm") == [["rm", "-f", "old"]]


def test_empty_node_is_left_alone(docker: FakeDocker) -> None:
    HostProvider().delete("lab/spark-1", props())
    assert {call[0] for call in docker.calls} == {"ps", "volume"}
    assert not [call for call in docker.calls if "rm" in call]


@pytest.mark.parametrize("failing", [f"ps {HERE}", "stop s1", "rm x1", f"volume {HERE}", "volume ray"])
def test_docker_that_refuses_is_a_fault_with_its_words(full: FakeDocker, failing: str) -> None:
    full.answer(failing, REFUSED)
    with pytest.raises(Fault, match="could not remove all that is ours") as caught:
        HostProvider().delete("lab/spark-1", props())
    assert "Cannot connect to the Docker daemon" in caught.value.evidence


ON_ITS_WAY = says(code=1, stderr="Error response from daemon: removal of container x1 is already in progress")
NO_MORE = says(code=1, stderr="Error response from daemon: No such container: x1")


def test_removal_that_a_killed_run_began_is_waited_for(full: FakeDocker) -> None:
    full.answer("stop s1", NO_MORE)
    full.answer("rm x1", ON_ITS_WAY, NO_MORE)
    HostProvider().delete("lab/spark-1", props())
    assert [call[:2] for call in full.called("rm")] == [["rm", "-f"]] * 2
    assert ["volume", "rm", "-f", "cache", "ray"] in full.calls


@pytest.mark.parametrize(("words", "said"), [("Error: No such image: vllm:1", ""), ("conflict: in use", "stays")])
def test_image_goes_last_where_the_settings_say_so(
    full: FakeDocker, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    full.answer("inspect x1", says(f"{IMAGE_ID}\n"))
    full.answer("image vllm:1", says(code=1, stderr=words))
    HostProvider().delete("lab/spark-1", props(discard="vllm:1"))
    assert full.calls[-1] == ["image", "rm", "vllm:1"]
    assert said in capsys.readouterr().out


PINNED = "vllm@sha256:" + "ab" * 32
COPY = "vllm:sha256-" + "ab" * 32
NAMELESS = inspected()


@pytest.mark.parametrize(
    ("tags", "removed", "said"),
    [
        ([], [PINNED, COPY, IMAGE_ID], ""),
        (["mine:1"], [PINNED, COPY], f"spark-1: image {PINNED} stays: it is mine:1 too\n"),
    ],
)
def test_copy_of_a_pinned_image_without_a_name_goes_by_its_id(
    full: FakeDocker, capsys: pytest.CaptureFixture[str], tags: list[str], removed: list[str], said: str
) -> None:
    full.answer("inspect x1", says(f"{IMAGE_ID}\n" * 4))
    for name in (PINNED, COPY):
        full.answer(f"image {name}", says(code=1, stderr=f"Error: No such image: {name}"))
    full.answer(f"image {IMAGE_ID}", says(json.dumps(NAMELESS | {"RepoTags": tags})), says())
    HostProvider().delete("lab/spark-1", props(discard=PINNED))
    assert [call[-1] for call in full.calls if call[:2] == ["image", "rm"]] == removed
    assert capsys.readouterr().out == said


def test_copy_of_a_pinned_image_goes_by_the_name_that_it_was_given(full: FakeDocker) -> None:
    full.answer("inspect x1", says(f"{IMAGE_ID}\n"))
    full.answer(f"image {PINNED}", says(code=1, stderr=f"Error: No such image: {PINNED}"))
    full.answer(f"image {COPY}", says())
    HostProvider().delete("lab/spark-1", props(discard=PINNED))
    assert [call[-1] for call in full.calls if call[:2] == ["image", "rm"]] == [PINNED, COPY]


def test_image_with_a_tag_goes_by_that_alone(full: FakeDocker) -> None:
    """Under the tag there may be another image by now, and the one of the containers may be somebody's."""
    full.answer("inspect x1", says(f"{IMAGE_ID}\n"))
    full.answer("image vllm:1", says(code=1, stderr="Error: No such image: vllm:1"))
    HostProvider().delete("lab/spark-1", props(discard="vllm:1"))
    assert [call[-1] for call in full.calls if call[0] == "image"] == ["vllm:1"]


def test_image_stays_otherwise(full: FakeDocker) -> None:
    HostProvider().delete("lab/spark-1", props())
    assert not full.called("image")


DEAD = {
    "node": "spark-2",
    "hops": [{"node": "spark-2", "host": "127.0.0.1", "user": "nobody", "port": 1.0, "identity_file": None}],
    "config_file": "/dev/null",
    "connect_timeout": 5.0,
}
FORGET = (
    "pulumi state delete -s lab --target-dependents 'urn:pulumi:lab::dgx-spark-cluster::dgx-spark-cluster:index:"
    "Cluster$dgx-spark-cluster:index:Node$dgx-spark-cluster:index:Preparation$command:local:Command::spark-2-found'"
)


@pytest.mark.parametrize(("destroying", "finish"), [(True, "pulumi destroy -s lab."), (False, "pulumi up -s lab.")])
def test_node_that_cannot_be_cleaned_is_told_with_the_way_to_finish_and_the_way_to_forget_it(
    monkeypatch: pytest.MonkeyPatch, *, destroying: bool, finish: str
) -> None:
    monkeypatch.setattr(host, "destroying", lambda: destroying)
    with pytest.raises(Fault) as caught:
        HostProvider().delete("lab/spark-2", props(connection=DEAD))
    assert caught.value.node == "spark-2"
    assert "refuses connections" in caught.value.cause
    assert "what is ours there is left" in caught.value.cause
    assert finish in caught.value.remedy
    assert caught.value.remedy.endswith(FORGET)


def test_create_read_and_update_change_nothing(full: FakeDocker) -> None:
    provider = HostProvider()
    assert (provider.create(props()).id, provider.create(props()).outs) == ("lab/spark-1", props())
    assert provider.read("lab/spark-1", props()).id == "lab/spark-1"
    changed = {"facts": {}, "connection": DEAD, "grace": 3.0, "timeout": 5.0, "discard": "vllm:1"}
    assert provider.update("lab/spark-1", props(), props(**changed)).outs == props(**changed)
    assert not full.calls


@pytest.mark.parametrize(("destroying", "way"), [(True, LEAVE_OUT), (False, FORGET)])
def test_read_of_a_node_that_is_not_reached_is_a_fault_with_the_ways_on(
    monkeypatch: pytest.MonkeyPatch, *, destroying: bool, way: str
) -> None:
    monkeypatch.setattr(host, "destroying", lambda: destroying)
    with pytest.raises(Fault, match=r"spark-2: 127\.0\.0\.1 refuses connections") as caught:
        HostProvider().read("lab/spark-2", props(connection=DEAD))
    assert "another way to it in the settings now: pulumi up -s lab --refresh=false once; " in caught.value.remedy
    assert caught.value.remedy.endswith(way)


def test_docker_that_does_not_answer_a_destroy_is_told_before_pulumis_provider_asks_it(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "destroying", lambda: True)
    docker.answer("ps --quiet", says(stderr="Cannot connect to the Docker daemon", code=1))
    with pytest.raises(Fault, match="spark-1: Docker does not answer") as caught:
        HostProvider().read("lab/spark-1", props())
    assert caught.value.remedy.endswith(LEAVE_OUT)
    monkeypatch.setattr(host, "destroying", lambda: False)
    assert HostProvider().read("lab/spark-1", props()).id == "lab/spark-1", "the survey has told it"


@pytest.mark.parametrize(
    ("changes", "changed", "replaces"),
    [
        ({}, False, []),
        ({"grace": 7, "timeout": 30}, False, []),
        ({"grace": 10}, True, []),
        ({"timeout": 5}, True, []),
        ({"facts": {"hostname": "other"}}, True, []),
        ({"connection": {}}, True, []),
        ({"discard": "vllm:1"}, True, []),
        ({"stack": "prod"}, True, ["stack"]),
    ],
)
def test_diff_sees_what_matters(changes: dict[str, Any], changed: bool, replaces: list[str]) -> None:
    found = HostProvider().diff("lab/spark-1", props(), props(**changes))
    assert (found.changes, found.replaces, found.delete_before_replace) == (changed, replaces, True)


def test_free_name_is_claimed_without_a_change(docker: FakeDocker) -> None:
    assert not claim(LOCAL, "dgx-spark-cluster-lab-serve", "lab")
    assert [call[0] for call in docker.calls] == ["inspect"]


def test_name_held_by_an_interrupted_run_of_this_stack_is_freed(docker: FakeDocker) -> None:
    """C18."""
    docker.answer("inspect dgx-spark-cluster-lab-serve", says("lab\n"))
    assert claim(LOCAL, "dgx-spark-cluster-lab-serve", "lab")
    assert docker.called("rm") == [["rm", "-f", "dgx-spark-cluster-lab-serve"]]


def test_name_that_is_not_freed_is_a_fault_with_dockers_words(docker: FakeDocker) -> None:
    docker.answer("inspect dgx-spark-cluster-lab-serve", says("lab\n"))
    docker.answer("rm dgx-spark-cluster-lab-serve", ON_ITS_WAY, REFUSED)
    with pytest.raises(Fault, match="of an earlier run cannot be removed") as caught:
        claim(LOCAL, "dgx-spark-cluster-lab-serve", "lab")
    assert "Cannot connect to the Docker daemon" in caught.value.evidence


@pytest.mark.parametrize("owner", ["", "<no value>", "prod"])
def test_name_held_by_a_stranger_is_left_alone(docker: FakeDocker, owner: str) -> None:
    docker.answer("inspect dgx-spark-cluster-lab-serve", says(f"{owner}\n"))
    with pytest.raises(Fault, match="is not of stack 'lab'"):
        claim(LOCAL, "dgx-spark-cluster-lab-serve", "lab")
    assert not docker.called("rm")
