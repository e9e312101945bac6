"""Runs on a node as `python3 -`: names of the model that have no content to copy: symbolic links, a hub cache's refs.

Standard library and look only, Python 3.8 and newer; hosts/weights/receiver.py gives its files their names by it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hosts.weights.look import LEDGER, PARTIAL


def settle(root: Path, new: Path, name: str) -> None:
    """Give a file or link its name; what was not there before is noted as ours, for a destroy."""
    path = root / name
    if not (path.is_symlink() or path.exists()):
        with (root / LEDGER).open("a") as ledger:  # one short write, so those of several threads do not mix
            ledger.write(name + "\n")
    new.replace(path)


def put(root: str, links: dict[str, str], refs: dict[str, str]) -> None:
    """Make links, or set them right, and then the refs, as each names a snapshot that is there; ends with a failure."""
    top = Path(root)
    try:
        for name, text in [*links.items(), *refs.items()]:
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + PARTIAL)
            if new.is_symlink() or new.exists():
                new.unlink()
            if name in links:
                new.symlink_to(text)
            else:
                new.write_text(text)
            settle(top, new, name)
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")
