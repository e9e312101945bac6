"""What an image holds of the engine: versions of vLLM and Ray, and the options that their commands know."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from hosts import ownership
from hosts.faults import Fault
from hosts.ssh import CONTROL_DIRECTORY, Connection

SCRIPT = Path(__file__).with_name("contents_script.py")
CACHE = f"{CONTROL_DIRECTORY}/images"
"""Answers on the operator's machine: vLLM's help takes 10 to 30 s to show. An image never changes under its id; what is
mounted into it may, and then the file there must be removed."""
USAGE = 2
"""Exit code of argparse for arguments that it does not take."""
SECONDS = 180.0
"""For a container that imports vLLM twice; a busy Spark may need a minute."""


class Options(BaseModel):
    """Options of one command by its own help; `error` says why they are not known."""

    model_config = ConfigDict(frozen=True)

    known: tuple[str, ...] = ()
    error: str = ""


class Contents(BaseModel):
    """What was found in an image."""

    model_config = ConfigDict(frozen=True)

    python: str
    vllm: str | None
    """Version, None where it is not installed."""
    ray: str | None
    options: dict[str, Options]
    """By command that was asked about: `vllm serve`, `ray start`."""


def ask(
    connection: Connection,
    image_id: str,
    commands: Collection[str],
    *,
    mounts: Sequence[str],
    stack: str,
    say: Callable[[str], None],
) -> Contents:
    """Ask an image that the node has, in a container of its own that is gone afterwards; once for each image.

    Args:
        connection: to the node.
        image_id: Docker's id of the image there.
        commands: those whose options are wanted.
        mounts: directories that its containers see, as `docker run --volume` takes them: they may hold the engine.
        stack: whose the container is, should it be left over.
        say: takes a line for the user when the answer must be waited for.

    Raises:
        Fault: the node cannot be reached, or no container of the image runs.
    """
    cached = _cached(image_id, sorted(commands), sorted(mounts), SCRIPT.read_text())
    if cached.exists():
        return Contents.model_validate_json(cached.read_bytes())
    say(f"{connection.node}: asking the image which options its engine knows; once for each image, 10 to 30 s")
    arguments = ("-c", SCRIPT.read_text(), *sorted(commands))
    done = _run(connection, image_id, "python3", *arguments, mounts=mounts, stack=stack)
    try:
        contents = Contents.model_validate_json(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise Fault(
            connection.node,
            f"no container of image {image_id[:19]} answers (exit code {done.returncode})",
            "correct `image`: the engine needs Python, vLLM and Ray in it; try by hand: "
            + connection.by_hand(f"docker run --rm --gpus all --entrypoint python3 {image_id[:19]} -V"),
            done.stderr or done.stdout,
        ) from None
    if not any(one.error for one in contents.options.values()):  # an error may be one of this moment
        _keep(cached, contents.model_dump_json())
    return contents


def refusal(
    connection: Connection,
    image_id: str,
    command: str,
    arguments: Sequence[str],
    *,
    mounts: Sequence[str],
    stack: str,
    say: Callable[[str], None],
) -> str | None:
    """What a command of an image has against the values of its arguments, before it would do anything with them.

    It reads them all and then shows its help. Asked once for each image and arguments, unless it refuses them.

    Args:
        connection: to the node that has the image.
        image_id: Docker's id of the image there.
        command: such as `vllm serve`, of argparse: click shows a help before it reads anything.
        arguments: its arguments, whose names it knows.
        mounts: as :func:`ask` takes them.
        stack: whose the container is, should it be left over.
        say: takes a line for the user when the answer must be waited for, or does not come.

    Raises:
        Fault: the node cannot be reached.
    """
    cached = _cached(image_id, command, list(arguments), sorted(mounts))
    if not arguments or cached.exists():
        return None
    say(f"{connection.node}: having the image read the arguments of `{command}`; once for each image, 10 to 30 s")
    program, *words = command.split()
    done = _run(connection, image_id, program, *words, *arguments, "--help", mounts=mounts, stack=stack)
    if not done.returncode:
        _keep(cached, "{}")
        return None
    _, said, error = done.stderr.rpartition(f"{command}: error: ")
    if done.returncode == USAGE and said:
        return error.strip()
    evidence = (done.stderr or done.stdout).strip()[-400:]
    say(f"{connection.node}: values of `{command}` go unchecked: exit code {done.returncode}: {evidence}")
    return None


def _run(
    connection: Connection, image_id: str, program: str, *arguments: str, mounts: Sequence[str], stack: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a container of the image that reaches nothing and is gone afterwards."""
    labels = ownership.labels(stack, connection.node, "question")
    return connection.run(
        *("docker", "run", "--rm", "--network", "none", "--gpus", "all", "--entrypoint", program),
        *(option for label, value in labels.items() for option in ("--label", f"{label}={value}")),
        *(option for mount in mounts for option in ("--volume", mount)),
        *(image_id, *arguments),
        timeout=SECONDS,
    )


def _cached(*question: object) -> Path:
    """Where the answer to a question is kept."""
    key = hashlib.sha256(json.dumps(question).encode()).hexdigest()
    return Path(CACHE).expanduser() / f"{key}.json"


def _keep(cached: Path, answer: str) -> None:
    cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = cached.with_suffix(f".{os.getpid()}")
    written.write_text(answer)
    written.replace(cached)
