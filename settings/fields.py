"""What single values of the settings may be, and the base of all models."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyAddress,
    StringConstraints,
    WithJsonSchema,
)

Place = tuple[str | int, ...]
"""Where a value is, from the top of a model: names of settings, indices of lists, keys of mappings."""


class Model(BaseModel):
    """Base of all settings: unknown keys refused, immutable, numbers never taken from strings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SettingsError(Exception):
    """The configuration is wrong; the text names every fault by its YAML path."""


class ContradictionError(ValueError):
    """Values that do not fit together: every fault with its place below the model that is checked."""

    def __init__(self, faults: list[tuple[Place, str]]) -> None:
        self.faults = faults
        super().__init__("; ".join(text for _, text in faults))


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be an address as text")  # noqa: TRY004 - pydantic wants ValueError
    return value


def _of_a_host(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if address.is_unspecified or address.is_loopback or address.is_multicast:
        raise ValueError("must be the address of one host, and reach it from the others")
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise ValueError("must be a plain address, neither with %scope nor IPv4 written as ::ffff:…")
    return address


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
LocalPath = Annotated[str, StringConstraints(pattern=r"^(~/|[^~\x00-\x1f\x7f])[^\x00-\x1f\x7f]*$")]
"""A path on the operator's machine. `~/` is expanded where it is used: the state is the same for all operators."""
_STEP = r"(\.?[^./\x00-\x1f\x7f]|\.\.[^/\x00-\x1f\x7f])[^/\x00-\x1f\x7f]*"
PathInside = Annotated[str, StringConstraints(pattern=rf"^(\./)?({_STEP}/)*{_STEP}$")]
"""A path below a directory that another setting names: not absolute, and none of its steps is `..`."""
Endpoint = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@]+(/\S*)?$")]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")]
Address = Annotated[
    IPvAnyAddress,
    BeforeValidator(_text),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
HostAddress = Annotated[Address, AfterValidator(_of_a_host)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^:\x00-\x1f]*$")]
MountTarget = Annotated[str, StringConstraints(pattern=r"^/+[^/:\x00-\x1f][^:\x00-\x1f]*$")]
NodePath = Annotated[str, StringConstraints(pattern=r"^~?/[^:\x00-\x1f]*$")]
ModelPlace = Annotated[
    str, StringConstraints(pattern=r"^(~?/[^:\x00-\x1f]*|[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)$")
]
"""A path on the nodes, or the name of a model at the hub."""
InterfaceName = Annotated[str, StringConstraints(pattern=r"^[^\s/:,]{1,15}$")]
HcaName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]
UnitName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:_.@\\-]{1,240}\.(service|socket|timer|path|target)$")]
ContainerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Image = Annotated[
    str,
    StringConstraints(
        pattern=r"^(sha256:[0-9a-f]{64}|"
        r"(([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+|localhost)/)?"
        r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*"
        r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?)$"
    ),
]
"""Docker's grammar (distribution/reference, regexp.go): what its API refuses is a wrong setting."""
Ssh = Annotated[
    str,
    StringConstraints(
        pattern=r"^(local|([A-Za-z_][A-Za-z0-9_.-]*@)?([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?)$"
    ),
]

ALLOWED = {
    "name": "must be lower-case letters, digits and dashes between them, 63 at most",
    "container_prefix": "must be lower-case letters, digits and dashes between them, 63 at most",
    "jump": "must be the name of another node",
    "ssh": "must be user@host[:port], an alias of the ssh configuration, or local",
    "image": "must be an image reference, name:tag or name@sha256: and 64 hex digits, its name in lower case",
    "model": "must be an absolute path on the nodes, one in the home directory (~/…), or the hub's name ORG/NAME",
    "image_archive": "must be a path on this machine, or one in the home directory: ~/…",
    "context": "must be a path on this machine, or one in the home directory: ~/…",
    "dockerfile": "must be a path below the directory `context`",
    "ssh_config": "must be a path on this machine, or one in the home directory: ~/…",
    "endpoint": "must be an address with http:// or https://, without user and password",
    "download_to": "must be an absolute path on the nodes, or one in the home directory: ~/…",
    "source": "must be an absolute path on the nodes, or one in the home directory: ~/…",
    "target": "must be an absolute path in the containers, below /",
    "devices": "must be an absolute path on the nodes",
    "home": "must be an absolute path on the nodes",
    "interface": "must be the name of a network interface, as `ip -br link` shows it",
    "hcas": "must be names of RDMA devices, as `rdma link` shows them",
    "environment": "must be text without NUL",
    "stale_units": "must be the full name of a systemd unit, such as vllm-cluster.service",
    "stale_containers": "must be the name of a container, as `docker ps` shows it",
}
"""What is allowed, in words, where a setting has a pattern; by the last name on its path."""
ALLOWED_KEYS = {
    "environment": "its name must be letters, digits and underscores",
    "labels": "its name must be letters, digits, dots, dashes, slashes and underscores",
}
"""The same of the keys of mappings."""
