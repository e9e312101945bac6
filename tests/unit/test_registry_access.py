"""Whether a registry gives the image: Docker's API, for which a server stands in, is asked by the node's script."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from hosts.images import registry_access
from hosts.images.registry_access_script import DOCKER_SOCKET, registry
from tests.samples import cluster
from tests.unit.docker_api import Answers, docker_api

IMAGE = "registry.example:5000/org/vllm:1"
PATH = "/distribution/{}/json"
SERVER, HUB = "registry.example:5000", "https://index.docker.io/v1/"


def said(status: int, body: dict[str, Any], mirrors: Sequence[str], image: str) -> Answers:
    """Docker's answers, as those of 20.10 and 28."""
    told = {
        "/info": {"RegistryConfig": {"Mirrors": list(mirrors)}},
        "/version": {"Os": "linux", "Arch": "arm64"},
    }
    answers = {path: (200, json.dumps(answer).encode()) for path, answer in told.items()}
    return answers | {PATH.format(image): (status, json.dumps(body).encode())}


class Ask:
    """What a preview says where Docker on the only node, this machine, gives such an answer."""

    def __init__(self, answers: Answers, headers: Mapping[str, Message]) -> None:
        self._answers, self._headers = answers, headers

    def __call__(
        self, status: int, body: dict[str, Any], *, image: str = IMAGE, mirrors: Sequence[str] = (), seconds: float = 30
    ) -> list[tuple[bool, str]]:
        self._answers.update(said(status, body, mirrors, image))
        found = cluster(nodes=[{"name": "spark-1", "ssh": "local"}], image=image, deadlines={"survey": seconds})
        return [(certain, str(fault)) for certain, fault in registry_access.check(found, "spark-1")]

    def sent(self, image: str = IMAGE) -> dict[str, str]:
        """The login that came with the question."""
        header = self._headers[PATH.format(image)]["X-Registry-Auth"]
        found: dict[str, str] = json.loads(base64.urlsafe_b64decode(header))
        return found


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    answers: Answers = {}
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(registry_access, "SCRIPT", registry_access.SCRIPT.replace(DOCKER_SOCKET, str(path)))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with docker_api(path, answers) as headers:
        yield Ask(answers, headers)


def platforms(*architectures: str) -> dict[str, Any]:
    return {"Platforms": [{"os": "linux", "architecture": one} for one in architectures]}


@pytest.mark.parametrize(
    "body",
    [platforms("arm64"), platforms("amd64", "arm64"), platforms(), {"Platforms": None}, {}],
)
def test_image_that_is_given_is_no_word_worth(ask: Ask, body: dict[str, Any]) -> None:
    assert ask(200, body) == []
    assert ask.sent() == {}


@pytest.mark.parametrize(
    ("status", "body", "cause", "next_step"),
    [
        (404, {"message": "manifest unknown"}, f"registry.example:5000 has no image {IMAGE}", "correct `image`, or"),
        (401, {"message": "unauthorized"}, f"registry.example:5000 does not give image {IMAGE}", "docker login regis"),
        (403, {"message": "denied"}, f"registry.example:5000 does not give image {IMAGE}", "docker login registry.exa"),
        (200, platforms("amd64", "s390x"), f"image {IMAGE} is not for linux/arm64, only for linux/amd64", "name one"),
    ],
)
def test_refusal_is_certain(ask: Ask, status: int, body: dict[str, Any], cause: str, next_step: str) -> None:
    ((certain, text),) = ask(status, body)
    assert certain
    assert text.startswith(f"spark-1: {cause}")
    assert next_step in text
    assert body.get("message", "") in text


def test_id_cannot_be_pulled(ask: Ask) -> None:
    ((certain, text),) = ask(200, {}, image="sha256:" + "a" * 64)
    assert certain
    assert "what is named by its id cannot be pulled" in text


@pytest.mark.parametrize(("status", "body"), [(500, {"message": "dial tcp: refused"}), (200, {"Platforms": 5})])
def test_answer_of_no_registry_is_a_doubt(ask: Ask, status: int, body: dict[str, Any]) -> None:
    ((certain, text),) = ask(status, body)
    assert not certain
    assert "does not tell whether it gives image" in text
    assert body.get("message", "not iterable") in text


