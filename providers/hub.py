"""A model from the Hugging Face hub onto one node, by the client of the serving image in a container of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hosts import fabric_link, ownership
from hosts.bundle import program
from hosts.ssh import Connection
from hosts.weights import hub_download
from hosts.weights import look as model_look
from hosts.weights.hub_access import fault_of
from providers import progress
from providers.transfer import ask, follow, started
from providers.weights_copy import WHAT, ByteMeter, words_of

SCRIPT = program(fabric_link, model_look, hub_download)
RUN = 'mkdir -p "$1" && shift && exec docker run --user "$(id -u):$(id -g)" "$@"'
"""As the ssh user, so that the files are the user's."""


@dataclass(frozen=True)
class Download:
    """What is to be downloaded, and in what container."""

    name: str
    """ORG/NAME."""
    revision: str
    image: str
    """Docker's id of an image with huggingface_hub."""
    stack: str
    endpoint: str | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Directories of the node by their paths in the container, read-only: an engine may live there."""
    environment: Mapping[str, str] = field(default_factory=dict)


def command(wanted: Download, node: str, cache: str) -> list[str]:
    """Argument list of `docker run`."""
    labels = [f"--label={key}={value}" for key, value in ownership.labels(wanted.stack, node, "download").items()]
    mounts = [f"--volume={source}:{target}:ro" for target, source in wanted.mounts.items()]
    environment = [f"--env={key}={value}" for key, value in wanted.environment.items()]
    return [
        *("--rm", "--interactive", "--network=host", *labels, *mounts, *environment),
        *(f"--volume={cache}:{hub_download.CACHE}", "--entrypoint=python3", wanted.image, "-u", "-c", SCRIPT),
    ]


def download(connection: Connection, cache: str, wanted: Download, token: str | None) -> int:
    """Download a model into a cache directory of the node; what is there is not downloaded again.

    The token goes through the container's input: it is in no argument list and no environment.

    Returns:
        Bytes of the model there.

    Raises:
        Fault: the hub refuses or is not reached, no room, or interrupted; what has arrived stays.
    """
    meter = ByteMeter(f"Model of {connection.node}, from the hub", 0)
    words: dict[str, Any] = {}
    question = {"name": wanted.name, "revision": wanted.revision, "endpoint": wanted.endpoint, "token": token}
    with started(connection, "sh", "-c", RUN, "sh", cache, *command(wanted, connection.node, cache)) as process:
        ask(process, question)
        for now in words_of(follow(connection, process, lambda: str(meter), WHAT), words):
            meter.about = now.get("need", meter.about)
            meter.update(now.get("got", meter.sent))
    if "done" not in words:
        said, kind, has = str(words.get("error") or words.get("said", "")), words.get("kind"), token is not None
        raise fault_of(connection.node, wanted.name, wanted.revision, kind, said, with_token=has)
    done = int(words["done"])
    progress.lasting(meter.last(done - meter.sent))
    return done
