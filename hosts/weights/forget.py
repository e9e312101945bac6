"""Runs on a node as `python3 -`: removes what this program brought of a model, and nothing that was there before.

Standard library only, Python 3.8 and newer; a ledger in the directory names it (hosts/weights/receiver.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hosts.weights.look import LEDGER, PARTIAL, WEIGHTS


def forget(root: str) -> None:
    """Remove the files of the ledger, parts, and the directories that are empty then; raises OSError.

    Where other weights were there before, the model is the user's and was only mended: what was brought stays too, as
    the copy that it came from may go at the same time.
    """
    top = Path(root)
    ledger = top / LEDGER
    names = ledger.read_text().split("\n")[:-1] if ledger.exists() else []
    if "." in names:  # an entry of the hub's cache that was downloaded
        shutil.rmtree(str(top))
        shutil.rmtree(str(top.parent / ".locks" / top.name), ignore_errors=True)
        return
    if any(_own_weights(top, names)):
        names = []
        print("the model was there before and was mended: it stays", flush=True)
    parts = list(top.rglob("*" + PARTIAL)) if top.exists() else []
    for path in [*(top / name for name in names), *parts]:
        if path.is_symlink() or path.exists():
            path.unlink()
    if names:
        ledger.unlink()
    folders = sorted({folder for name in names for folder in Path(name).parents}, key=lambda one: -len(one.parts))
    for folder in folders:
        if (top / folder).is_dir() and not any((top / folder).iterdir()):
            (top / folder).rmdir()


def _own_weights(top: Path, names: list[str]) -> Iterator[Path]:
    """Weights in the directory that are not of the ledger, nor a link to what is."""
    brought = {os.path.realpath(str(top / name)) for name in names}
    for path in top.rglob("*") if names else ():
        if WEIGHTS.search(path.name) and path.is_file() and os.path.realpath(str(path)) not in brought:
            yield path
