"""Compares what a Python SDK lets a program say with what a plugin's schema understands."""

import collections.abc
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pulumi._types import input_type_types, is_input_type, unwrap_type

_PRIMITIVES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def differences(arguments: type, token: str, schema: Mapping[str, Any]) -> list[str]:
    """Arguments of an SDK class that the plugin lacks or takes as another type, one line each; nested ones too."""
    resource = schema["resources"].get(token)
    if resource is None:
        return [f"{token}: the plugin has no such resource"]
    return list(_compare_object(arguments, resource["inputProperties"], token, schema))


def _compare_object(
    arguments: type, properties: Mapping[str, Any], path: str, schema: Mapping[str, Any]
) -> Iterator[str]:
    for name, hint in input_type_types(arguments).items():
        if name not in properties:
            yield f"{path}.{name}: the plugin has no such property"
        else:
            yield from _compare(hint, properties[name], f"{path}.{name}", schema)


def _compare(hint: Any, spec: Mapping[str, Any], path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    hint = unwrap_type(hint)
    origin = typing.get_origin(hint)
    if is_input_type(hint):
        name = spec.get("$ref", "").removeprefix("#/types/")
        if name in schema["types"]:
            yield from _compare_object(hint, schema["types"][name]["properties"], path, schema)
        else:
            yield f"{path}: the SDK has an object, the plugin {_named(spec)}"
    elif origin is collections.abc.Sequence and spec.get("type") == "array":
        yield from _compare(typing.get_args(hint)[0], spec["items"], f"{path}[]", schema)
    elif origin is collections.abc.Mapping and spec.get("type") == "object":
        yield from _compare(typing.get_args(hint)[1], spec["additionalProperties"], f"{path}{{}}", schema)
    elif spec.get("type") != _PRIMITIVES.get(hint, "nothing"):
        yield f"{path}: the SDK has {getattr(hint, '__name__', hint)}, the plugin {_named(spec)}"


def _named(spec: Mapping[str, Any]) -> str:
    return str(spec.get("type") or spec.get("$ref"))
