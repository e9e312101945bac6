"""Modules of this package as one text for `python3 -c` on a node, where the package is not installed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from hosts.faults import Fault
from hosts.ssh import Connection

DEFINE = """import sys, types
for name, source in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
"""


def bundle(*modules: ModuleType) -> str:
    """A text that defines the modules under their names, in this order; they may import those before them."""
    names = [module.__name__.split(".") for module in modules]
    packages = dict.fromkeys(".".join(name[:depth]) for name in names for depth in range(1, len(name)))
    sources = [*((package, "") for package in packages), *((one.__name__, inspect.getsource(one)) for one in modules)]
    return DEFINE.format(sources=sources)


def program(*modules: ModuleType) -> str:
    """A text that runs the last module's main(); it may import those before it."""
    return f"{bundle(*modules)}module.main()\n"


def ask(connection: Connection, script: str, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of such a program, its last line of JSON; `{"error": why}` where none comes in time.

    The question is a line of JSON on its input: no secret of it stands in an argument list.
    """
    try:
        done = connection.run("python3", "-c", script, stdin=json.dumps(question), timeout=seconds)
    except Fault as fault:
        return {"error": fault.cause}
    try:
        said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {"error": done.stderr or done.stdout}
    return said
