"""Runs inside an image as `python3 -c`, standard library only: prints what the image holds as one line of JSON.

Sent by hosts/images/contents.py.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any


def version(distribution: str) -> str | None:
    """Version of an installed Python distribution; importing it would take seconds."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def serve_options() -> dict[str, Any]:
    """Options that `vllm serve` lists, or the error that came instead."""
    # All of them, not the groups; wide, as an option must not be wrapped.
    command, wide = ("vllm", "serve", "--help=all"), {**os.environ, "COLUMNS": "300"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=wide)
    except OSError as error:
        return {"error": f"{command[0]}: {error.strerror}"}
    found = set()
    for line in re.findall(r"^ +(-.*)$", done.stdout, re.MULTILINE):  # as argparse lays it out: names, then the text
        found |= set(re.findall(r"(?<![\w-])--?[A-Za-z](?:[\w-]*\w)?", re.split(r"\s{2,}", line)[0]))
    if done.returncode or not found:
        return {"error": (done.stderr or done.stdout).strip()[-400:] or "its help is empty"}
    return {"known": sorted(found)}


def ray_options() -> dict[str, Any]:
    """Options of `ray start`, those included that its help hides (--labels, --system-config, …), or the error."""
    try:
        from ray.scripts.scripts import start  # noqa: PLC0415

        return {"known": sorted(name for one in start.params for name in (*one.opts, *one.secondary_opts))}
    except Exception as error:  # noqa: BLE001 - whatever it is, the options are not known
        return {"error": f"{type(error).__name__}: {error}"[:400]}


COMMANDS = {"vllm serve": serve_options, "ray start": ray_options}


def main() -> None:
    """Print versions, and the options of the commands that are named as arguments."""
    with ThreadPoolExecutor() as pool:
        options = {command: pool.submit(COMMANDS[command]) for command in sys.argv[1:]}
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "vllm": version("vllm"),
                "ray": version("ray"),
                "options": {command: asked.result() for command, asked in options.items()},
            }
        )
    )


main()