def test_login_that_the_registry_refuses_is_named_whatever_the_status(ask: Ask) -> None:
    said = {"message": "Get https://registry.example:5000/v2/: unauthorized: incorrect username or password"}
    ((certain, text),) = ask(500, said)
    assert not certain
    assert "docker login registry.example:5000" in text


def test_registry_that_does_not_answer_is_not_waited_for(ask: Ask) -> None:
    ((certain, text),) = ask(0, {}, seconds=1)
    assert not certain
    assert "only `up` will show it" in text


@pytest.mark.parametrize(("image", "certain"), [("org/vllm:1", False), (IMAGE, True)])
def test_refusal_of_a_mirrored_hub_is_a_doubt(ask: Ask, image: str, certain: bool) -> None:
    ((found, _),) = ask(404, {"message": "manifest unknown"}, image=image, mirrors=["https://mirror.example/"])
    assert found == certain


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("vllm", "docker.io"),
        ("org/vllm:1", "docker.io"),
        ("localhost/vllm", "localhost"),
        ("ghcr.io/org/vllm@sha256:" + "0" * 64, "ghcr.io"),
        ("registry:5000/vllm", "registry:5000"),
        ("index.docker.io/org/vllm", "docker.io"),
    ],
)
def test_registry_of_a_reference(image: str, name: str) -> None:
    assert registry(image) == name


TOKEN = {"identitytoken": "t", "serveraddress": "registry.example:5000"}
AUTH = base64.b64encode(b"user:secret").decode()


OTHER = {"auth": base64.b64encode(b"user:token").decode()}
PASSWORD = {"username": "user", "password": "secret"}


@pytest.mark.parametrize(
    ("image", "auths", "login"),
    [
        (IMAGE, {"registry.example:5000": {"auth": AUTH}}, {**PASSWORD, "serveraddress": SERVER}),
        ("org/vllm:1", {HUB: {"auth": AUTH}}, {**PASSWORD, "serveraddress": HUB}),
        (IMAGE, {"registry.example:5000": {"auth": AUTH, "identitytoken": "t"}}, TOKEN),
        (IMAGE, {"https://registry.example:5000/v2/": {"auth": AUTH}}, {**PASSWORD, "serveraddress": SERVER}),
        ("index.docker.io/org/vllm:1", {"docker.io": {"auth": AUTH}}, {**PASSWORD, "serveraddress": HUB}),
        (
            "org/vllm:1",
            {HUB: {"auth": AUTH}, f"{HUB}access-token": OTHER, f"{HUB}refresh-token": OTHER},
            {
                **PASSWORD,
                "serveraddress": HUB,
            },
        ),
        ("org/vllm:1", {f"{HUB}access-token": OTHER}, {}),
        (IMAGE, {SERVER: {"auth": AUTH}, f"https://{SERVER}": OTHER}, {**PASSWORD, "serveraddress": SERVER}),
        (IMAGE, {"other.example": {"auth": AUTH}}, {}),
        (IMAGE, {"registry.example:5000": {"auth": "no base64"}}, {}),
    ],
)
def test_login_of_the_client_goes_along(
    ask: Ask, tmp_path: Path, image: str, auths: dict[str, Any], login: dict[str, str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    assert ask(200, {}, image=image) == []
    assert ask.sent(image) == login


@pytest.mark.parametrize("config", [{"credsStore": "test"}, {"credHelpers": {f"https://{SERVER}": "test"}}])
def test_login_of_a_credential_helper_goes_along(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    helper = tmp_path / "docker-credential-test"
    told = 'read server; printf \'{"ServerURL":"%s","Username":"%s","Secret":"s"}\' "$server" "$server"'
    helper.write_text(f"#!/bin/sh\n[ $1 = get ] && {told}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ask(200, {}) == []
    assert ask.sent() == {"username": SERVER, "password": "s", "serveraddress": SERVER}
