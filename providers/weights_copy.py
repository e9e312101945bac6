"""Files of the model from one node to another over the fabric: several streams, resumed where they ended (ADR 8)."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hosts import fabric_link
from hosts.bundle import bundle, program
from hosts.faults import Fault
from hosts.images.stock import amount
from hosts.ssh import Connection
from hosts.weights import digest as weights_digest
from hosts.weights import links as weights_links
from hosts.weights import look as model_look
from hosts.weights import receiver as weights_receiver
from hosts.weights import sender as weights_sender
from providers import progress
from providers.image_copy import NotConnected, Source
from providers.transfer import Meter, ask, follow, started

SENDER = program(fabric_link, weights_sender)
RECEIVER = program(fabric_link, model_look, weights_links, weights_receiver)
DIGEST = program(fabric_link, weights_digest)
WHAT = "the model"
CANNOT_WRITE = "the model cannot be written"


@dataclass(frozen=True)
class Order:
    """What is to be brought to a node from one other."""

    origin: str
    """Directory on the source; paths of files are below it."""
    root: str
    """The same on the target."""
    files: Mapping[str, int]
    """Size of each in bytes."""
    streams: int
    anew: bool = False
    """Fetch files of the right size too: their checksums are wrong."""


class ByteMeter(Meter):
    """Progress in bytes, rate, and time left."""

    waiting = False
    """Whether another copy still writes there."""

    def __str__(self) -> str:
        if not self.sent:
            why = ", an earlier run's copy is still on its way there: waiting for its end" if self.waiting else ""
            return f"{self.what}: {self.seconds:.0f} s{why}"
        left = max(0.0, self.about - self.sent) / (self.sent / max(0.001, self.seconds))
        return f"{self.what}: {amount(self.sent)} of {amount(self.about)}, {self.rate}/s, {duration(left)} left"

    def last(self, kept: int = 0) -> str:
        """What was achieved, and how many bytes of an earlier run it went on from."""
        return super().last() + (f", {amount(kept)} were there of an earlier run" if kept else "")


def duration(seconds: float) -> str:
    """Time as people read it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def copy(source: Source, target: Connection, order: Order) -> int:
    """Bring the files of an order to the target; what it has in that size already is not sent.

    Returns:
        Bytes that went over the fabric.

    Raises:
        NotConnected: the target does not reach the source over the fabric; nothing was sent.
        Fault: a file has changed since the survey, no room (nothing was sent), interrupted, or one of the ends failed.
            What has arrived stays, and the next run goes on from there.
    """
    token = secrets.token_hex(32)
    meter = ByteMeter(f"Model of {target.node}, from {source.connection.node}", sum(order.files.values()))
    words: dict[str, Any] = {}
    with contextlib.ExitStack() as ends:
        sender = ends.enter_context(started(source.connection, "python3", "-u", "-c", SENDER))
        question = {"address": source.address, "token": token, "root": order.origin, "files": list(order.files)}
        ask(sender, question)
        sent = follow(source.connection, sender, lambda: str(meter), WHAT)
        offer = _offer(source.connection, sent, order.files)
        receiver = ends.enter_context(started(target, "python3", "-u", "-c", RECEIVER))
        question = {"address": source.address, "port": offer["port"], "token": token, "root": order.root}
        more = {"files": offer["files"], "streams": order.streams, "anew": order.anew}
        ask(receiver, {**question, **more})
        for words_now in words_of(follow(target, receiver, lambda: str(meter), WHAT), words):
            meter.waiting = "waiting" in words and "need" not in words
            meter.about = words_now.get("need", meter.about)
            meter.update(words_now.get("got", meter.sent))
    if "done" not in words:
        raise _fault(source, target, offer["port"], words)
    meter.sent = int(words["done"])
    progress.lasting(meter.last(words.get("kept", 0)))
    return meter.sent


