"""The real thing: Pulumi's engine, two simulated Sparks, Docker over ssh, Ray and vLLM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from hosts.ssh import Connection
from providers.node_image import NodeImageProvider
from settings import Cluster, parse

ROOT = Path(__file__).parents[2]
KEY = "dgx-spark-cluster:cluster"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.lab)


def lab_settings() -> dict[str, Any]:
    """The cluster of Pulumi.lab.yaml as plain data, to be changed by a test."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "Pulumi.lab.yaml").read_text())["config"][KEY]
    return loaded


def connect(node: str) -> Connection:
    """The way to a node of the lab."""
    cluster = parse(lab_settings())
    return Connection.of(cluster, cluster.node(node))


def on(node: str, *argv: str, check: bool = True) -> str:
    """Run a command on a node; its output."""
    return connect(node).run(*argv, check=check).stdout


def ours(node: str) -> dict[str, str]:
    """Ids of the containers of the stack on a node, by role."""
    lines = on(
        node, "docker", "ps", "-a", "--no-trunc", "--filter", "label=dgx-spark-cluster.stack=lab",
        "--format", '{{.Label "dgx-spark-cluster.role"}} {{.ID}}',
    )  # fmt: skip
    return dict(line.split(" ", 1) for line in lines.splitlines())


def complete(endpoint: str, model: str) -> int:
    """Tokens of one completion, asked as a user does."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = requests.post(f"{endpoint}/completions", json=body, timeout=60)
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


@dataclass
class Result:
    """What a pulumi command did."""

    code: int
    output: str
    """Standard output and error, as a user sees them."""


def refused(done: Result, *wanted: str) -> None:
    """A command failed with these texts, without a traceback, and without the end of the program as another error."""
    assert done.code != 0, done.output
    for text in wanted:
        assert text in done.output, done.output
    assert "Traceback" not in done.output, done.output
    assert "has terminated" not in done.output, done.output


NOW = ("--stack", "lab", "--yes", "--skip-preview")
"""How `up` and `destroy` are told to go on without a question."""


@dataclass
class Stack:
    """The stack lab in a backend of its own, so that a user's state is left alone."""

    folder: Path
    _environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {"PULUMI_BACKEND_URL": f"file://{self.folder}/state"}
        done = subprocess.run(
            ["bash", "-c", ". ./env.sh && env -0"], cwd=ROOT, env=os.environ | own, capture_output=True, check=True
        )
        self._environment = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if "=" in line)
        self.empty()

    def empty(self) -> None:
        """Begin with no state, whatever is on the nodes."""
        state = self.folder / "state"
        if state.exists():
            shutil.rmtree(state)
        state.mkdir(parents=True)
        made = self.pulumi("stack", "select", "--create", "lab")
        assert made.code == 0, made.output

    def pulumi(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Result:
        """Run a pulumi command to its end."""
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=ROOT,
            env=self._environment | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        return Result(done.returncode, done.stdout)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a pulumi command."""
        return subprocess.Popen(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def interrupted(self, *arguments: str, at: str, times: int = 1) -> Result:
        """Run a pulumi command and press Ctrl-C, once or more, when its output has a text."""
        with self.started(*arguments) as process:
            assert process.stdout
            output = ""
            for line in process.stdout:
                output += line
                if at in line:
                    for _ in range(times):
                        process.send_signal(signal.SIGINT)
                        time.sleep(0.5)  # as a hand does: signals closer than Pulumi's loop are one
                    break
            output += process.communicate(timeout=300)[0]
        return Result(process.returncode, output)

    def configured(self, cluster: Mapping[str, Any]) -> list[str]:
        """Arguments that make a command use other settings."""
        own = yaml.safe_load((ROOT / "Pulumi.lab.yaml").read_text())
        own["config"][KEY] = cluster
        path = self.folder / "Pulumi.changed.yaml"
        path.write_text(yaml.safe_dump(own))
        return ["--config-file", str(path)]

    def up(self, *more: str) -> Result:
        """Converge."""
        return self.pulumi("up", *NOW, *more)

    def preview(self, *more: str) -> dict[str, str]:
        """The plan: operation by resource name (type's last part and name), without what stays the same."""
        done = self.pulumi("preview", "--stack", "lab", "--json", *more)
        assert done.code == 0, done.output
        steps = json.loads(done.output[done.output.index("{\n") :])["steps"]
        named: dict[str, str] = {}
        for step in steps:
            kind, name = step["urn"].split("::")[-2:]
            if step["op"] not in ("same", "refresh", "read"):
                named[f"{kind.rpartition(':')[2]} {name}"] = step["op"]
        return named

    def destroy(self, *more: str) -> Result:
        """Remove everything."""
        return self.pulumi("destroy", *NOW, *more)

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs."""
        done = self.pulumi("stack", "output", "--stack", "lab", "--json")
        assert done.code == 0, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found


@pytest.fixture(scope="session")
def lab() -> None:
    """The two nodes, booted."""
    subprocess.run([ROOT / ".venv/bin/python", "-m", "lab", "up"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def image(lab: None) -> str:  # noqa: ARG001 - the nodes are up
    """The lab's image, on both nodes also where no cluster has been before."""
    settings = lab_settings()
    for node in ("spark-1", "spark-2"):
        props = {"connection": connect(node).dump(), "image": settings["image"]}
        NodeImageProvider().create({**props, "archive": str(ROOT / settings["image_archive"])})
    return str(settings["image"])


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The lab's settings."""
    return parse(lab_settings())
