"""Whether the hub gives a model: a stand-in is asked by the script that runs on a node, which here is this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.survey import Survey
from hosts.weights.hub_access import check, fault_of
from tests.samples import cluster, model, survey
from tests.samples.hub import COMMIT, NAME, Answer, Hub
from tests.samples.models import contents

TOKEN = "hf_of-the-test"
BOTH = [{"name": "spark-1", "ssh": "local"}, {"name": "spark-2", "ssh": "aurora@192.0.2.2"}]
ABSENT = model(exists=False, weights=False, files={})
Serve = Callable[..., Hub]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts hubs on this machine."""
    started: list[Hub] = []

    def start(files: dict[str, bytes] | None = None, token: str | None = None, *, gated: bool = False) -> Hub:
        hub = Hub(contents() if files is None else files, token, gated=gated)
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        started.append(hub)
        return hub

    yield start
    for hub in started:
        hub.shutdown()
        hub.server_close()


def address(hub: Hub) -> str:
    return f"http://127.0.0.1:{hub.server_address[1]}"


def ask(
    endpoint: str | None, token: str | None = None, *, name: str = NAME, free: int = 10**12, **changes: Any
) -> list[tuple[bool, Fault]]:
    """What a preview says of a model that the only node, this machine, is to download."""
    weights = {"endpoint": endpoint, "revision": changes.pop("revision", "main")}
    found = cluster(nodes=[{"name": "spark-1", "ssh": "local"}], model=name, weights=weights, **changes)
    facts: Survey = survey(1, model={**ABSENT, "free": free}, home=changes.get("home", "/nowhere"))
    return list(check(found, {"spark-1": facts}, "spark-1", token))


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_model_that_is_given_is_no_word_worth(serve: Serve, revision: str) -> None:
    hub = serve(token=TOKEN)
    assert ask(address(hub), TOKEN, revision=revision) == []
    assert hub.asked == [
        f"GET /api/models/{NAME}/revision/{revision}",
        f"HEAD /{NAME}/resolve/{revision}/config.json",
    ]


@pytest.mark.parametrize(
    ("hub", "asked", "cause", "next_step"),
    [
        ({"token": TOKEN}, {}, f"the hub does not give model {NAME} at revision main", "set --secret hubToken"),
        ({}, {"name": "org/other"}, "the hub does not give model org/other", "correct `model`"),
        ({}, {"revision": "v9"}, f"the hub has no model {NAME} at revision v9", "correct `weights.revision`"),
        ({"token": TOKEN}, {"token": "hf_expired"}, "the hub refuses the token", "give a valid one"),
        ({"token": TOKEN, "gated": True}, {}, f"the hub does not give model {NAME}", "set --secret hubToken"),
        (
            {"token": TOKEN, "gated": True},
            {"token": "hf_of-another"},
            f"the hub does not give model {NAME}",
            "accept its licence at the hub, the token has no access",
        ),
    ],
    ids=["private", "no such model", "no such revision", "invalid token", "gated", "gated, token without access"],
)
def test_refusal_is_certain_and_says_what_to_do(
    serve: Serve, hub: dict[str, Any], asked: dict[str, Any], cause: str, next_step: str
) -> None:
    ((certain, fault),) = ask(address(serve(**hub)), **asked)
    assert certain
    assert fault.node == "spark-1"
    assert fault.cause.startswith(cause)
    assert next_step in fault.remedy
    assert "for http://127.0.0.1" in fault.evidence
    assert asked.get("token", TOKEN) not in str(fault)


def test_model_without_weights_is_told_beforehand(serve: Serve) -> None:
    hub = serve({"config.json": b"{}", "README.md": b"Weights: elsewhere"})
    ((certain, fault),) = ask(address(hub))
    assert certain
    assert fault.cause == f"model {NAME} at revision main has no weights"
    assert "config.json" in fault.evidence


def test_model_without_configuration_is_told_beforehand(serve: Serve) -> None:
    hub = serve({"model-Q4_K_M.gguf": b"x", "README.md": b"GGUF"})
    ((certain, fault),) = ask(address(hub))
    assert certain
    assert fault.cause == f"model {NAME} at revision main has no config.json: GGUF, or an adapter, alone"


def test_shards_that_the_hub_lacks_by_their_numbers_are_a_warning(serve: Serve) -> None:
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 3)]
    ((certain, fault),) = ask(address(serve({"config.json": b"{}"} | dict.fromkeys(names, b"x"))))
    assert not certain
    assert f"model {NAME} at revision main seems not to be whole at the hub" in fault.cause
    assert fault.evidence == "model-00002-of-00003.safetensors"


class Silent(Hub):
    """One that takes requests and gives no answer."""

    def finish_request(self, *_: Any) -> None:
        self.asked.append("and never answered")
        self.over.wait()

    over = threading.Event()


