"""Runs in a throw-away container of the serving image, as `python3 -c`: downloads a model into the hub's cache.

Needs fabric_link, look and the image's huggingface_hub, which vLLM depends on. Started by providers/hub.py with
one line of JSON on its input: `name`, `revision`, `token` and `endpoint` (the last two may be None). It prints
`{"need": BYTES}`, twice a second `{"got": BYTES}`, and at last `{"done": BYTES}` or
`{"error": TEXT, "kind": NAME OF THE EXCEPTION}`. It ends as soon as its input closes; the hub's client resumes what has
arrived.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hosts.fabric_link import HEARTBEAT_SECONDS, end_with_input, say
from hosts.weights.look import INDEX, LEDGER, READ, WEIGHTS, loaded

CACHE = "/hub"
"""Where the container sees the cache directory."""
SLACK = 1.01


def wanted(names: list[str]) -> list[str]:
    """What an engine reads of a repository: of weights in several formats or places, one."""
    chosen = loaded(names)
    others = [name for name in names if name not in chosen and (WEIGHTS.search(name) or INDEX.search(name))]
    return [name for name in names if READ.search(name) and name not in others]


def held(entry: Path) -> int:
    """Bytes of the entry's blobs, whole and partial."""
    return sum(path.stat().st_size for path in entry.glob("blobs/*"))


def download(question: dict[str, Any], entry: Path) -> dict[str, Any]:
    """Download; what is said at last."""
    from huggingface_hub import HfApi, snapshot_download  # type: ignore[import-not-found] # noqa: PLC0415

    repository = {"repo_id": question["name"], "revision": question["revision"], "token": question["token"] or False}
    about = HfApi().model_info(files_metadata=True, **repository)
    sizes = {one.rfilename: one.size or 0 for one in about.siblings}
    names = wanted(list(sizes))
    need = sum(sizes[name] for name in names)
    disk = os.statvfs(CACHE)
    free = disk.f_bavail * disk.f_frsize
    say(need=need)
    if (need - held(entry)) * SLACK > free:
        return {"error": f"{need} bytes needed, {free} free", "kind": "NoRoom"}
    if not entry.exists():
        entry.mkdir()
        (entry / LEDGER).write_text(".\n")  # all of it is ours
    snapshot_download(allow_patterns=names, cache_dir=CACHE, max_workers=8, **repository)
    return {"done": held(entry)}


def beat(entry: Path) -> None:
    """Say now and then how far it is."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        with contextlib.suppress(FileNotFoundError):  # a part got its name meanwhile
            say(got=held(entry))


def main() -> None:
    """Download once."""
    question = json.loads(sys.stdin.readline())
    # Before the client is imported: it reads them once. The home of a user without a name is not to be written to.
    os.environ.update(HF_HUB_OFFLINE="0", HF_HOME="/tmp/hf", HF_HUB_DISABLE_PROGRESS_BARS="1")  # noqa: S108
    if question["endpoint"]:
        os.environ["HF_ENDPOINT"] = question["endpoint"]
    entry = Path(CACHE, "models--" + question["name"].replace("/", "--"))
    threading.Thread(target=end_with_input, daemon=True).start()
    threading.Thread(target=beat, args=(entry,), daemon=True).start()
    try:
        last = download(question, entry)
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
        last = {"error": str(error), "kind": type(error).__name__}
    say(**last)
    os._exit(1 if "error" in last else 0)


if __name__ == "__main__":
    main()
