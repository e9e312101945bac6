"""Property values as they travel between engine and provider: plain JSON with marked secrets and unknowns.

The marks are those of the engine's protocol (pulumi/runtime/rpc.py in the SDK, whose import costs a plugin 0.3 s).
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - a mark, no secret

Value = Any
"""None, bool, float, str, list or dict of such values."""


def from_struct(properties: struct_pb2.Struct) -> dict[str, Value]:
    """Properties as a dictionary, marks kept."""
    result: dict[str, Value] = json_format.MessageToDict(properties)
    return result


def to_struct(properties: dict[str, Value]) -> struct_pb2.Struct:
    """The opposite of `from_struct`."""
    return json_format.ParseDict(properties, struct_pb2.Struct())


def as_secret(value: Value) -> dict[str, Value]:
    """Marks a value as secret."""
    return {SIGNATURE: SECRET, "value": value}


def plain(value: Value) -> Value:
    """The value without the marks of secrets, at any depth."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return plain(value.get("value"))
        return {key: plain(item) for key, item in value.items()}
    return value


def has_unknown(value: Value) -> bool:
    """Whether anything in it is known only after other resources are there."""
    return any(leaf == UNKNOWN for leaf in _leaves(plain(value)))


def secrets_in(value: Value) -> Iterator[Value]:
    """The secret values in it, without marks."""
    if isinstance(value, list):
        for item in value:
            yield from secrets_in(item)
    elif isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            yield plain(value.get("value"))
        else:
            for item in value.values():
                yield from secrets_in(item)


def secret_texts(value: Value) -> tuple[str, ...]:
    """All texts in its secrets: what must not be shown."""
    return tuple(
        str(leaf) for secret in secrets_in(value) for leaf in _leaves(secret) if isinstance(leaf, str) and leaf
    )


def _leaves(value: Value) -> Iterator[Value]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value
