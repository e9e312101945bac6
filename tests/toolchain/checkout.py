"""A checkout of its own for the builder, with a Go on PATH that only pretends."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from toolchain.versions import DOCKER, ROOT

FAKE_GO = """#!/bin/sh
echo "$*" >> "$JOURNAL"
case "$1" in
    version) echo "go version go${GO_VERSION-1.99.0} linux/amd64" ;;
    list) echo "$SDK" ;;
    build)
        while [ "$1" != -o ]; do shift; done
        printf half > "$2"
        eval "$DURING_BUILD"
        printf whole > "$2"
        chmod +x "$2" ;;
esac
"""


@dataclass(frozen=True)
class Checkout:
    """The folder, and the environment that its builder runs in."""

    root: Path
    environment: dict[str, str]

    @classmethod
    def create(cls, folder: Path) -> "Checkout":
        root = folder / "checkout"
        half_written = shutil.ignore_patterns("*.pyc.*")  # by another process of these tests
        shutil.copytree(ROOT / "toolchain", root / "toolchain", ignore=half_written)
        sdk = folder / "sdk"
        for name in ("cmd/pulumi-language-python-exec", "dist/pulumi-resource-pulumi-python"):
            (sdk / "python" / name).parent.mkdir(parents=True)
            (sdk / "python" / name).write_text("from the SDK")
        checkout = cls(
            root,
            {
                "PATH": f"{folder / 'fakes'}:/usr/bin:/bin",
                "HOME": str(folder),
                "JOURNAL": str(folder / "journal"),
                "SDK": str(sdk),
                "PIP_NO_INDEX": "1",
                "PIP_CONFIG_FILE": os.devnull,
            },
        )
        checkout.put_on_path("go", FAKE_GO)
        return checkout

    def put_on_path(self, name: str, script: str) -> Path:
        path = self.root.parent / "fakes" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "toolchain", *arguments],
            cwd=self.root,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def build(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Runs the builder to its end: exit code and everything it printed."""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate()
        print(output)
        return process.returncode, output

    @property
    def home(self) -> Path:
        return self.root / ".build" / "toolchain"

    @property
    def cli(self) -> Path:
        return self.home / "bin" / "pulumi"

    @property
    def docker_plugin(self) -> Path:
        return self.home / "home" / "plugins" / f"resource-docker-v{DOCKER}" / "pulumi-resource-docker"

    def go_builds(self) -> list[str]:
        """The calls of `go build` so far."""
        journal = self.root.parent / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [line for line in lines if line.startswith("build")]
