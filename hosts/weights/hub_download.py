"""Runs in a throw-away container of the serving image, as `python3 -c`: downloads a model into the hub's cache.

Needs fabric_link, look and the image's huggingface_hub, which vLLM depends on. Started by providers/hub.py with
one line of JSON on its input: `name`, `revision`, `token` and `endpoint` (the last two may be None). It prints
`{"need": BYTES}` of what is not there yet, twice a second `{"got": BYTES}` of that, and at last `{"done": BYTES}` of
the model with the last `got`, or `{"error": TEXT, "kind": NAME OF THE EXCEPTION}`. It ends as soon as its input closes.
Whole files stay, and so do parts, where the client would go on with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hosts.fabric_link import HEARTBEAT_SECONDS, say
from hosts.weights.look import INDEX, LEDGER, READ, WEIGHTS, loaded

CACHE = "/hub"
"""Where the container sees the cache directory."""
SLACK = 1.01
OWN_PART = re.compile(r"[0-9a-f]+\.[0-9a-f]{8}\.incomplete")
"""Name of a part that only the client that made it goes on with (huggingface_hub 2; before that, HASH.incomplete)."""


def wanted(names: list[str]) -> list[str]:
    """What an engine reads of a repository: of weights in several formats or places, one."""
    chosen = loaded(names)
    others = [name for name in names if name not in chosen and (WEIGHTS.search(name) or INDEX.search(name))]
    return [name for name in names if READ.search(name) and name not in others]


def held(entry: Path, blobs: Iterable[str]) -> int:
    """Bytes of some of the entry's blobs, whole and partial: others may be of a former revision."""
    wanted = set(blobs)
    there = [path for path in entry.glob("blobs/*") if path.name.partition(".")[0] in wanted]
    return sum(path.stat().st_size for path in there)


def own_parts(entry: Path) -> set[Path]:
    """Parts that are of no use to another run."""
    return {path for path in entry.glob("blobs/*.incomplete") if OWN_PART.fullmatch(path.name)}


def sweep(entry: Path, blobs: set[str]) -> None:
    """Remove such parts where their client is gone: one that lives holds the lock of its blob."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 - the client depends on it

    for part in own_parts(entry):
        blob = part.name.partition(".")[0]
        lock = entry.parent / ".locks" / entry.name / f"{blob}.lock"
        if blob in blobs and lock.exists():
            with contextlib.suppress(Timeout, FileNotFoundError), FileLock(lock, timeout=0):
                part.unlink()


def end_with_input(entry: Path) -> None:
    """Wait for the end of the input, which the operator's side closes, then end without a part that is of no use."""
    others = own_parts(entry)
    sys.stdin.read()
    for part in own_parts(entry) - others:
        part.unlink(missing_ok=True)
    os._exit(1)


def download(question: dict[str, Any], entry: Path) -> dict[str, Any]:
    """Download; what is said at last."""
    from huggingface_hub import HfApi, snapshot_download  # type: ignore[import-not-found] # noqa: PLC0415

    repository = {"repo_id": question["name"], "revision": question["revision"], "token": question["token"] or False}
    about = HfApi().model_info(files_metadata=True, **repository)
    files = {one.rfilename: one for one in about.siblings}
    names = wanted(list(files))
    blobs = {files[name].lfs.sha256 if files[name].lfs else files[name].blob_id for name in names}
    sweep(entry, blobs)
    there = held(entry, blobs)
    need = sum(files[name].size or 0 for name in names) - there
    disk = os.statvfs(CACHE)
    free = disk.f_bavail * disk.f_frsize
    say(need=need)
    if need * SLACK > free:
        return {"error": f"{need} bytes needed, {free} free", "kind": "NoRoom"}
    if not entry.exists():
        entry.mkdir()
        (entry / LEDGER).write_text(".\n")  # all of it is ours
    threading.Thread(target=beat, args=(entry, blobs, there), daemon=True).start()
    snapshot_download(allow_patterns=names, cache_dir=CACHE, max_workers=8, **repository)
    done = held(entry, blobs)
    return {"done": done, "got": done - there}


def beat(entry: Path, blobs: set[str], before: int) -> None:
    """Say now and then how much has come."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        with contextlib.suppress(FileNotFoundError):  # a part got its name meanwhile
            say(got=held(entry, blobs) - before)


def main() -> None:
    """Download once."""
    question = json.loads(sys.stdin.readline())
    # Before the client is imported: it reads them once. The home of a user without a name is not to be written to.
    os.environ.update(HF_HUB_OFFLINE="0", HF_HOME="/tmp/hf", HF_HUB_DISABLE_PROGRESS_BARS="1")  # noqa: S108
    if question["endpoint"]:
        os.environ["HF_ENDPOINT"] = question["endpoint"]
    entry = Path(CACHE, "models--" + question["name"].replace("/", "--"))
    threading.Thread(target=end_with_input, args=(entry,), daemon=True).start()
    try:
        last = download(question, entry)
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
        last = {"error": str(error), "kind": type(error).__name__}
    say(**last)
    os._exit(1 if "error" in last else 0)


if __name__ == "__main__":
    main()
