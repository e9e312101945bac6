"""Runs on a node as `python3 -c`, standard library only: asks by the node's Docker whether a registry gives an image.

Started by hosts/images/registry_access.py with a line of JSON on its input: `image` and `seconds` (for the answer).
It prints one line of JSON: `status` and `error` of Docker's answer (200 where the registry gives the image, 0 where
nothing came in time), `platforms` of the image and `platform` of the node, as OS/architecture, and `mirrored`, whether
another place may have it.

Docker's daemon asks, as it would for a pull: with its mirrors, its proxies and its registries without TLS. Only the
login is the client's, who sends it along (Docker Engine API 1.41, `DistributionInspect` and "Authentication").
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

DOCKER_SOCKET = "/var/run/docker.sock"
HUB = "docker.io"
HUB_NAMES = (HUB, "index.docker.io", "registry-1.docker.io")
HUB_LOGIN = "https://index.docker.io/v1/"
"""Under which name the client keeps the login of Docker Hub."""


class Docker(http.client.HTTPConnection):
    """Docker's API."""

    def __init__(self, seconds: float) -> None:
        super().__init__("docker", timeout=seconds)

    def connect(self) -> None:
        """To its socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(DOCKER_SOCKET)

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        """Status and content of an answer. Raises OSError, HTTPException, ValueError."""
        self.request("GET", path, headers=headers)
        answer = self.getresponse()
        return answer.status, json.loads(answer.read())


def registry(image: str) -> str:
    """The registry of a reference, by Docker's rule: its first part where that has a dot or a port."""
    first, slash, _ = image.partition("/")
    return host(first) if slash and (first == "localhost" or "." in first or ":" in first) else HUB


def host(server: str) -> str:
    """The registry of a server's name as clients wrote it over the years: with a scheme, with a path."""
    name = server.rpartition("://")[2].partition("/")[0]
    return HUB if name in HUB_NAMES else name


def kept(logins: dict[str, Any], server: str) -> Any:
    """What is kept for a server: under its very name, else under a former one of the same registry.

    Not under the names of tokens, which a login by browser keeps beside (https://index.docker.io/v1/access-token).
    """
    former = (logins[key] for key in logins if host(key) == host(server) and not key.endswith("-token"))
    return logins[server] if server in logins else next(former, None)


def login(image: str) -> dict[str, str]:
    """The client's login at the registry of an image, in the form of the API; empty where there is none."""
    name = registry(image)
    server = HUB_LOGIN if name == HUB else name
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text())
        helper = kept(config.get("credHelpers") or {}, server) or config.get("credsStore")
        if helper:
            argv = (f"docker-credential-{helper}", "get")
            done = subprocess.run(argv, input=server, capture_output=True, text=True, timeout=10, check=True)
            said = json.loads(done.stdout)
            user, secret = said["Username"], said["Secret"]
        else:
            found = kept(config["auths"], server)
            user, _, secret = base64.b64decode(found.get("auth", "")).decode().partition(":")
            if found.get("identitytoken"):
                user, secret = "<token>", found["identitytoken"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    if user == "<token>":
        return {"identitytoken": secret, "serveraddress": server}
    return {"username": user, "password": secret, "serveraddress": server}


def answer(image: str, seconds: float) -> dict[str, Any]:
    """What Docker says of an image that it does not have."""
    docker = Docker(seconds)
    _, info = docker.get("/info", {})
    _, version = docker.get("/version", {})
    sent = base64.urlsafe_b64encode(json.dumps(login(image)).encode()).decode()
    status, said = docker.get(f"/distribution/{quote(image, safe='/:@')}/json", {"X-Registry-Auth": sent})
    told = [f"{one.get('os')}/{one.get('architecture')}" for one in said.get("Platforms") or []]
    found = {"status": status, "error": said.get("message", ""), "platforms": told}
    mirrored = registry(image) == HUB and bool(info["RegistryConfig"]["Mirrors"])
    return {**found, "platform": f"{version['Os']}/{version['Arch']}", "mirrored": mirrored}


def main() -> None:
    """Ask once."""
    question = json.loads(sys.stdin.readline())
    try:
        found = answer(question["image"], question["seconds"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        found = {"status": 0, "error": f"{type(error).__name__}: {error}", "platforms": []}
    print(json.dumps(found))
