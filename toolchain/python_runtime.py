"""The Python environment of a program or plugin, from the `runtime` section of Pulumi.yaml or PulumiPolicy.yaml."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format  # type: ignore[import-untyped]
from pulumi.runtime.proto import language_pb2, plugin_pb2

_KNOWN_OPTIONS = {"virtualenv", "toolchain"}


class RuntimeOptionError(Exception):
    """The `runtime` section asks for something that cannot be had; the message says what to change."""


@dataclass(frozen=True)
class PythonRuntime:
    """An interpreter and, where one is configured, its virtual environment."""

    python: Path
    virtualenv: Path | None = None

    @classmethod
    def of(cls, info: language_pb2.ProgramInfo) -> "PythonRuntime":
        """Reads the options of a program. `virtualenv` is relative to the project's root directory.

        Without it the interpreter of the language host is used (the official host takes `python3` from PATH).

        Raises:
            RuntimeOptionError: An option is not supported, or the virtual environment is missing.
        """
        options = json_format.MessageToDict(info.options)
        if unknown := sorted(set(options) - _KNOWN_OPTIONS):
            raise RuntimeOptionError(f"The runtime option {unknown[0]!r} is not supported by this language host.")
        if options.get("toolchain", "pip") != "pip":
            raise RuntimeOptionError(
                f"The runtime option toolchain: {options['toolchain']} is not supported by this language host. "
                "Name the folder of the environment with virtualenv instead."
            )
        name = options.get("virtualenv")
        if not name:
            return cls(Path(sys.executable))
        virtualenv = Path(info.root_directory, name)
        python = virtualenv / "bin" / "python"
        if not python.is_file():
            what = "is not a virtual environment" if virtualenv.is_dir() else "does not exist"
            raise RuntimeOptionError(
                f"The 'virtualenv' option in Pulumi.yaml is set to {name!r}, but {virtualenv} {what}. "
                f"Create it: python3 -m venv {virtualenv}, then install the project's requirements into it."
            )
        return cls(python, virtualenv)

    def environment(self) -> dict[str, str]:
        """This process's environment with the virtual environment activated."""
        environment = dict(os.environ)
        if self.virtualenv is not None:
            environment.pop("PYTHONHOME", None)
            environment["VIRTUAL_ENV"] = str(self.virtualenv)
            environment["PATH"] = f"{self.virtualenv / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"
        return environment

    def packages(self) -> list[plugin_pb2.PackageDependency]:
        """The resource plugins that installed SDKs ask for (`pulumi-plugin.json` in each)."""
        found = []
        for folder in self._site_packages():
            for path in sorted(Path(folder).glob("*/pulumi-plugin.json")):
                plugin = json.loads(path.read_text())
                if plugin.get("resource") and plugin.get("name") and plugin.get("version"):
                    version = "v" + plugin["version"].removeprefix("v")
                    found.append(
                        plugin_pb2.PackageDependency(
                            name=plugin["name"], version=version, kind="resource", server=plugin.get("server", "")
                        )
                    )
        return found

    def dependencies(self) -> Iterator[language_pb2.DependencyInfo]:
        """The distributions that are installed, by name."""
        distributions = importlib.metadata.distributions(path=self._site_packages())
        for distribution in sorted(distributions, key=lambda d: d.name.lower()):
            yield language_pb2.DependencyInfo(name=distribution.name, version=distribution.version)

    def _site_packages(self) -> list[str]:
        if self.virtualenv is None:
            return [entry for entry in sys.path if entry.endswith("site-packages")]
        return [str(folder) for folder in self.virtualenv.glob("lib/python3*/site-packages")]