def point(target: Connection, root: str, links: Mapping[str, str], refs: Mapping[str, str]) -> None:
    """Set symbolic links and a hub cache's refs on a node, once what they lead to is there; they need no source.

    Raises:
        Fault: the directory does not take them.
    """
    script = f"{bundle(model_look, weights_links)}\nmodule.put({root!r}, {dict(links)!r}, {dict(refs)!r})\n"
    done = target.run("python3", "-", stdin=script)
    if done.returncode:
        raise Fault(target.node, CANNOT_WRITE, f"see to it: {target.by_hand()}", done.stderr or done.stdout)


def _offer(connection: Connection, said: Iterator[str], wanted: Mapping[str, int]) -> dict[str, Any]:
    """The sender's first words: its port, and the files as it has them now."""
    words: dict[str, Any] = {}
    for now in words_of(said, words):
        if "port" in now:
            break
    if "port" not in words:
        evidence = str(words.get("error") or words.get("said", ""))
        raise Fault(
            connection.node, "sending the model failed", f"look at it: {connection.by_hand()}", evidence
        )  # fmt: skip
    for file, (size, _) in words["files"].items():
        if size != wanted[file]:
            raise Fault(
                connection.node,
                f"{file} has {size} bytes, {wanted[file]} a moment ago: somebody is writing it",
                "run it again when that has ended: pulumi up",
            )
    return words


def words_of(said: Iterator[str], words: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Objects of JSON as they come, a line each, also gathered in `words`; other lines are gathered under `said`."""
    for line in said:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):  # what a shell's start or ssh says
            found = {}
            words["said"] = words.get("said", "") + line
        words.update(found)
        yield found


def _fault(source: Source, target: Connection, port: int, words: Mapping[str, Any]) -> Fault:
    """What the receiver's last words mean."""
    evidence = str(words.get("error") or words.get("said", ""))
    match words.get("of"):
        case "connect":
            return NotConnected(
                target.node,
                f"{source.connection.node} is not reached on {source.address} (fabric) at port {port}",
                f"let {target.node} connect to it: a firewall, or the cable? {source.connection.by_hand()}",
                evidence,
            )
        case "disk":
            return Fault(target.node, CANNOT_WRITE, f"see to it: {target.by_hand()}", evidence)
        case _:
            return Fault(target.node, "the copy of the model broke off", "run it again: it goes on from here", evidence)


def checksums(connection: Connection, root: str, files: Sequence[str], size: int) -> dict[str, str]:
    """Checksum of each file on a node.

    Raises:
        Fault: one cannot be read, or interrupted.
    """
    found: dict[str, str] = {}
    words: dict[str, Any] = {}
    meter = ByteMeter(f"Model of {connection.node}: checksums", size)
    with started(connection, "python3", "-u", "-c", DIGEST) as process:
        ask(process, {"root": root, "files": list(files)})
        for now in words_of(follow(connection, process, lambda: str(meter), WHAT), words):
            meter.update(now.get("got", meter.sent))
            if "file" in now:
                found[now["file"]] = now["sum"]
    if "done" not in words:
        evidence = str(words.get("error") or words.get("said", ""))
        raise Fault(connection.node, "the model cannot be read", f"look at it: {connection.by_hand()}", evidence)
    return found


def differing(source: Source, target: Connection, order: Order) -> list[str]:
    """Files of an order whose checksums on the target are not those of the source, or of their own names.

    A blob of the hub's cache is named by its checksum, so nothing is read on the source.
    """
    size = sum(order.files.values())
    named = {file: file.rpartition("/")[2] for file in order.files if file.startswith("blobs/")}
    with ThreadPoolExecutor(2) as pool:
        there = pool.submit(checksums, target, order.root, list(order.files), size)
        rest = [file for file in order.files if file not in named]
        right = checksums(source.connection, order.origin, rest, sum(order.files[file] for file in rest)) | named
        return [file for file, found in there.result().items() if found != right[file]]
