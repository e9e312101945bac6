"""Runs on a node as `python3 -c`, standard library only: asks the Hugging Face hub whether it gives a model.

Needs hub_download and what that needs. Started by hosts/weights/hub_access.py with one line of JSON on its input:
`name`, `revision`, `token` (may be None), `endpoint`, `environment`, `seconds` (of each of two requests) and `entry`
(directory of the hub's cache). It prints one line of JSON: `kind`, the name of the exception that huggingface_hub
would raise (empty where it would raise none, Unheard where the hub does not answer, NoWeights or NoConfig where
the model has none, Gaps where shards are missing by their numbers), `error`, `blobs` (bytes of each that the model
consists of) and `held` (bytes of these that are there, whole and partial).
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hosts.weights.hub_download import held, wanted
from hosts.weights.look import CONFIGS, WEIGHTS, alike

INVALID = "Invalid credentials in Authorization header"
"""The hub's words to a token that is none, also where the model needs none."""


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the hub alone, and what leads elsewhere is not refused."""

    def redirect_request(self, *_: Any) -> None:
        """Let the redirect be the answer."""


def refusal(status: int, headers: Message) -> str:
    """The exception by which huggingface_hub tells of an answer (hf_raise_for_status, 0.30 to 2.4)."""
    code, message = headers.get("X-Error-Code"), headers.get("X-Error-Message")
    if status < 400:
        return ""
    if code in ("RevisionNotFound", "GatedRepo"):
        return f"{code}Error"
    if message == "Access to this resource is disabled.":
        return "DisabledRepoError"
    if code == "RepoNotFound" or (status == 401 and message != INVALID):
        return "RepositoryNotFoundError"  # it does not tell a stranger that there is a private one
    return "HfHubHTTPError"


class Hub:
    """The hub, as one who has the token sees it."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.endpoint = question["endpoint"].rstrip("/")
        self.seconds = question["seconds"]
        self.headers = {"User-Agent": "dgx-spark-cluster"}
        if question["token"]:
            self.headers["Authorization"] = f"Bearer {question['token']}"
        self.opener = urllib.request.build_opener(Stay)

    def ask(self, method: str, path: str) -> tuple[dict[str, str], bytes]:
        """One request: `kind` and `error` of the answer, and its content. Raises OSError, HTTPException."""
        request = urllib.request.Request(f"{self.endpoint}{path}", method=method, headers=self.headers)  # noqa: S310
        try:
            with self.opener.open(request, timeout=self.seconds) as answer:
                return {"kind": "", "error": ""}, answer.read()
        except urllib.error.HTTPError as error:
            said = error.headers.get("X-Error-Message") or error.reason
            text = f"{error.code} {said} for {self.endpoint}{path}"
            return {"kind": refusal(error.code, error.headers), "error": text}, b""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What the hub says of the model, then of a file of it: what a gated model consists of anyone may see."""
    hub, name, revision = Hub(question), question["name"], quote(question["revision"], safe="")
    said, content = hub.ask("GET", f"/api/models/{name}/revision/{revision}?blobs=true")
    if not content:
        return said
    files = {one["rfilename"]: one for one in json.loads(content)["siblings"]}
    names = wanted(list(files))
    if not any(WEIGHTS.search(name) for name in names):
        return {"kind": "NoWeights", "error": ", ".join(sorted(files)[:20])}
    if not CONFIGS & set(names):
        return {"kind": "NoConfig", "error": ", ".join(sorted(files)[:20])}
    said, _ = hub.ask("HEAD", f"/{name}/resolve/{revision}/{quote(names[0])}")
    gaps = {shard for one in names for shard in alike(one)} - set(names)
    if gaps and not said["kind"]:
        said = {"kind": "Gaps", "error": ", ".join(sorted(gaps)[:20])}
    blobs = {blob(files[name]): files[name].get("size") or 0 for name in names}
    return {**said, "blobs": blobs, "held": held(Path(question["entry"]), blobs)}


def blob(file: dict[str, Any]) -> str:
    """The name under which huggingface_hub's cache keeps a file's content: its hash."""
    return str((file.get("lfs") or {}).get("sha256") or file["blobId"])


def main() -> None:
    """Ask once."""
    question = json.loads(sys.stdin.readline())
    os.environ.update(question["environment"])
    try:
        found = answer(question)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        # Whatever came was no answer of a hub.
        found = {"kind": "Unheard", "error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"blobs": {}, "held": 0, **found}))
