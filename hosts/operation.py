"""Which operation of the engine runs this program: Pulumi does not tell it."""

from __future__ import annotations

import psutil

OPTIONS_WITH_VALUE = frozenset(
    ["-C", "--cwd", "-s", "--stack", "--color", "-v", "--verbose", "--tracing", "--profiling", "--memprofilerate"]
)
"""Options that may stand before the engine's command, with a value that is not the command."""

LEAVE_OUT = (
    "the other nodes can be cleaned now: pulumi destroy --run-program=false --refresh=false --continue-on-error; "
    "a plain pulumi destroy finishes it once these are back"
)
"""What to do about nodes that do not answer a destroy."""


def destroying() -> bool:
    """Whether a `pulumi destroy` runs this program.

    With PULUMI_RUN_PROGRAM=true destroy runs the program as well.
    """
    return _command() in ("destroy", "down", "dn")


def previewing() -> bool:
    """Whether a `pulumi preview` does: the one that `up` makes first is none, as what it would tell follows at once."""
    return _command() in ("preview", "pre")


def _command() -> str | None:
    """The engine's command. No RPC says which operation it is: the engine's own command line does."""
    engine = _engine()
    words = iter(_line(engine)[1:] if engine else [])
    for word in words:
        if word in OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def _engine() -> psutil.Process | None:
    """The engine's process above this one."""
    for process in psutil.Process().parents():
        if _line(process)[:1] and _line(process)[0].rpartition("/")[2] == "pulumi":
            return process
    return None


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
