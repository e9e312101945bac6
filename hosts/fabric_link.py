"""Runs on a node: the end of a copy that listens on the fabric, for whoever shows the one-time token (ADR 7, ADR 8).

Standard library only, Python 3.8 and newer; a part of the senders and receivers of images and weights.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import time
from typing import Any

CONNECT_SECONDS = 30.0
"""From the port's announcement to the receiver's token: one ssh login lies between."""
TOKEN_SECONDS = 5.0
STALL_SECONDS = 120.0
"""The receiver takes no byte for this long: the cable is out, or its disk hangs."""
HEARTBEAT_SECONDS = 0.5


def say(**words: Any) -> None:
    """Tell the operator's side."""
    print(json.dumps(words), flush=True)


def end_with_input() -> None:
    """Wait for the end of the input, which the operator's side closes, then end; what has arrived stays."""
    sys.stdin.read()
    os._exit(1)


def listen(address: str, backlog: int = 1) -> socket.socket:
    """A socket on a free port of that address; raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=backlog)


def accept(server: socket.socket, token: bytes) -> socket.socket:
    """The next connection that shows the token; others are closed. Raises OSError, socket.timeout when nobody came."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        link, _ = server.accept()
        link.settimeout(TOKEN_SECONDS)
        try:
            shown = b""
            while len(shown) < len(token):
                part = link.recv(len(token) - len(shown))
                if not part:
                    break
                shown += part
            if hmac.compare_digest(shown, token):
                return link
        except OSError:
            pass
        link.close()


def connect(place: tuple[str, int], token: str, seconds: float) -> socket.socket:
    """A connection that has shown the token; raises OSError. A sender that vanished is noticed in half a minute."""
    link = socket.create_connection(place, timeout=seconds)
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.sendall(token.encode())
    return link
