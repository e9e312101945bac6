"""Runs on the node that lacks the image, as `python3 -c`: connects to the sender and gives its stream to `docker load`.

Standard library and fabric_link only, Python 3.8 and newer. Started by providers/image_copy.py with one line of JSON on
its input: `address` and `port` of the sender, and its `token`. Docker reads the socket itself and its words are the
output. It ends as soon as its input closes, and `docker load` with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from hosts.fabric_link import connect

CONNECT_SECONDS = 10.0
NOT_CONNECTED = 3
"""Exit code when the sender cannot be reached over the fabric."""


def end_with_input(load: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the input, then leave nothing behind."""
    sys.stdin.read()
    load.kill()
    os._exit(1)


def main() -> None:
    """Receive once."""
    question = json.loads(sys.stdin.readline())
    try:
        link = connect((question["address"], question["port"]), question["token"], CONNECT_SECONDS)
    except OSError as error:
        print(error, flush=True)
        os._exit(NOT_CONNECTED)
    load = subprocess.Popen(["docker", "load", "--quiet"], stdin=link.fileno(), stderr=subprocess.STDOUT)
    link.close()
    threading.Thread(target=end_with_input, args=(load,), daemon=True).start()
    os._exit(1 if load.wait() else 0)


if __name__ == "__main__":
    main()
