"""Runs on a node as `python3 -c`, read-only: checksums of files of the model.

Standard library and fabric_link only, Python 3.8 and newer. Started by providers/weights_copy.py with one line of JSON
on its input: `root` and `files`. It prints twice a second `{"got": BYTES}`, for each file `{"file": NAME, "sum": HEX}`,
and at last `{"done": BYTES}` or `{"error": TEXT}`. It ends as soon as its input closes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hosts.fabric_link import HEARTBEAT_SECONDS, end_with_input, say

BUFFER = 1 << 20
THREADS = 4


class Work:
    """Bytes that have been read."""

    got = 0


def checksum(path: Path, work: Work) -> str:
    """SHA-256 of a file; of a blob that the hub names by git's hash, that one."""
    # The hub's cache names large files by their SHA-256, small ones by git's SHA-1 of a blob.
    size = path.stat().st_size
    git = path.parent.name == "blobs" and re.match(r"[0-9a-f]{40}$", path.name)
    hashed = hashlib.sha1(b"blob %d\0" % size) if git else hashlib.sha256()  # noqa: S324 - git's choice
    buffer = memoryview(bytearray(BUFFER))
    with path.open("rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return hashed.hexdigest()
            hashed.update(buffer[:count])
            work.got += count


def beat(work: Work) -> None:
    """Say now and then how far it is."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        say(got=work.got)


def main() -> None:
    """Answer once."""
    question, work = json.loads(sys.stdin.readline()), Work()
    threading.Thread(target=end_with_input, daemon=True).start()
    threading.Thread(target=beat, args=(work,), daemon=True).start()
    files = [Path(question["root"], name) for name in question["files"]]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for name, found in zip(question["files"], pool.map(lambda path: checksum(path, work), files)):  # noqa: B905
                say(file=name, sum=found)
    except OSError as error:
        say(error=f"{error.strerror}: {error.filename}")
        os._exit(1)
    say(done=work.got)
    os._exit(0)


if __name__ == "__main__":
    main()
