"""A server that stands in for Docker's API on a socket."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

ABSENT = (404, b'{"message":"No such image"}')
Answers = dict[str, tuple[int, bytes]]
"""Status and body by path; the status 0 stands for no answer."""


@contextmanager
def docker_api(path: Path, answers: Answers) -> Iterator[dict[str, Message]]:
    """Docker gives these answers, else that there is nothing; the headers of what was asked, by path."""
    asked: dict[str, Message] = {}

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            asked[self.path] = self.headers
            status, body = answers.get(self.path, ABSENT)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    with socketserver.ThreadingUnixStreamServer(str(path), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()
