"""A model of the hub, which is a stand-in on the head: what a preview says of it, and how it gets onto both nodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.bundle import bundle
from hosts.faults import Fault
from hosts.images.stock import amount
from providers import hub
from providers.hub import Download
from providers.model_weights import ModelWeightsProvider
from tests.lab.conftest import Result, Stack, connect, lab_settings, on
from tests.lab.weights import HEAD, HOME, SECOND, SHARDS, WORKER, brought, cluster, listed, props, remove
from tests.samples import hub as hub_server
from tests.samples import models

IMAGE = "dgx-spark-lab/vllm:1"
TOKEN = "hf_of-the-test"


@pytest.fixture(autouse=True)
def clean(image: str) -> Iterator[None]:  # noqa: ARG001 - a container of it is run
    """Nothing of the test on any node, before and after."""
    remove()
    yield
    remove()


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


def test_only_what_the_wanted_revision_lacks_is_counted_and_parts_of_no_use_are_removed(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are all shards but one, a blob of another revision, and a part whose client was killed."""
    cache, files = f"{HOME}/hub", models.contents(SHARDS, 200_000)
    blobs = f"{cache}/models--org--made-up/blobs"
    second = hashlib.sha256(files[SECOND]).hexdigest()
    hub.download(connect(HEAD), cache, download(server), TOKEN)
    former, part = f"{blobs}/0123", f"{blobs}/{second}.0123abcd.incomplete"
    on(HEAD, "cp", f"{blobs}/{second}", former)
    on(HEAD, "mv", f"{blobs}/{second}", part)
    capsys.readouterr()
    size = sum(map(len, files.values()))
    assert hub.download(connect(HEAD), cache, download(server), TOKEN) == size
    said = capsys.readouterr().out
    assert f"from the hub: {amount(len(files[SECOND]))} sent in " in said
    assert f", {amount(size - len(files[SECOND]))} were there of an earlier run" in said
    on(HEAD, "test", "-f", former, "-a", "!", "-e", part)


def previewed(stack: Stack, token: str | None = TOKEN, **weights: Any) -> Result:
    """A preview with a model of the hub that no node has."""
    settings = lab_settings() | {"model": hub_server.NAME, "weights": {"download_to": f"{HOME}/hub", **weights}}
    changed = stack.configured(settings)
    if token:
        said = stack.pulumi("config", "set", "--stack", "lab", *changed, "--secret", "hubToken", token)
        assert said.code == 0, said.output
    return stack.pulumi("preview", "--stack", "lab", *changed)


def test_preview_tells_what_the_hub_refuses_and_leaves_nothing(image: str, server: str, tmp_path: Path) -> None:  # noqa: ARG001 - it is there
    stack = Stack(tmp_path)
    for changes, wanted in (
        ({"revision": "v9"}, f"error: {HEAD}: the hub has no model org/made-up at revision v9"),
        ({"token": None}, f"error: {HEAD}: the hub does not give model org/made-up at revision main"),
        ({"token": "hf_expired"}, f"error: {HEAD}: the hub refuses the token"),
    ):
        done = previewed(stack, **{"endpoint": server, **changes})
        assert done.code != 0, done.output
        assert wanted in done.output, done.output
        assert "next: " in done.output, done.output
        assert "Traceback" not in done.output, done.output
        assert TOKEN not in done.output
    for endpoint in (server, "http://127.0.0.1:1"):
        done = previewed(stack, endpoint=endpoint)
        assert done.code == 0, done.output
        assert f"{HEAD}: model org/made-up is on no node and is downloaded" in done.output
        unheard = f"{HEAD}: {endpoint} does not tell whether it gives model org/made-up"
        assert (unheard in done.output) == (endpoint != server), done.output
    on(HEAD, "test", "!", "-e", HOME)


@pytest.mark.parametrize(
    ("changes", "token", "cause"),
    [
        ({}, None, "the hub does not give model org/made-up at revision main"),
        ({"name": "org/other"}, TOKEN, "the hub does not give model org/other"),
        ({"revision": "v9"}, TOKEN, "the hub has no model org/made-up at revision v9"),
        ({}, "hf_expired", "the hub refuses the token"),
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
