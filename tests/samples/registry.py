"""A small registry that answers `docker pull`, and the tiny images in it: Docker Registry HTTP API v2, read only.

Routes, headers and errors as the distribution specification has them (opencontainers/distribution-spec, spec.md), the
manifests in Docker's schema 2. Standard library only: a test runs it on a node.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "org/tiny"
PREFIX = "application/vnd.docker"
MANIFEST = f"{PREFIX}.distribution.manifest.v2+json"
LIST = f"{PREFIX}.distribution.manifest.list.v2+json"
CONFIG = f"{PREFIX}.container.image.v1+json"
LAYER = f"{PREFIX}.image.rootfs.diff.tar.gzip"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Tiny:
    """An image of layers with one file of random bytes each, the same wherever it is made."""

    architecture: str
    seeds: Sequence[int]
    """One for each layer, lowest first."""
    size: int = 100_000
    """Bytes of each file."""

    @property
    def layers(self) -> list[bytes]:
        """The layers as tars."""
        return [_tar(f"file-{n}", random.Random(seed).randbytes(self.size)) for n, seed in enumerate(self.seeds)]  # noqa: S311 - no secret

    @property
    def config(self) -> bytes:
        """The configuration; its digest is Docker's id of the image on graph drivers."""
        rootfs = {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]}
        told = {"architecture": self.architecture, "os": "linux", "config": {"Cmd": ["/file-0"]}, "rootfs": rootfs}
        return json.dumps(told).encode()

    def save(self, path: Path, tag: str) -> Path:
        """Write it as `docker save` does (to Docker 24)."""
        layers = {f"{n}/layer.tar": layer for n, layer in enumerate(self.layers)}
        told = [{"Config": "config.json", "RepoTags": [tag], "Layers": list(layers)}]
        with tarfile.open(path, "w") as tar:
            for name, data in {
                "config.json": self.config,
                **layers,
                "manifest.json": json.dumps(told).encode(),
            }.items():
                _add(tar, name, data)
        return path


def packed(layer: bytes) -> bytes:
    """A layer as a registry has it."""
    return gzip.compress(layer, mtime=0)


def _tar(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        _add(tar, name, data)
    return made.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


class Registry(ThreadingHTTPServer):
    """Serves images of one name on this machine's loopback, where Docker asks without TLS."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Answer)
        self.manifests: dict[str, tuple[str, bytes]] = {}
        """Media type and text, by tag and by digest."""
        self.blobs: dict[str, bytes] = {}
        self.stalling: set[str] = set()
        """Blobs whose first download stops halfway, until the client has left."""

    def add(self, image: Tiny, tag: str = "", *, claimed: int = 0) -> dict[str, Any]:
        """Serve an image; the entry for a list. Its layers may claim to be larger than they are."""
        layers = [packed(layer) for layer in image.layers]
        self.blobs |= {digest(blob): blob for blob in (image.config, *layers)}
        entries = [{"mediaType": LAYER, "size": claimed or len(one), "digest": digest(one)} for one in layers]
        config = {"mediaType": CONFIG, "size": len(image.config), "digest": digest(image.config)}
        text = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": entries}
        return self._keep(MANIFEST, text, tag) | {"platform": {"architecture": image.architecture, "os": "linux"}}

    def add_list(self, tag: str, entries: Sequence[dict[str, Any]]) -> str:
        """Serve images of several platforms under one name; the list's digest."""
        found: str = self._keep(LIST, {"schemaVersion": 2, "mediaType": LIST, "manifests": list(entries)}, tag)[
            "digest"
        ]
        return found

    def _keep(self, kind: str, told: dict[str, Any], tag: str) -> dict[str, Any]:
        text = json.dumps(told).encode()
        for reference in filter(None, (tag, digest(text))):
            self.manifests[reference] = (kind, text)
        return {"mediaType": kind, "size": len(text), "digest": digest(text)}


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Registry
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # what it cannot read (TLS) has a status line too: Docker then goes on without

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def log_request(self, *_: Any) -> None:
        """A line for each request that could be read: a test counts downloads by them."""
        if self.command:
            print(f"{self.command} {self.path}\n", end="", flush=True)  # whole: others write too

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        found = re.fullmatch(rf"/v2/{NAME}/(manifests|blobs)/([^/]+)", self.path)
        if self.path == "/v2/":
            self.content("application/json", b"{}", "", body=body)
        elif found is None:
            self.refuse("NAME_UNKNOWN", "repository name not known to registry")
        elif found[1] == "manifests" and found[2] in self.server.manifests:
            kind, text = self.server.manifests[found[2]]
            self.content(kind, text, digest(text), body=body)
        elif found[1] == "blobs" and found[2] in self.server.blobs:
            self.content("application/octet-stream", self.server.blobs[found[2]], found[2], body=body)
        else:
            self.refuse(f"{found[1][:-1].upper()}_UNKNOWN", f"{found[1][:-1]} unknown")

    def content(self, kind: str, data: bytes, named: str, *, body: bool) -> None:
        """An answer with a body, of which HEAD leaves out the bytes."""
        self.send_response(200)
        headers = {"Docker-Distribution-Api-Version": "registry/2.0", "Docker-Content-Digest": named}
        for header, value in {**headers, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            if value:
                self.send_header(header, value)
        self.end_headers()
        if body and named in self.server.stalling:
            self.server.stalling.remove(named)
            self.wfile.write(data[: len(data) // 2])
            self.rfile.read(1)  # nothing comes but the end
            self.close_connection = True
        elif body:
            self.wfile.write(data)

    def refuse(self, code: str, message: str) -> None:
        """An error as the API has them."""
        text = json.dumps({"errors": [{"code": code, "message": message, "detail": self.path}]}).encode()
        self.send_response(404)
        for header, value in {"Content-Type": "application/json", "Content-Length": str(len(text))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
