"""A project with one stack, driven through the CLI of the real engine with a backend in the test's own folder."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_MARK = "TEST_STACK_MARK"
_HANG_SECONDS = 60  # no assertion about time: only what keeps a hanging test from blocking all others

_PROJECT = """
name: project
runtime:
  name: python
  options:
    virtualenv: {virtualenv}
"""


@dataclass(frozen=True)
class Result:
    code: int
    output: str

    def __post_init__(self) -> None:
        print(self.output)  # pytest shows it where a test fails


@dataclass(frozen=True)
class Stack:
    folder: Path
    environment: dict[str, str]

    @classmethod
    def create(cls, folder: Path, environment: dict[str, str], program: str, files: dict[str, str]) -> "Stack":
        project = folder / "project"
        (folder / "state").mkdir()
        project.mkdir()
        stack = cls(
            project,
            environment
            | {
                "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
                "PULUMI_CONFIG_PASSPHRASE": "",
                "NO_COLOR": "1",
                _MARK: uuid.uuid4().hex,
            },
        )
        stack.write("Pulumi.yaml", _PROJECT.format(virtualenv=sys.prefix))
        stack.write("__main__.py", program)
        for name, text in files.items():
            stack.write(name, text)
        assert stack.pulumi("stack", "init", "test").code == 0
        return stack

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pulumi(self, *arguments: str) -> Result:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=_HANG_SECONDS)
        return Result(process.returncode, output)

    def up(self, *arguments: str) -> Result:
        return self.pulumi("up", "--yes", "--skip-preview", *arguments)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Starts the CLI in a process group of its own, as a shell does."""
        return subprocess.Popen(
            ["pulumi", "--non-interactive", *arguments],
            cwd=self.folder,
            env=self.environment,
            executable=self._cli(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def output(self, name: str) -> Any:
        return json.loads(self.pulumi("stack", "output", name, "--json", "--show-secrets").output)

    def resources(self) -> dict[str, dict[str, Any]]:
        """The resources in the state, by name."""
        exported = json.loads(self.pulumi("stack", "export").output)
        return {r["urn"].rpartition("::")[2]: r for r in exported["deployment"].get("resources", [])}

    def processes(self) -> list[psutil.Process]:
        """The living processes that this stack's commands started, whatever became of their parents."""
        return [p for p in psutil.process_iter() if _mark_of(p) == self.environment[_MARK]]

    def wait_until_all_ended(self) -> list[psutil.Process]:
        """Waits for the processes of the stack; returns those that do not end."""
        return psutil.wait_procs(self.processes(), timeout=_HANG_SECONDS)[1]

    def _cli(self) -> str:
        folders = self.environment["PATH"].split(os.pathsep)
        return next(str(path) for folder in folders if (path := Path(folder, "pulumi")).is_file())


def _mark_of(process: psutil.Process) -> str:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process.environ().get(_MARK, "") if alive else ""
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
        return ""
