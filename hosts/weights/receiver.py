"""Runs on a node that lacks files of the model, as `python3 -c`: fetches them from a sender, several at once.

Standard library, fabric_link, look and links only, Python 3.8 and newer. Started by
providers/weights_copy.py with one line of JSON on its input: `address`, `port` and `token` of the sender, `root`,
`files` (name: [size, mtime in ns]), `streams`, and `anew`, whether files of the right size are fetched too. It prints
`{"waiting": true}` while another one writes there, then `{"need": BYTES, "kept": BYTES of parts that were there}`,
twice a second `{"got": BYTES}`, and at last `{"done": BYTES}` or `{"error": TEXT, "of": "connect" | "link" | "disk"}`.
It ends as soon as its input closes; what has arrived by then is gone on with by the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hosts.fabric_link import HEARTBEAT_SECONDS, connect, end_with_input, say
from hosts.weights.links import settle
from hosts.weights.look import PARTIAL

BUFFER = 1 << 20
CONNECT_SECONDS = 10.0
SLACK = 1.01
"""What the file system needs for itself."""


class BrokenError(OSError):
    """The sender ended before the file did."""


class Receiver:
    """One copy: what is wanted, and how far it is."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.root = Path(question["root"])
        self.sizes = question["files"]  # type: dict[str, list[int]]
        self.got = [0] * question["streams"]
        self.failed = []  # type: list[tuple[str, str]]
        self.todo = queue.Queue()  # type: queue.Queue[str]

    def part(self, name: str) -> Path:
        """Where a file is until it is whole: of this version of it, so that no two are ever mixed."""
        size, mtime = self.sizes[name]
        path = self.root / name
        return path.with_name(f"{path.name}.{size}-{mtime:x}{PARTIAL}")

    def wait_for_others(self) -> None:
        """Wait until no other receiver writes there, to this one's end: two would mix their bytes in one part.

        The other is of a run whose operator lost the network: sshd notices that a quarter of an hour later. It goes on
        until it has all, or its sender ends.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        directory = os.open(self.root, os.O_RDONLY)
        with contextlib.suppress(OSError):  # NFS locks no directories
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(waiting=True)
                fcntl.flock(directory, fcntl.LOCK_EX)

    def plan(self) -> int:
        """Order what is to be fetched, the largest first, and say how much it is; the number of files.

        Raises:
            OSError: a directory cannot be made, or there is no room.
        """
        left = {}  # type: dict[str, int]
        kept = 0
        for name, (size, _) in self.sizes.items():
            path, part = self.root / name, self.part(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            for other in path.parent.iterdir():
                if other.name.startswith(f"{path.name}.") and other.name.endswith(PARTIAL) and other != part:
                    other.unlink()  # of another version of the file
            if path.is_file() and path.stat().st_size == size and not self.question["anew"]:
                continue
            there = part.stat().st_size if part.exists() else 0
            kept += there
            left[name] = size - there
        need = sum(left.values())
        disk = os.statvfs(self.existing())
        if need * SLACK > disk.f_bavail * disk.f_frsize:
            raise OSError(f"no room: {need} bytes needed, {disk.f_bavail * disk.f_frsize} free")
        say(need=need, kept=kept)
        for name in sorted(left, key=lambda one: -left[one]):
            self.todo.put(name)
        return len(left)

    def existing(self) -> Path:
        """The directory, or what is there above it."""
        return next(one for one in (self.root, *self.root.parents) if one.exists())

    def stream(self, number: int) -> None:
        """Fetch files over one connection until none is left, or another stream has failed."""
        question = self.question
        try:
            link = connect((question["address"], question["port"]), question["token"], CONNECT_SECONDS)
        except OSError as error:
            self.failed.append(("connect", str(error)))
            return
        with link:
            try:
                while not self.failed:
                    self.fetch(number, link, self.todo.get_nowait())
            except queue.Empty:
                pass
            except BrokenError as error:
                self.failed.append(("link", str(error)))
            except OSError as error:
                self.failed.append(("disk", str(error)))

    def fetch(self, number: int, link: socket.socket, name: str) -> None:
        """Bring one file, from where its part ends; it gets its name when it is whole."""
        size, mtime = self.sizes[name]
        part = self.part(name)
        buffer = memoryview(bytearray(BUFFER))
        with part.open("ab", buffering=0) as file:
            at = file.tell()
            ask(link, name, at)
            while at < size:
                count = take(link, buffer[: size - at])
                write(file.fileno(), buffer[:count])
                at += count
                self.got[number] += count
            # On the disk before it has its name; and the page cache is memory that a Spark's GPU could not have.
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.utime(part, ns=(mtime, mtime))
        settle(self.root, part, name)

    def run(self) -> dict[str, Any]:
        """Fetch everything; what is said at last."""
        try:
            self.wait_for_others()
            count = min(self.plan(), self.question["streams"])
            streams = [threading.Thread(target=self.stream, args=(number,), daemon=True) for number in range(count)]
            for one in streams:
                one.start()
            for one in streams:
                one.join()
            if self.failed:
                of, text = self.failed[0]
                return {"error": text, "of": of}
        except OSError as error:
            return {"error": str(error), "of": "disk"}
        return {"done": sum(self.got)}

    def beat(self) -> None:
        """Say now and then how far it is; a closed session ends the process here."""
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            try:
                say(got=sum(self.got))
            except OSError:
                os._exit(1)


def ask(link: socket.socket, name: str, at: int) -> None:
    """Request a file from there on."""
    try:
        link.sendall(json.dumps({"file": name, "offset": at}).encode() + b"\n")
    except OSError as error:
        raise BrokenError(str(error)) from None


def take(link: socket.socket, buffer: memoryview) -> int:
    """Bytes that have arrived, at least one."""
    try:
        count = link.recv_into(buffer)
    except OSError as error:
        raise BrokenError(str(error)) from None
    if not count:
        raise BrokenError("the sender ended it")
    return count


def write(file: int, data: memoryview) -> None:
    """Write all of it: a full disk may take a part."""
    while data:
        data = data[os.write(file, data) :]


def main() -> None:
    """Receive once."""
    receiver = Receiver(json.loads(sys.stdin.readline()))
    for end in (end_with_input, receiver.beat):
        threading.Thread(target=end, daemon=True).start()
    last = receiver.run()
    say(**last)
    os._exit(1 if "error" in last else 0)


if __name__ == "__main__":
    main()
