"""Runs on the node that has the image, as `python3 -c`: sends it once over the fabric, without the layers not needed.

Standard library and fabric_link only, Python 3.8 and newer. Started by providers/image_copy.py with one line of JSON on
its input: `address` to listen on, `token` that the receiver must show, `reference` for `docker save`, `layers` (diff
ids, lowest first) and `held`, how many of the lowest the target has. It prints `{"port": …}`, twice a second
`{"sent": BYTES}`, and at last `{"done": BYTES}` or `{"error": TEXT, "of": "save" | "link"}`. It ends as soon as its
input closes.

:func:`without_held` serves archives of the operator's machine too.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from typing import IO, Any

from hosts.fabric_link import HEARTBEAT_SECONDS, STALL_SECONDS, accept, listen, say

CHUNK = 1 << 16
"""A pipe's worth. Measured: 2 GB/s of one core's time, where chunks of 128 KiB and more cost three times as much."""


class Counted(io.RawIOBase):
    """A sink that knows how much went through it."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.count = 0

    def write(self, data: Any) -> int:
        """Write all of it."""
        self.sink(data)
        self.count += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written; tarfile asks."""
        return self.count


def chain_ids(layers: list[str]) -> list[str]:
    """Id of each layer together with all below it, as Docker and the OCI image specification compute it."""
    chain = []  # type: list[str]
    for layer in layers:
        chain.append("sha256:" + hashlib.sha256(f"{chain[-1]} {layer}".encode()).hexdigest() if chain else layer)
    return chain


def raw_members(text: str) -> dict[str, str]:
    """Members of a compact JSON object, each value as it is written."""
    decoder, found, at = json.JSONDecoder(), {}, 1
    while text[at] != "}":
        key, colon = decoder.raw_decode(text, at)
        _, end = decoder.raw_decode(text, colon + 1)
        found[key] = text[colon + 1 : end]
        at = end + (text[end] == ",")
    return found


def legacy_layer(directory: str, described: bytes, chain: list[str]) -> int | None:
    """Which layer a directory of Docker's older format holds, from its file `json`; None when that cannot be told.

    The manifest that says it comes last in the stream. But the directory's name is a hash over that JSON and the
    layer's chain id (moby image/v1/imagev1.go, CreateID; image/tarexport/save.go), so each candidate can be checked.
    """
    try:
        members = raw_members(described.decode())
    except (ValueError, IndexError):
        return None
    members.pop("id", None)
    parent = members.pop("parent", None)
    if parent:
        members["parent"] = f'"sha256:{parent[1:]}'
    for left_out in ((), ("os",)):  # `os` is added after the hash is taken
        kept = {key: value for key, value in members.items() if key not in left_out}
        for index, layer in enumerate(chain):
            hashed = {**kept, "layer_id": f'"{layer}"'}
            text = ",".join(f'"{key}":{hashed[key]}' for key in sorted(hashed))
            if hashlib.sha256(f"{{{text}}}".encode()).hexdigest() == directory:
                return index
    return None


def without_held(source: IO[bytes], sink: Counted, layers: list[str], held: int) -> None:
    """Copy a `docker save` stream, leaving out the files of layers that the target has.

    Both formats: directories with layer.tar (to Docker 24), and OCI blobs named by diff id (from 25, graph drivers).
    What cannot be told to be a held layer is kept: the copy is then larger, never wrong.

    Raises:
        tarfile.TarError: the stream is no tar or ends early.
    """
    # A layer that occurs again above is wanted there, and is saved once.
    needless = {layer for layer in layers[:held] if layer not in layers[held:]}
    chain = chain_ids(layers)
    dropped = set()  # type: set[str]
    with tarfile.open(fileobj=source, mode="r|*", bufsize=CHUNK) as incoming:  # noqa: SIM117 - as Python 3.8 has it
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as outgoing:
            outgoing.copybufsize = CHUNK  # type: ignore[attr-defined]
            for member in incoming:
                directory, _, name = member.name.rpartition("/")
                content = incoming.extractfile(member) if member.isreg() else None  # type: Any
                if needless and content and name == "json":
                    described = content.read()
                    index = legacy_layer(directory, described, chain)
                    if index is not None and layers[index] in needless:
                        dropped.add(directory + "/layer.tar")
                    content = io.BytesIO(described)
                blob = "sha256:" + name if directory == "blobs/sha256" else ""
                if not (content and (member.name in dropped or blob in needless)):
                    outgoing.addfile(member, content)


class Work:
    """What must end when the input closes."""

    save = None  # type: subprocess.Popen[bytes] | None
    sink = Counted(None)

    def end_with_input(self) -> None:
        """Wait for the end of the input, then leave nothing behind."""
        sys.stdin.read()
        if self.save:
            self.save.kill()
        os._exit(1)

    def beat(self) -> None:
        """Say now and then how far it is; a closed session ends the process here."""
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            try:
                say(sent=self.sink.count)
            except OSError:
                if self.save:
                    self.save.kill()
                os._exit(1)


def send(question: dict[str, Any], work: Work) -> dict[str, Any]:
    """Listen, send the image once; what is said at last."""
    address = question["address"]
    try:
        with listen(address) as server:
            say(port=server.getsockname()[1])
            link = accept(server, question["token"].encode())
    except OSError as error:
        return {"error": f"listening on {address}: {error or 'nobody came'}", "of": "link"}
    with link:
        link.settimeout(STALL_SECONDS)
        work.sink = Counted(link.sendall)
        argv = ["docker", "save", question["reference"]]
        work.save = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert work.save.stdout and work.save.stderr  # noqa: S101, PT018 - opened as pipes
        try:
            without_held(work.save.stdout, work.sink, question["layers"], question["held"])
            while work.save.stdout.read(CHUNK):
                pass  # what pads the tar
        except OSError as error:
            work.save.kill()
            return {"error": str(error), "of": "link"}
        except tarfile.TarError as error:
            work.save.kill()
            return {"error": work.save.stderr.read().decode("utf-8", "replace") or str(error), "of": "save"}
        if work.save.wait():
            return {"error": work.save.stderr.read().decode("utf-8", "replace"), "of": "save"}
        link.shutdown(socket.SHUT_WR)
    return {"done": work.sink.count}


def main() -> None:
    """Answer the one question on the input."""
    question, work = json.loads(sys.stdin.readline()), Work()
    for end in (work.end_with_input, work.beat):
        threading.Thread(target=end, daemon=True).start()
    last = send(question, work)
    say(**last)
    sys.stdout.flush()
    os._exit(1 if "error" in last else 0)


if __name__ == "__main__":
    main()
