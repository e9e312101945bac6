"""The engine's gRPC messages as the SDK has them, without the rest of the SDK, whose import costs each start 0.3 s.

A run starts the language host twice, one after the other, and waits for each.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGES = ("pulumi", "pulumi.runtime", "pulumi.runtime.proto")


def alone() -> None:
    """Make `pulumi.runtime.proto` importable in a process that needs nothing else of the SDK.

    The packages above it become empty ones: their modules are found, their own code does not run. Where there is no
    SDK nothing changes, and the import says so.
    """
    spec = find_spec("pulumi")
    if spec is None or spec.origin is None:
        return
    site_packages = Path(spec.origin).parents[1]
    for name in PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(site_packages.joinpath(*name.split(".")))]
        sys.modules[name] = package
