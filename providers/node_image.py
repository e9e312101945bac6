"""NodeImage: the image is on the node, by identity. Nothing is sent when the node has it."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, ReadResult, Resource

from hosts.faults import Fault
from hosts.images import build_context
from hosts.images.download import check_download
from hosts.images.identity import CONTEXT_LABEL, UNREADABLE, Archive, Image, inspect, is_tag, names
from hosts.images.sender import Counted, without_held
from hosts.images.stock import FACTOR, Stock, amount, check_room, missing_bytes, stock
from hosts.ssh import Connection
from providers import progress
from providers.base import Provider
from providers.image_copy import NotConnected, Source, copy
from providers.transfer import Meter, feed, follow, started

PULL = """
docker pull "$1" 2>&1 & pull=$!
{ cat <&3; kill "$pull"; } >/dev/null 2>&1 &
wait "$pull"
"""
"""A pull that ends when its input closes. The shell gives what runs behind no input of its own, hence the 3."""
BUILD = """
exec 3<&0
docker build "$@" - <&3 2>&1 & build=$!
{ trap '' PIPE; while sleep 1 >/dev/null; do echo && kill -0 $$ || break; done; kill "$build"; } 2>/dev/null & beat=$!
wait "$build"; code=$?
kill "$beat"
exit "$code"
"""
"""A build that ends when nobody listens any more. Its input ends with the directory, and a step that says nothing for
minutes (pip install) would not notice: so an empty line is said each second, over ssh; here this shell is killed."""


class NodeImageProvider(Provider):
    """Present by identity: found, copied over the fabric, loaded from the operator's archive, built, or pulled."""

    compared = ("image", "identity")
    remembered = ("connection",)

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """Bring the image to the node unless it is there."""
        outs = self._ensure(props)
        return CreateResult(f"{props['connection']['node']}/{outs['image_id']}", outs)

    def renew(self, _olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
        """Bring the image that is now wanted; the former one stays, for the way back."""
        return self._ensure(news)

    def read(self, id_: str, props: Mapping[str, Any]) -> ReadResult:
        """The image with its id, or gone, and why: under a tag that was moved to another image it is gone too."""
        connection = Connection.load(props["connection"])
        reference = str(props["image"] if is_tag(props["image"]) else props["image_id"])
        found = inspect(connection, reference)
        if found and found.id == props["image_id"]:
            return ReadResult(id_, dict(props))
        now = f"is another one now ({found.id[:19]})" if found else "is not there any more"
        progress.lasting(f"Image of {connection.node}: {props['image']} {now}")
        return ReadResult("", {})

    def _ensure(self, props: Mapping[str, Any]) -> dict[str, Any]:
        connection, reference, wanted = Connection.load(props["connection"]), str(props["image"]), props.get("identity")
        context = (props.get("build") or {}).get("digest")
        found = locate(connection, reference, wanted)
        if not found or not _matches(found, wanted, context):
            bring(connection, reference, wanted, props)
            found = locate(connection, reference, wanted)
        if not found or not _matches(found, wanted, context):
            raise Fault(
                connection.node,
                f"image {reference} is {found.id if found else 'absent'} after the transfer, another one is wanted",
                "run it again; if it persists, `image` and `image_archive` name two images: correct one of them",
                f"wanted identity {wanted}, found {found.identity}" if found else "",
            )
        _name(connection, reference, found)
        return {**props, "image_id": found.id, "identity": found.identity}


def _name(connection: Connection, reference: str, found: Image) -> None:
    """See that the image is found under its name again; one that was pulled by a digest is."""
    *digest, tag = names(reference)
    if tag in found.tags or tag.startswith("sha256:") or (digest and inspect(connection, reference)):
        return
    connection.run("docker", "tag", found.id, tag, check=True)


def _matches(found: Image, wanted: str | None, context: str | None) -> bool:
    return found.identity == wanted if wanted else context in (None, found.context)


def locate(connection: Connection, reference: str, wanted: str | None) -> Image | None:
    """The image under its name, or the wanted one under any: a tag may have moved, a copy has no registry's digest."""
    found = inspect(connection, reference)
    if wanted and (found is None or found.identity != wanted):
        return stock(connection).holding(wanted) or found
    return found


def bring(connection: Connection, reference: str, wanted: str | None, props: Mapping[str, Any]) -> int:
    """Bring the image from the first source that there is; the bytes that were sent to the node.

    Args:
        connection: the node that lacks it.
        reference: its name.
        wanted: its identity, None while unknown.
        props: `source` (:meth:`Source.dump`), `archive` (path), `build` (context, dockerfile, digest); each may be
            None. With none of them the image is pulled.

    Raises:
        Fault: no source has it, or the transfer failed.
    """
    archive, build = props.get("archive"), props.get("build")
    if props.get("source"):
        source = Source.load(props["source"])
        image = locate(source.connection, reference, wanted)
        if image is None or (wanted and image.identity != wanted):
            raise Fault(
                source.connection.node, f"image {reference} has left the node", "run it again: another node is asked"
            )
        try:
            return copy(source, connection, reference, image, stock(connection))
        except NotConnected as fault:
            if not archive:
                raise
            progress.lasting(f"Image of {connection.node}: loaded from here instead; {fault}")
    if archive:
        return load(connection, Archive.open(Path(archive).expanduser(), reference), stock(connection))
    if build:
        return build_image(connection, reference, build, stock(connection))
    pull(connection, reference, stock(connection))
    return 0


def load(connection: Connection, archive: Archive, held: Stock) -> int:
    """Stream a tar of the operator's machine into the node's Docker, without the layers that it has.

    Returns:
        Bytes that were sent.

    Raises:
        Fault: no room (nothing was sent), or Docker does not take it.
    """
    layers = list(archive.image.layers)
    lowest = held.held(archive.image.layers)
    about = missing_bytes(archive.sizes, lowest)
    check_room(connection, held, FACTOR * about, f"image archive {archive.path.name}")
    meter = Meter(f"Image of {connection.node}, from {archive.path.name}", about)

    def write(sink: Counted) -> None:
        with archive.path.open("rb") as tar:
            without_held(tar, sink, layers, lowest)

    try:
        feed(connection, ("docker", "load", "--quiet"), write, meter, f"docker load of {archive.path.name}")
    except UNREADABLE as error:
        raise Fault("operator", f"image archive {archive.path}: {error}", "make it again with docker save") from None
    progress.lasting(meter.last())
    return meter.sent


def build_image(connection: Connection, reference: str, build: Mapping[str, Any], held: Stock) -> int:
    """Build on the node; the directory is streamed there.

    Returns:
        Bytes that were sent.

    Raises:
        Fault: no room for the directory alone (nothing was sent; what else a build needs cannot be known), it cannot be
            read, or the build failed, with Docker's words.
    """
    context = Path(build["context"]).expanduser()
    about = build_context.size(context)
    if not held.containerd:  # else the directory lies elsewhere than the images
        check_room(connection, held, about, f"the directory {context} that image {reference} is built from")
    # A step that fails would leave its container.
    own = ("--force-rm", "--label", f"{CONTEXT_LABEL}={build['digest']}", "--file", build["dockerfile"])
    argv = ("sh", "-c", BUILD, "sh", "--tag", reference, *own)
    meter, what = Meter(f"Image of {connection.node}, built from {context}", about), "docker build"
    try:
        feed(connection, argv, functools.partial(build_context.write, context), meter, what)
    except Fault as fault:
        if fault.cause == f"{what} failed":
            fault.remedy = f"correct {context / build['dockerfile']}"
        raise
    except (OSError, tarfile.TarError) as error:
        raise Fault("operator", f"build context: {error}", "make it readable, or correct `image_build`") from None
    progress.lasting(meter.last())
    return meter.sent


def pull(connection: Connection, reference: str, held: Stock) -> None:
    """Pull on the node, with Docker's own lines as progress.

    Raises:
        Fault: it certainly does not fit (nothing was downloaded), or no registry gives it.
    """
    size = check_download(connection, held, reference)
    of = f" {amount(size)}" if size else ""
    said: list[str] = []
    meter = Meter("", 0)

    def status() -> str:
        last = said[-1].strip() if said else "waiting for the registry"
        return f"Image of {connection.node}: pulling{of}, {meter.seconds:.0f} s: {last}"

    with started(connection, "sh", "-c", f"exec 3<&0; {PULL}", "sh", reference) as process:
        for line in follow(connection, process, status):
            said.append(line)  # noqa: PERF402 - the status reads it meanwhile
    if process.returncode:
        raise Fault(
            connection.node,
            f"image {reference} is on no node and cannot be pulled",
            "correct `image`, log in to its registry on the node, or give `image_archive` (docker save)",
            "".join(said),
        )
    progress.lasting(f"Image of {connection.node}: pulled{of} in {meter.seconds:.0f} s")


class NodeImage(Resource, module="spark", name="NodeImage"):
    """The image on one node."""

    image_id: pulumi.Output[str]
    """Docker's id of the image there (sha256:…)."""
    identity: pulumi.Output[str]
    """What the image is made of, the same on every node (:attr:`hosts.images.identity.Image.identity`)."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        image: str,
        identity: pulumi.Input[str] | None,
        image_id: str | None,
        source: Source | None,
        archive: str | None,
        build: Mapping[str, str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare the image on a node.

        Args:
            name: of the node.
            connection: to the node.
            image: reference in the settings.
            identity: of the wanted image, None where it must be built or pulled first.
            image_id: Docker's id on the node, where it is known beforehand: a preview then shows it.
            source: node to copy from.
            archive: path of a `docker save` tar here.
            build: context, dockerfile and digest of what is built from.
            opts: as usual.
        """
        props = {
            "connection": connection.dump(),
            "image": image,
            "identity": identity,
            "image_id": image_id,
            "source": source.dump() if source else None,
            "archive": archive,
            "build": dict(build) if build else None,
        }
        super().__init__(NodeImageProvider(), name, props, opts)
