"""What the engine that runs this process is doing: Pulumi tells neither its programs nor its dynamic providers."""

from __future__ import annotations

import psutil

PROGRAM = "pulumi-language-python-exec"
"""Script by which every Python language host runs a program."""

OPTIONS_WITH_VALUE = frozenset(
    ["-C", "--cwd", "-s", "--stack", "--color", "-v", "--verbose", "--tracing", "--profiling", "--memprofilerate"]
)
"""Options that may stand before the engine's command, with a value that is not the command."""


def destroying() -> bool:
    """Whether a `pulumi destroy` runs this program.

    With PULUMI_RUN_PROGRAM=true destroy runs the program as well. No RPC says which operation it is: the engine's own
    command line does.
    """
    engine = _engine()
    words = iter(_line(engine)[1:] if engine else [])
    for word in words:
        if word in OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word in ("destroy", "down", "dn")
    return False


class Cancellation:
    """Notices that the user interrupted the operation (Ctrl-C once) while a dynamic provider works.

    The engine then asks all plugins to cancel, which the plugin of dynamic providers ignores, and has the language host
    end the program, which otherwise lives until its last resource is registered. So the program's end is the sign.
    """

    def __init__(self) -> None:
        engine = _engine()
        try:
            children = engine.children(recursive=True) if engine else []
        except psutil.Error:
            children = []
        self._program = next((child for child in children if any(PROGRAM in word for word in _line(child))), None)

    @property
    def requested(self) -> bool:
        """True from the interrupt on; never where no program runs."""
        if self._program is None:
            return False
        try:
            return not self._program.is_running() or self._program.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


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
