"""A small server that answers as the Hugging Face hub does, for one model, to whoever shows the token.

Routes and headers as huggingface_hub 2.4 asks for them: model_info, list_repo_tree, hf_hub_download. Large files are
answered by a redirect with X-Linked-Etag, small ones directly. A model may be private, so that nobody else is told of
it, or gated: then what it consists of is public, and its files are not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "4" * 40
NAME = "org/made-up"
LARGE = 10_000
INVALID = "Invalid credentials in Authorization header"
"""To a token that nobody has."""


class Hub(ThreadingHTTPServer):
    """Serves the files of one model on this machine's loopback."""

    def __init__(self, files: Mapping[str, bytes], token: str | None = None, *, gated: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = files
        self.token = token
        self.gated = gated
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        path, _, _ = self.path.partition("?")
        self.server.asked.append(f"{self.command} {path}")
        shown = self.headers.get("Authorization")
        known = self.server.token is None or shown == f"Bearer {self.server.token}"
        if path.startswith("/cdn/"):  # what a signed link leads to wants no token
            self.content(self.server.files[path.removeprefix("/cdn/")], {}, body=body)
        elif not path.startswith(("/api/models/" + NAME, f"/{NAME}/resolve/")):
            self.refuse("RepoNotFound", "Repository not found", 401)
        elif self.server.gated and not known and "/resolve/" in path:
            self.refuse("GatedRepo", f"Access to model {NAME} is restricted", 403 if shown else 401)
        elif not (self.server.gated or known):
            self.refuse(*(("", INVALID) if shown else ("RepoNotFound", "Repository not found")), 401)
        elif found := re.fullmatch(rf"/{NAME}/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], found[2], body=body)
        elif not re.search(rf"/(main|{COMMIT})(/|$)", path):
            self.refuse("RevisionNotFound", "Invalid rev id", 404)
        elif "/tree/" in path:
            self.json([self.entry(name) for name in self.server.files])
        else:
            siblings = [
                {"rfilename": name, "size": len(data), "blobId": git(data), **lfs(data)}
                for name, data in self.server.files.items()
            ]
            self.json({"_id": "1", "id": NAME, "sha": COMMIT, "private": False, "siblings": siblings})

    def entry(self, name: str) -> dict[str, Any]:
        """One file of the tree."""
        data = self.server.files[name]
        entry = {"type": "file", "oid": git(data), "size": len(data), "path": name}
        return entry | lfs(data, key="oid")

    def resolve(self, revision: str, name: str, *, body: bool) -> None:
        """A file of a revision."""
        data = self.server.files.get(name)
        if data is None or revision not in ("main", COMMIT):
            self.refuse("EntryNotFound", "Entry not found", 404)
        elif len(data) >= LARGE:
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            self.send_response(302)
            cdn = f"http://localhost:{self.server.server_address[1]}/cdn/{name}"  # another host, as the hub's is
            linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(data)), "X-Repo-Commit": COMMIT}
            for header, value in {**linked, "Location": cdn, "Content-Length": "0"}.items():
                self.send_header(header, value)
            self.end_headers()
        else:
            self.content(data, {"ETag": f'"{git(data)}"', "X-Repo-Commit": COMMIT}, body=body)

    def content(self, data: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        """Bytes of a file, from where they are wanted."""
        first = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        for header, value in {**headers, "Content-Length": str(len(data) - first), "Accept-Ranges": "bytes"}.items():
            self.send_header(header, value)
        self.end_headers()
        if body:
            self.wfile.write(data[first:])

    def json(self, value: Any) -> None:
        """An answer of the API."""
        self.content(json.dumps(value).encode(), {"Content-Type": "application/json"}, body=True)

    def refuse(self, code: str, text: str, status: int) -> None:
        """An error with the hub's own headers."""
        self.send_response(status)
        for header, value in {"X-Error-Code": code, "X-Error-Message": text, "Content-Length": "0"}.items():
            if value:
                self.send_header(header, value)
        self.end_headers()


def lfs(data: bytes, key: str = "sha256") -> dict[str, Any]:
    """What the API tells of a large file's content; the key of its hash differs by route."""
    about = {key: hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return {"lfs": about} if len(data) >= LARGE else {}


def git(data: bytes) -> str:
    """Git's hash of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's choice
