"""NodeImage: the image is on the node, by identity. Nothing is sent when the node has it."""

from __future__ import annotations

import json
import queue
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, ReadResult, Resource, UpdateResult

from hosts.faults import Fault
from hosts.ssh import Connection, lines
from providers import progress
from providers.base import Provider

CHUNK = 4 << 20
PROGRESS_SECONDS = 3.0
PULL_SECONDS = 4 * 3600.0
"""Bound of one pull: 20 GB at 1.5 MB/s."""


class NodeImageProvider(Provider):
    """Present by image id: found, loaded from the operator's archive, or pulled."""

    compared = ("image", "image_id")

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """Bring the image to the node unless it is there."""
        outs = self._ensure(props)
        return CreateResult(f"{props['connection']['node']}/{outs['image_id']}", outs)

    def update(self, _id: str, _olds: Mapping[str, Any], news: Mapping[str, Any]) -> UpdateResult:
        """Bring the image that is now wanted; the former one stays, for the way back."""
        return UpdateResult(self._ensure(news))

    def read(self, id_: str, props: Mapping[str, Any]) -> ReadResult:
        """The image with its id, or gone."""
        found = image_id(Connection.load(props["connection"]), str(props["image"]))
        return ReadResult(id_, dict(props)) if found == props["image_id"] else ReadResult("", {})

    def _ensure(self, props: Mapping[str, Any]) -> dict[str, Any]:
        connection, image = Connection.load(props["connection"]), str(props["image"])
        wanted, archive = props.get("image_id"), props.get("archive")
        found = image_id(connection, image)
        if not found or (wanted and found != wanted):
            if archive:
                load(connection, Path(archive))
            else:
                pull(connection, image)
            found = image_id(connection, image)
        if not found or (wanted and found != wanted):
            raise Fault(
                connection.node,
                f"image {image} is {found or 'absent'} after the transfer, {wanted or 'any id'} wanted",
                "rebuild the archive from the image named in `image`, or pin `image` by digest",
            )
        return {**props, "image_id": found}


def image_id(connection: Connection, image: str) -> str | None:
    """Id of an image on a node, None if it is not there."""
    done = connection.run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    if done.returncode and "No such image" not in done.stderr:
        raise Fault(connection.node, "Docker does not answer", f"look at it: {connection.by_hand()}", done.stderr)
    return done.stdout.strip() or None


def archive_image_id(archive: Path) -> str:
    """Image id in a `docker save` tar: the digest of the config that its manifest names.

    Raises:
        Fault: the file is absent or no archive of one image.
    """
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("manifest.json")
            config = Path(json.load(member)[0]["Config"]) if member else Path()
    except (OSError, LookupError, TypeError, ValueError, tarfile.TarError) as error:
        raise Fault(
            "operator", f"image archive {archive}: {error}", "make it with docker save, or correct `image_archive`"
        ) from None
    return f"sha256:{config.stem}"


def load(connection: Connection, archive: Path) -> None:
    """Stream a tar of the operator's machine into the node's Docker, with progress."""
    size = archive.stat().st_size
    process = subprocess.Popen(
        connection.command("docker", "load", "--quiet"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin and process.stdout  # noqa: S101, PT018 - opened as pipes
    began = shown = time.monotonic()
    sent = 0
    try:
        with archive.open("rb") as tar:
            while chunk := tar.read(CHUNK):
                process.stdin.write(chunk)
                sent += len(chunk)
                if (now := time.monotonic()) - shown >= PROGRESS_SECONDS:
                    shown = now
                    rate = sent / 1e6 / (now - began)
                    progress.passing(
                        f"Image of {connection.node}: {sent / 1e6:.0f} of {size / 1e6:.0f} MB, {rate:.0f} MB/s"
                    )
        process.stdin.close()
    except BrokenPipeError:
        pass  # docker's own words, read below, say why
    output = process.stdout.read().decode(errors="replace")
    if process.wait():
        raise Fault(connection.node, f"docker load of {archive.name} failed", "is there room for it (df -h)?", output)
    progress.lasting(f"Image of {connection.node}: loaded {size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def pull(connection: Connection, image: str) -> None:
    """Pull on the node, with Docker's own lines as progress."""
    process = connection.start("docker", "pull", image)
    assert process.stdin and process.stdout  # noqa: S101, PT018 - opened as pipes
    process.stdin.close()
    heard: list[str] = []
    queued, began = lines(process), time.monotonic()
    while True:
        try:
            line = queued.get(timeout=PROGRESS_SECONDS)
        except queue.Empty:  # without a terminal docker is silent while a layer comes
            if time.monotonic() - began > PULL_SECONDS:
                process.kill()
        else:
            if line is None:
                break
            heard.append(line)
        last = heard[-1].strip() if heard else "waiting for the registry"
        progress.passing(f"Image of {connection.node}: pulling, {time.monotonic() - began:.0f} s: {last}")
    if process.wait():
        raise Fault(
            connection.node,
            f"image {image} is on no node and cannot be pulled",
            "correct `image`, log in to its registry on the node, or give `image_archive` (docker save)",
            "".join(heard),
        )


class NodeImage(Resource, module="spark", name="NodeImage"):
    """The image on one node."""

    image_id: pulumi.Output[str]
    """Docker's id of the image there (sha256:…)."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        image: str,
        image_id: str | None,
        archive: str | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"connection": connection.dump(), "image": image, "image_id": image_id, "archive": archive}
        super().__init__(NodeImageProvider(), name, props, opts)
