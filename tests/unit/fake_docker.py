"""A `docker` first on PATH that answers from a table, so that a node may be this machine without its Docker."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """#!/bin/bash
home=@HOME@
show() { IFS= read -rd '' text < "$1"; printf %s "$text"; }
printf '%s\\0' "$@" > "$home/calls/$EPOCHREALTIME-$$"
if [ "$1" = load ]; then cat > "$home/loaded"; fi
if [ "$1" = build ]; then cat > "$home/context"; fi
if [ "$1" = save ] && [ -e "$home/saved" ]; then cat "$home/saved"; fi
last=${@: -1}
key="$1 $last"
if [ "$1" = exec ]; then key="exec $3"; fi
answers="$home/answers/${key//\\//%}"
words="$*"
case $words in
  "logs "*"--since "*) since=${words#*--since }; if [ -d "$answers ${since%% *}" ]; then answers+=" ${since%% *}"; fi ;;
esac
if [ ! -d "$answers" ]; then
  case $1 in inspect|image|logs|exec) ;; *) exit 0 ;; esac
  echo "Error response from daemon: No such container: $last" >&2
  exit 1
fi
printf x >> "$answers/count"
count=$(< "$answers/count")
n=${#count}
while [ ! -d "$answers/$n" ]; do n=$((n - 1)); done
show "$answers/$n/stdout"
show "$answers/$n/stderr" >&2
if [ -e "$answers/$n/hold" ]; then cat > /dev/null; fi
exit "$(< "$answers/$n/code")"
"""


def says(stdout: str = "", *, stderr: str = "", code: int = 0, hold: bool = False) -> dict[str, Any]:
    """One answer of docker; with `hold` it goes on until its input closes, as a probe does."""
    return {"stdout": stdout, "stderr": stderr, "code": code, "hold": hold}


def state(
    status: str = "running",
    *,
    code: int = 0,
    restarts: int = 0,
    started: str = "T1",
    error: str = "",
    policy: str = "unless-stopped",
) -> dict[str, Any]:
    """What `docker inspect` prints of a container, in the format that hosts.containers asks for."""
    facts = {"Status": status, "ExitCode": code, "Error": error}
    return says(f"{started} {restarts} {policy} {json.dumps(facts)}\n")


def reading(*values: dict[str, Any]) -> dict[str, Any]:
    """Lines of a probe that goes on."""
    return says("".join(json.dumps(value) + "\n" for value in values), hold=True)


class FakeDocker:
    """The table of answers, and what was asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program = home / "bin" / "docker"
        for directory in (self.program.parent, home / "answers", home / "calls"):
            directory.mkdir(parents=True)
        self.program.write_text(PROGRAM.replace("@HOME@", str(home)))
        self.program.chmod(0o755)

    @classmethod
    def on_path(cls, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
        """A fake that any process of this test finds first."""
        fake = cls(home)
        monkeypatch.setenv("PATH", f"{fake.program.parent}:{os.environ['PATH']}")
        return fake

    def answer(self, key: str, *answers: dict[str, Any]) -> None:
        """What a command answers, call by call; the last answer stays.

        The key is the command's first and last word (`inspect abc`, `image NAME`, `ps FILTER`), or `exec CONTAINER`,
        or `logs CONTAINER TIME` where the log is asked for since that time.
        """
        directory = self.home / "answers" / key.replace("/", "%")
        shutil.rmtree(directory, ignore_errors=True)
        for number, answer in enumerate(answers, 1):
            place = directory / str(number)
            place.mkdir(parents=True)
            for name in ("stdout", "stderr", "code"):
                (place / name).write_text(str(answer[name]))
            if answer["hold"]:
                (place / "hold").touch()

    @property
    def calls(self) -> list[list[str]]:
        """Argument lists of all calls, in their order."""
        files = sorted((self.home / "calls").iterdir())
        return [file.read_text().split("\0")[:-1] for file in files]

    def called(self, command: str) -> list[list[str]]:
        """The calls of one command."""
        return [call for call in self.calls if call[0] == command]
