"""What the survey script asks of Docker's API, and what it makes of the answers; a server stands in for Docker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hosts.images.identity import names
from hosts.survey import Docker
from tests.samples import IMAGE_ID, inspected
from tests.unit.docker_api import Answers, docker_api
from tests.unit.test_survey import run, tool

ENGINE: dict[str, Any] = {
    "/info": {"ServerVersion": "28.5.2", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker", "Images": 7},
    "/containers/json?all=1": [
        {
            "Id": "c" * 64,
            "Names": ["/vllm_node"],
            "ImageID": IMAGE_ID,
            "State": "running",
            "Labels": {"maintainer": "x", "dgx-spark-cluster.role": "serve"},
            "Ports": [
                {"IP": "0.0.0.0", "PrivatePort": 8000, "PublicPort": 30000, "Type": "tcp"},  # noqa: S104 - Docker's
                {"IP": "::", "PrivatePort": 8000, "PublicPort": 30000, "Type": "tcp"},
                {"PrivatePort": 8001, "Type": "tcp"},
                {"IP": "0.0.0.0", "PrivatePort": 9, "PublicPort": 6379, "Type": "udp"},  # noqa: S104 - Docker's
            ],
        }
    ],
}
"""Answers of Docker's API by path, shortened; a port that is exposed only has no public one."""


def said(changes: dict[str, Any] | None = None) -> Answers:
    """What Docker says to each path, with changes."""
    return {path: (200, json.dumps(answer).encode()) for path, answer in (ENGINE | (changes or {})).items()}


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """What the survey says of a Docker that gives these answers."""
    answers: Answers = {}

    def asked(given: Answers, **question: Any) -> dict[str, Any]:
        answers.update(given)
        found: dict[str, Any] = run(tmp_path, before=tool(tmp_path, "docker", ""), **question)["docker"]
        return found

    with docker_api(tmp_path / "docker.sock", answers):
        yield asked


Ask = Callable[..., dict[str, Any]]


def test_docker_is_asked_for_images_and_published_ports(ask: Ask) -> None:
    found = ask(said())
    (container,) = found["containers"]
    assert container["published"] == [["0.0.0.0", 30000], ["::", 30000]]  # noqa: S104 - as above
    docker = Docker.model_validate(found)
    assert (docker.images, docker.image, docker.driver) == (7, None, "overlay2")
    assert [(one.name, one.labels) for one in docker.containers] == [("vllm_node", {"role": "serve"})]


def test_image_of_the_settings_is_found_by_its_name(ask: Ask) -> None:
    found = Docker.model_validate(ask(said({"/images/none%3A1/json": inspected()})))
    assert found.image_id == IMAGE_ID


@pytest.mark.parametrize("known", names("a/b:1@sha256:0"))
def test_image_that_is_pinned_by_digest_is_found_as_a_copy_too(ask: Ask, known: str) -> None:
    path = f"/images/{quote(known)}/json"
    found = Docker.model_validate(ask(said({path: inspected()}), images=list(names("a/b:1@sha256:0"))))
    assert found.image_id == IMAGE_ID


def test_answer_of_many_packets_is_read_to_its_end(ask: Ask) -> None:
    path = "/containers/json?all=1"
    assert len(ask(said({path: ENGINE[path] * 2000}))["containers"]) == 2000


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, b'{"message":"layer store is broken"}'), 'it answered 500 to /info: b\'{"message":"layer store'),
        ((0, b""), "it answered nothing to /info"),
        ((200, b'{"ServerVersion": "28'), "Unterminated string"),
    ],
    ids=["error", "no answer", "cut off"],
)
def test_docker_that_fails_says_why(ask: Ask, answer: tuple[int, bytes], error: str) -> None:
    found = ask({"/info": answer})
    assert found["error"].startswith(f"Docker does not answer: {error}")