def test_hub_that_does_not_answer_in_time_is_a_warning() -> None:
    with Silent({}) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        ((certain, fault),) = ask(address(hub), deadlines={"survey": 2})
        hub.over.set()
        hub.shutdown()
    assert hub.asked
    assert not certain
    assert fault.cause == (
        f"{address(hub)} does not tell whether it gives model {NAME}: only the download will show it"
    )
    assert "HTTPS_PROXY" in fault.remedy
    assert "timed out" in fault.evidence


def test_hub_that_is_not_reached_is_a_warning() -> None:
    endpoint, evidence = "http://127.0.0.1:1", "Connection refused"
    ((certain, fault),) = ask(endpoint)
    assert not certain
    assert evidence in fault.evidence
    assert "Traceback" not in str(fault)


@pytest.mark.parametrize("page", [b"<html>Please log in to the network</html>", b"[1]", b'{"siblings": [1]}'])
def test_answer_that_is_no_hubs_is_a_warning(serve: Serve, monkeypatch: pytest.MonkeyPatch, page: bytes) -> None:
    monkeypatch.setattr(Answer, "do_GET", lambda self: self.content(page, {}, body=True))
    ((certain, fault),) = ask(address(serve()))
    assert not certain
    assert "Error: " in fault.evidence
    assert "Traceback" not in fault.evidence


def test_token_follows_no_redirect(serve: Serve) -> None:
    """Large files are elsewhere."""
    files = {"model.safetensors": bytes(20_000), "config.json": b"{}"}
    hub = serve(files, TOKEN)
    assert ask(address(hub), TOKEN) == []
    assert hub.asked[-1] == f"HEAD /{NAME}/resolve/main/model.safetensors"


def test_hub_is_asked_as_the_containers_will(serve: Serve) -> None:
    hub = serve()
    assert ask(None, environment={"HF_ENDPOINT": address(hub)}) == []
    assert len(hub.asked) == 2
    proxy = serve()
    ask("http://hub.test", environment={"http_proxy": address(proxy), "no_proxy": ""})
    assert proxy.asked == [f"GET http://hub.test/api/models/{NAME}/revision/main"]


def test_no_room_is_known_before_the_first_byte(serve: Serve, tmp_path: Path) -> None:
    """What an interrupted download left counts."""
    files = contents(3, 1_000_000)
    hub = serve(files)
    size = sum(map(len, files.values()))
    ((certain, fault),) = ask(address(hub), free=size - 1, home=str(tmp_path))
    assert certain
    assert fault.cause.startswith("no room for the model: 3.0 MB needed in ")
    blobs = tmp_path / ".cache/huggingface/hub/models--org--made-up/blobs"
    blobs.mkdir(parents=True)
    (blobs / "0123.incomplete").write_bytes(bytes(1_000_000))  # of a former revision
    assert ask(address(hub), free=size - 700_000, home=str(tmp_path)) != []
    shard = hashlib.sha256(files["model-00001-of-00003.safetensors"]).hexdigest()
    (blobs / f"{shard}.incomplete").write_bytes(bytes(900_000))
    assert ask(address(hub), free=size - 700_000, home=str(tmp_path)) == []


def test_only_blobs_of_the_wanted_revision_count_as_there_on_the_other_node(serve: Serve) -> None:
    """A former revision is there whole, and one of its shards did not change."""
    files = contents(3, 1_000_000)
    hub, size = serve(files), sum(map(len, files.values()))
    same = hashlib.sha256(files["model-00001-of-00003.safetensors"]).hexdigest()
    former = {f"blobs/{same}": 1_000_000, "blobs/0123": 2_000_000}
    found = cluster(model=NAME, weights={"endpoint": address(hub)}, nodes=BOTH)
    model = {**ABSENT, "exists": True, "files": former, "free": 2_200_000}
    surveys = {"spark-1": survey(1, model={**ABSENT, "free": size * 2}), "spark-2": survey(2, model=model)}
    assert list(check(found, surveys, "spark-1", None)) == []
    surveys["spark-2"] = survey(2, model={**model, "free": 2_000_000})
    ((certain, fault),) = check(found, surveys, "spark-1", None)
    assert certain
    assert fault.node == "spark-2"
    assert fault.cause.startswith("no room for the model: 2.0 MB needed in ")


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("NoRoom", "no room for model a/b at revision main: words"),
        ("ImportError", "the image has no huggingface_hub to download with"),
        ("HfHubHTTPError", "model a/b at revision main could not be downloaded"),
        (None, "model a/b at revision main could not be downloaded"),
    ],
)
def test_other_ends_of_a_download_have_a_next_step_too(kind: str | None, cause: str) -> None:
    fault = fault_of("spark-1", "a/b", "main", kind, "words", with_token=False)
    assert fault.cause == cause
    assert fault.remedy
