"""Runs on a node as `python3 - STACK/NODE VERB RECORD …`, standard library only: what host preparation does there.

Sent by components/preparation.py. A record is JSON in base64: {"units": {NAME: {"runs": bool, "enabled":
UnitFileState}}, "containers": {NAME: {"id": str, "image": str}}}. Before it the verb `stop` is told the deadline `stop`
of the settings, in seconds. The node keeps the record too, with its name in the settings as "node", so that one that is
renamed knows it under the new name. Written for Python 3.8 and newer, as the node's own interpreter runs it. Every verb
may be repeated.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")
ENABLED = {"enabled": (), "enabled-runtime": ("--runtime",)}
"""What systemctl must be told to enable a unit as it was, by its UnitFileState."""

QUICK_SECONDS = 60
"""For what systemd and Docker answer without waiting for anything."""
UNIT_SECONDS = 90
"""After this time systemd itself kills a unit that does not stop, unless the unit says otherwise."""

NOTHING: dict[str, Any] = {"units": {}, "containers": {}}

KEPT = "~/.dgx-spark-cluster/{stack}.json"
"""The node's own record of what a stack found there; there is none where nothing was found. Not below ~/.local/state,
which would stay behind where there was none before."""


class Refused(Exception):  # noqa: N818 - what systemctl or Docker did
    """A command failed; the text is its own."""

    def __init__(
        self, text: str, remedy: str = "correct it on the node and run pulumi up again: it goes on from here"
    ) -> None:
        super().__init__(text)
        self.remedy = remedy


class Late(Refused):
    """A command did not end in its time."""


def run(*argv: str, seconds: float = QUICK_SECONDS) -> str:
    """Run a command to its end; its output."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    except OSError as error:
        raise Refused(f"{argv[0]}: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(PermissionError):  # sudo's, which is root's: it ends with what it waits for
            process.kill()
        raise Late(f"`{' '.join(argv)}` did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise Refused((errors or output).strip() or f"{argv[0]} ended with exit code {process.returncode}")
    return output


def systemctl(*words: str, seconds: float = QUICK_SECONDS) -> str:
    """Manage a unit as root."""
    return run(*AS_ROOT, "systemctl", *words, seconds=seconds)


class Kept:
    """The node's own record of one stack."""

    def __init__(self, node: str, stack: str) -> None:
        self.node = node
        self.path = Path(KEPT.format(stack=stack)).expanduser()

    def read(self) -> dict[str, Any] | None:
        """What it holds; None where there is none."""
        try:
            record: dict[str, Any] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        return record

    def write(self, record: dict[str, Any]) -> None:
        """Replace it; from now on it is this name's."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"node": self.node, **record}))
        written.replace(self.path)

    def forget(self) -> None:
        """Remove it, unless the node has another name by now."""
        if (self.read() or {}).get("node") == self.node:
            self.path.unlink()
            with contextlib.suppress(OSError):  # the record of another stack
                self.path.parent.rmdir()


def remember(found: dict[str, Any], before: dict[str, Any], kept: Kept) -> None:
    """Print the record of all that was ever found: of each thing what was seen first, that is how it was without us.

    The node's own comes before the state's: it is also of the names that the node had before.
    """
    before = kept.read() or before
    record = {kind: {**found[kind], **before[kind]} for kind in found}
    if any(record.values()):
        kept.write(record)
    print(json.dumps(record))


def stop(found: dict[str, Any], grace: int) -> None:
    """Stop and disable units, then stop and remove containers: a unit may have started one, and would do so again.

    Args:
        found: the record of what is alive.
        grace: seconds from SIGTERM to SIGKILL of a container, and on top of systemd's own limit for a unit.
    """
    for name, was in found["units"].items():
        print(f"stopping unit {name}", flush=True)
        words = ("disable", "--now", *ENABLED[was["enabled"]]) if was["enabled"] in ENABLED else ("stop",)
        try:
            systemctl(*words, "--", name, seconds=UNIT_SECONDS + grace)
        except Late as late:
            raise Late(
                f"unit {name} does not stop: {late}",
                f"see what it waits for (systemctl status {name}) and end it (sudo systemctl kill -s KILL {name}), "
                "or raise `deadlines.stop`; then run pulumi up again: it goes on from here",
            ) from None
    present = run("docker", "ps", "-aq", "--no-trunc").split() if found["containers"] else []
    for name, was in found["containers"].items():
        if was["id"] in present:
            print(f"removing container {name} of image {was['image']}", flush=True)
            try:
                run("docker", "stop", "-t", str(grace), was["id"], seconds=QUICK_SECONDS + grace)
                run("docker", "rm", "-f", was["id"])
            except Refused as refused:
                # The removal that a killed run began goes on without it.
                if not re.search("No such container|already in progress", str(refused)):
                    raise


def restore(before: dict[str, Any], kept: Kept) -> list[str]:
    """Enable and start units as they were; what was refused. One that is gone from the node has nothing to go back to.

    It does not wait until they have started: to load a model takes minutes, and whether it succeeds is their affair.
    """
    there = kept.read()
    if there and there["node"] != kept.node:
        print(f"nothing is put back: the node is {there['node']} now, which does it when it leaves")
        return []
    refused = []
    for name, was in (there or before)["units"].items():
        try:
            if run("systemctl", "show", "--property=LoadState", "--value", "--", name).strip() == "not-found":
                continue
            print(f"putting back unit {name}", flush=True)
            if was["enabled"] in ENABLED:
                systemctl("enable", *ENABLED[was["enabled"]], "--", name)
            if was["runs"]:
                systemctl("start", "--no-block", "--", name)
        except Refused as error:
            refused.append(f"unit {name}: {error}")
    if not refused:
        kept.forget()
    return refused


def read(text: str) -> Any:
    """A record. What was kept is all that the session printed: a login shell's own words may stand before it."""
    return json.loads(base64.b64decode(text).decode().strip().splitlines()[-1])


def main(whose: str, verb: str, *words: str) -> None:
    """Carry out a verb; what is refused ends with its cause and the next step."""
    stack, _, node = whose.rpartition("/")
    grace, records = (int(words[0]), words[1:]) if verb == "stop" else (0, words)
    found, before = [*(read(text) for text in records if text), NOTHING, NOTHING][:2]
    kept = Kept(node, stack)
    try:
        if verb == "remember":
            remember(found, before, kept)
        elif verb == "forget":
            kept.forget()
        elif verb == "stop":
            stop(found, grace)
        elif refused := restore(found, kept):
            lines = "\n".join(refused)
            sys.exit(
                f"{node}: not all units could be put back: {lines}\n  next: correct it and run pulumi destroy again"
            )
    except Refused as error:
        sys.exit(f"{node}: {error}\n  next: {error.remedy}")
    except (OSError, ValueError) as error:
        sys.exit(f"{node}: its record of what was stale, {kept.path}: {error}\n  next: correct it and run it again")


if __name__ == "__main__":
    main(*sys.argv[1:])
