"""Runs on a node that has files of the model, as `python3 -c`: sends them over the fabric to whoever asks.

Standard library and fabric_link only, Python 3.8 and newer. Started by providers/weights_copy.py with one line of JSON
on its input: `address` to listen on, `token` that each connection must show, `root` and `files` below it. It prints
`{"port": …, "files": {NAME: [SIZE, MTIME_NS]}}` or `{"error": TEXT}`. On each connection it reads lines of JSON, `file`
and `offset`, and answers with the file's bytes from there on, nothing else. It ends when its input closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from hosts.fabric_link import STALL_SECONDS, accept, listen, say

CHUNK = 1 << 26
"""Bytes of one sendfile(2), which takes them from the page cache to the network without a copy."""
STREAMS = 32
"""Connections that may wait for their turn."""


def serve(link: socket.socket, question: dict[str, Any], sizes: dict[str, list[int]]) -> None:
    """Answer the requests of one connection; a file that changes meanwhile ends it."""
    # Blocking, so that the kernel works through a whole chunk; Python's timeout would make it one buffer at a time.
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(STALL_SECONDS), 0))
    with link, link.makefile("r") as requests:
        for line in requests:
            wanted = json.loads(line)
            size, at = sizes[wanted["file"]][0], wanted["offset"]
            with Path(question["root"], wanted["file"]).open("rb") as file:
                while at < size:
                    sent = os.sendfile(link.fileno(), file.fileno(), at, min(CHUNK, size - at))
                    if not sent:
                        return
                    at += sent
                # The page cache is memory that a Spark's GPU could not have (vllm-project/vllm#35313).
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def serve_quietly(link: socket.socket, question: dict[str, Any], sizes: dict[str, list[int]]) -> None:
    """A connection that breaks is told by the receiver."""
    try:
        serve(link, question, sizes)
    except (OSError, ValueError, KeyError) as error:
        say(broken=str(error))


def main() -> None:
    """Listen until the input closes."""
    question = json.loads(sys.stdin.readline())
    try:
        sizes = {}  # type: dict[str, list[int]]
        for name in question["files"]:
            about = Path(question["root"], name).stat()
            sizes[name] = [about.st_size, about.st_mtime_ns]
        server = listen(question["address"], STREAMS)
    except OSError as error:
        say(error=f"{error.strerror}: {error.filename or question['address']}")
        sys.exit(1)

    def answer() -> None:
        with server:  # closed with the loop: who comes then is refused, and does not wait for ever
            while True:
                with contextlib.suppress(socket.timeout):  # however long a login takes: the input ends this
                    link = accept(server, question["token"].encode())
                    threading.Thread(target=serve_quietly, args=(link, question, sizes), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()
    say(port=server.getsockname()[1], files=sizes)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
