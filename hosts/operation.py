"""Which operation of the engine the program runs in: Pulumi does not tell it."""

from __future__ import annotations

import psutil


def destroying() -> bool:
    """Whether a `pulumi destroy` runs this program.

    With PULUMI_RUN_PROGRAM=true destroy runs the program as well. No RPC says which operation it is: the engine's own
    command line does.
    """
    for process in psutil.Process().parents():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if line and line[0].rpartition("/")[2] == "pulumi":
            return any(word in ("destroy", "down", "dn") for word in line[1:])
    return False
