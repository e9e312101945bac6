"""An image from one node to another over the fabric: only the layers that the target lacks, no file, no key (ADR 7)."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosts import fabric_link
from hosts.bundle import program
from hosts.faults import Fault
from hosts.images import receiver as image_receiver
from hosts.images import sender as image_sender
from hosts.images.identity import Image, is_tag
from hosts.images.stock import FACTOR, Stock, check_room, layer_sizes, missing_bytes
from hosts.ssh import Connection
from providers import progress
from providers.image_saves import saving
from providers.transfer import END_SECONDS, Meter, ask, follow, started

SENDER = program(fabric_link, image_sender)
RECEIVER = program(fabric_link, image_receiver)


class NotConnected(Fault):
    """The target does not reach the source over the fabric."""


class Refused(Fault):
    """The target's Docker did not take what was sent."""


@dataclass(frozen=True)
class Source:
    """A node that has the image, and its address on the fabric."""

    connection: Connection
    address: str

    def dump(self) -> dict[str, Any]:
        """Plain data for Pulumi's state."""
        return {"connection": self.connection.dump(), "address": self.address}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Source:
        """What :meth:`dump` wrote."""
        return cls(Connection.load(data["connection"]), data["address"])


def copy(source: Source, target: Connection, reference: str, image: Image, held: Stock, *, whole: bool = False) -> int:
    """Copy `image`, which the source has, to the target, which has not.

    Args:
        source: node that has it.
        target: node that gets it.
        reference: name of the image on the source; the copy has it too if it is a tag.
        image: the image as the source has it.
        held: what the target has.
        whole: send every layer, even those that the target has.

    Returns:
        Bytes that went over the fabric.

    Raises:
        NotConnected: the target does not reach the source over the fabric; nothing was sent.
        Fault: no room (nothing was sent), interrupted, or one of the ends failed.
    """
    lowest = 0 if whole else held.held(image.layers)
    about = missing_bytes(layer_sizes(source.connection, image), lowest)
    check_room(target, held, FACTOR * about, f"image {reference}")
    name = reference if is_tag(reference) else image.id
    try:
        with saving(source.connection, target.node, reference, image.size):
            meter = Meter(f"Image of {target.node}, from {source.connection.node}", about)
            meter.sent = _stream(source, target, name, image, lowest, meter=meter)
    except Refused as refusal:
        if not lowest:
            raise
        # Layers removed meanwhile, or a Docker that wants them all after all.
        progress.lasting(
            f"Image of {target.node}: the missing layers alone are refused, all are sent: {refusal.evidence}"
        )
        return copy(source, target, reference, image, held, whole=True)
    progress.lasting(meter.last() + (f", {lowest} of {len(image.layers)} layers were there" if lowest else ""))
    return meter.sent


def _stream(source: Source, target: Connection, name: str, image: Image, lowest: int, *, meter: Meter) -> int:
    token = secrets.token_hex(32)
    with contextlib.ExitStack() as ends:
        sender = ends.enter_context(started(source.connection, "python3", "-u", "-c", SENDER))
        question = {"reference": name, "layers": image.layers, "held": lowest, "token": token}
        ask(sender, {**question, "address": source.address})
        receiver: subprocess.Popen[str] | None = None
        words: dict[str, Any] = {}
        said: list[str] = []
        for line in follow(source.connection, sender, lambda: str(meter)):
            try:
                words |= json.loads(line)
            except (ValueError, TypeError):
                said.append(line)
                continue
            if "port" in words and receiver is None:
                receiver = ends.enter_context(started(target, "python3", "-u", "-c", RECEIVER))
                ask(receiver, {"address": source.address, "port": words["port"], "token": token})
            meter.update(words.get("sent", 0))
            if receiver and receiver.poll() and "error" not in words:
                break  # the target's Docker is done with it: its words say why
        loaded: list[str] = []
        if receiver and words.get("of") == "link":
            with contextlib.suppress(subprocess.TimeoutExpired):
                receiver.wait(END_SECONDS)
        if receiver and ("error" not in words or receiver.poll() is not None):
            loaded = list(follow(target, receiver, lambda: f"{meter.what}: all sent, Docker unpacks it"))
    _judge(source, target, words, said=said, receiver=receiver, loaded=loaded)
    return int(words["done"])


def _judge(
    source: Source,
    target: Connection,
    words: Mapping[str, Any],
    *,
    said: list[str],
    receiver: subprocess.Popen[str] | None,
    loaded: list[str],
) -> None:
    """Raise the fault of the end that failed first."""
    look = f"look at it: {source.connection.by_hand()}"
    if words.get("of") == "save" or receiver is None:
        evidence = str(words.get("error") or "".join(said))
        raise Fault(source.connection.node, "sending the image failed", look, evidence)
    if receiver.returncode == image_receiver.NOT_CONNECTED:
        raise NotConnected(
            target.node,
            f"{source.connection.node} is not reached on {source.address} (fabric) at port {words['port']}",
            f"let {target.node} connect to it: a firewall, or the cable? {source.connection.by_hand()}",
            "".join(loaded),
        )
    if receiver.returncode:
        raise Refused(target.node, "docker load failed", f"look at it: {target.by_hand()}", "".join(loaded))
    if "done" not in words:
        raise Fault(source.connection.node, "the copy broke off", look, str(words.get("error") or "".join(said)))
