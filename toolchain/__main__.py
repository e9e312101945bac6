"""Command line: `python -m toolchain`, from the root of the checkout."""

import os
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from toolchain.build import Builder
from toolchain.errors import ToolchainError
from toolchain.layout import BIN, PULUMI_HOME
from toolchain.official import find_official
from toolchain.progress import Reporter
from toolchain.versions import PULUMI, check_sdks

_INTERRUPTED = 130


def main(
    build: Annotated[bool, typer.Option("--build", help="Build even where an official Pulumi is on PATH.")] = False,
) -> None:
    """Make sure that there is a Pulumi: the official one on PATH, or one built from package registries.

    What is built goes to .build/toolchain. A second run takes less than a second; an interrupted one leaves no
    half-built file behind and can be started again.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job would ignore the first
        signal.signal(number, signal.default_int_handler)
    try:
        with Reporter(Console()) as reporter:
            _ensure(reporter, build=build)
    except ToolchainError as error:
        if error.evidence:
            print(error.evidence, file=sys.stderr)
        print(f"error: {error}\nnext:  {error.remedy}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:  # a full disk, a folder that is not ours
        print(f"error: {error}\nnext:  mend that and run this again", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("interrupted: nothing half-built is left; run this again to go on", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None


def _ensure(reporter: Reporter, *, build: bool) -> None:
    official = None if build else find_official(os.environ.get("PATH", ""), BIN)
    if official and not official.objection:
        reporter.say(f"Pulumi {official.version} at {official.executable} is used; nothing to build.")
        if (BIN / "pulumi").exists():
            reporter.say(f"note: {BIN.parent} holds one that was built before; remove that folder to have it ignored.")
        return
    if official:
        reporter.say(f"Pulumi {official.version} at {official.executable} is not used: {official.objection}.")
    check_sdks()
    built = Builder(reporter).run()
    reporter.say(f"Pulumi v{PULUMI} is {'ready' if built else 'up to date'}: {BIN}, PULUMI_HOME={PULUMI_HOME}")


if __name__ == "__main__":
    typer.run(main)
