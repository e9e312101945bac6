"""Inputs and outputs of `command:local:Command`, as pulumi-command 1.2.1 has them, and the check of given inputs."""

from collections.abc import Iterator
from typing import Any

from toolchain import property_values
from toolchain.versions import COMMAND

COMMAND_TYPE = "command:local:Command"

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
INPUTS: dict[str, dict[str, Any]] = {
    "addPreviousOutputInEnv": {**_FLAG, "default": True},
    "archivePaths": _TEXTS,
    "assetPaths": _TEXTS,
    "create": _TEXT,
    "delete": _TEXT,
    "dir": _TEXT,
    "environment": {"type": "object", "additionalProperties": _TEXT},
    "interpreter": _TEXTS,
    "logging": {"$ref": "#/types/command:local:Logging"},
    "stdin": _TEXT,
    "triggers": {"type": "array", "items": {"$ref": "pulumi.json#/Any"}, "replaceOnChanges": True},
    "update": _TEXT,
}
_LOGGING = ("stdout", "stderr", "stdoutAndStderr", "none")
_REFUSED = ("archivePaths", "assetPaths")

SCHEMA: dict[str, Any] = {
    "name": "command",
    "version": COMMAND,
    "types": {"command:local:Logging": {"type": "string", "enum": [{"value": value} for value in _LOGGING]}},
    "provider": {},
    "resources": {
        COMMAND_TYPE: {
            "properties": {
                **INPUTS,
                "archive": {"$ref": "pulumi.json#/Archive"},
                "assets": {"type": "object", "additionalProperties": {"$ref": "pulumi.json#/Asset"}},
                "stderr": _TEXT,
                "stdout": _TEXT,
            },
            "required": ["stderr", "stdout"],
            "inputProperties": INPUTS,
        }
    },
}


def failures(inputs: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the inputs: pairs of property and reason. Unknown values pass."""
    for name, value in property_values.plain(inputs).items():
        if name not in INPUTS:
            if not name.startswith("__"):  # the engine's own
                yield name, f"{COMMAND_TYPE} has no such property"
        elif name in _REFUSED and value:
            yield name, "assets and archives are not supported by this command plugin: read the files in the program"
        elif name == "logging" and value not in (None, property_values.UNKNOWN, *_LOGGING):
            yield name, f"must be one of {', '.join(_LOGGING)}"
        elif not _fits(value, INPUTS[name]):
            yield name, f"must be of type {INPUTS[name].get('type', 'string')}"


def _fits(value: Any, spec: dict[str, Any]) -> bool:
    if value is None or value == property_values.UNKNOWN or "$ref" in spec:
        return True
    match spec["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list) and all(_fits(item, spec["items"]) for item in value)
        case "object":
            return isinstance(value, dict) and all(_fits(v, spec["additionalProperties"]) for v in value.values())
        case _:
            return isinstance(value, str)
