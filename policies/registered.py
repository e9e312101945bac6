"""A resource as the engine shows it to a policy, as plain data in which the unknown is marked.

Keys are those of the wire: camelCase for Docker's resources, as written for dynamic ones. Secrets arrive in clear, so
nothing read from an environment may enter a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pulumi_policy import PolicyProviderResource, PolicyResource, ResourceValidationArgs
from pulumi_policy.proxy import UnknownValueError

from hosts.faults import Fault
from hosts.ownership import PREFIX

CONTAINER = "docker:index/container:Container"
GPU_GATE = "pulumi-python:dynamic/spark:GpuGate"
SERVE_GATE = "pulumi-python:dynamic/spark:ServeGate"
NODE_IMAGE = "pulumi-python:dynamic/spark:NodeImage"


class Unknown(Enum):
    """Marks a value that only the update will tell; no rule judges it."""

    UNKNOWN = "unknown until the update"


UNKNOWN = Unknown.UNKNOWN


def plain(value: Any) -> Any:
    """The SDK's proxies as dicts and lists, with UNKNOWN where they raise UnknownValueError."""
    if isinstance(value, Mapping):
        return {key: _item(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_item(value, index) for index in range(len(value))]
    return value


def _item(container: Any, key: Any) -> Any:
    try:
        return plain(container[key])
    except UnknownValueError:
        return UNKNOWN


@dataclass(frozen=True)
class Registered:
    """A resource with its inputs (resource rules) or outputs (stack rules)."""

    type: str
    name: str
    urn: str
    provider: str | None
    """Name of its provider resource; default providers are named default_<version>."""
    props: Mapping[str, Any]
    dependencies: frozenset[str] = frozenset()
    """URNs it depends on directly, explicitly or by its inputs. Stack rules only."""

    @classmethod
    def of(cls, args: ResourceValidationArgs | PolicyResource) -> Registered:
        """What either kind of policy gets from the SDK."""
        dependencies = args.dependencies if isinstance(args, PolicyResource) else []
        return cls(
            args.resource_type,
            args.name,
            args.urn,
            _name(args.provider),
            plain(args.props),
            frozenset(other.urn for other in dependencies),
        )

    @property
    def stack(self) -> str:
        """Name of the stack, as in urn:pulumi:<stack>::<project>::…."""
        return stack_of(self.urn)

    @property
    def labels(self) -> Mapping[str, Any] | Unknown:
        """Our labels of a container, without their prefix; UNKNOWN if the names of some are."""
        rows = self.props.get("labels") or []
        if rows is UNKNOWN or any(row is UNKNOWN or row.get("label") is UNKNOWN for row in rows):
            return UNKNOWN
        return {str(row["label"]).removeprefix(f"{PREFIX}."): row.get("value") for row in rows}

    def label(self, key: str) -> Any:
        """One of our labels: None if it is not there."""
        labels = self.labels
        return UNKNOWN if isinstance(labels, Unknown) else labels.get(key)

    def option(self, flag: str) -> Any:
        """Value of an option in a container's command, the last one if it is repeated; None if it is not there."""
        words = self._all("entrypoints") + self._all("command")
        for index in reversed(range(len(words))):
            if words[index] is UNKNOWN:
                return UNKNOWN
            head, equals, value = str(words[index]).partition("=")
            if head == flag:
                return value if equals else next(iter(words[index + 1 :]), None)
        return None

    def environment(self, variable: str) -> Any:
        """Value of a variable in a container's environment, the last one if it is repeated; None if it is not there."""
        for line in reversed(self._all("envs")):
            if line is UNKNOWN:
                return UNKNOWN
            name, _, value = str(line).partition("=")
            if name == variable:
                return value
        return None

    def _all(self, key: str) -> list[Any]:
        value = self.props.get(key) or []
        return [UNKNOWN] if value is UNKNOWN else list(value)

    def violation(self, cause: str, remedy: str) -> str:
        """Text of a violation: where, what, the next step, in the form of every other fault."""
        return str(Fault(str(self), cause, remedy))

    def __str__(self) -> str:
        """How messages name it: its name in Pulumi; a container also by role and node, where they are known."""
        role, node = (self.label("role"), self.label("node")) if self.type == CONTAINER else (None, None)
        labelled = isinstance(role, str) and isinstance(node, str)
        return f"{role} on {node} ({self.name})" if labelled else self.name


def stack_of(urn: str) -> str:
    """Name of the stack in a URN, urn:pulumi:<stack>::<project>::<type>::<name>."""
    return urn.removeprefix("urn:pulumi:").partition("::")[0]


def reachable(start: Registered, resources: Iterable[Registered]) -> frozenset[str]:
    """URNs that a resource depends on, directly or through others."""
    known = {resource.urn: resource for resource in resources}
    found: set[str] = set()
    ahead = set(start.dependencies)
    while ahead:
        urn = ahead.pop()
        found.add(urn)
        ahead |= (known[urn].dependencies if urn in known else frozenset()) - found
    return frozenset(found)


def _name(provider: PolicyProviderResource | None) -> str | None:
    return provider.name if provider else None
