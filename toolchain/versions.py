"""What is built: versions that belong together, and the check that the installed SDKs are the ones meant."""

import re
from importlib import metadata
from pathlib import Path

from toolchain.errors import ToolchainError

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "toolchain" / "go"

PULUMI = "3.276.0"
"""The engine: module github.com/pulumi/pulumi/pkg/v3 in go/pulumi/go.mod."""

OLDEST_OFFICIAL = (3, 200, 0)
"""Oldest official CLI that knows what the program uses: `PULUMI_RUN_PROGRAM`, hooks, `options: refresh`."""

DOCKER = "5.2.0"
"""The pulumi-docker SDK that the upstream provider in go/docker/go.mod belongs to (kreuzwerker v4.6.0)."""

COMMAND = "1.2.1"
"""The pulumi-command SDK whose schema `toolchain.command_plugin` implements."""

_SDK_PINS = {
    "pulumi-docker": (DOCKER, "toolchain/go/docker/go.mod and DOCKER in toolchain/versions.py"),
    "pulumi-command": (COMMAND, "toolchain/command_plugin.py and COMMAND in toolchain/versions.py"),
}


def check_sdks() -> None:
    """Compares the installed SDKs with the plugins that would be built: the engine asks for exactly their version.

    Raises:
        ToolchainError: An SDK is missing or of another version.
    """
    for distribution, (pinned, where) in _SDK_PINS.items():
        try:
            installed = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            raise ToolchainError(
                f"{distribution} is not installed in this interpreter's environment.",
                remedy="pip install --requirement requirements.txt (in .venv), then run this again",
            ) from None
        if installed != pinned:
            raise ToolchainError(
                f"{distribution} {installed} is installed, but its plugin is pinned to {pinned}.",
                remedy=f"install requirements.txt again, or move {where} to {installed} in the same change",
            )


def required_go() -> tuple[int, ...]:
    """The Go version that both modules need: the highest `go` directive."""
    directives = (re.search(r"^go (\S+)$", path.read_text(), re.MULTILINE) for path in sorted(SOURCES.glob("*/go.mod")))
    return max(version_tuple(found[1]) for found in directives if found)


def version_tuple(text: str) -> tuple[int, ...]:
    """The numbers of the first version in a text: "go1.26.8 linux/amd64" is (1, 26, 8); empty where there is none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
