"""The stack's configuration: one pydantic model per thing a user describes, every default with its reason.

Read from the Pulumi configuration value ``dgx-spark-cluster:cluster``. Unknown keys are refused, models are frozen,
and an invalid value is reported by its YAML path (see :func:`parse`). Secrets are not part of the model: the API key
is the Pulumi secret ``dgx-spark-cluster:apiKey``.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyAddress,
    StringConstraints,
    ValidationError,
    model_validator,
)


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be an address as text")  # noqa: TRY004 - pydantic wants ValueError
    return value


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Address = Annotated[IPvAnyAddress, BeforeValidator(_text)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^:]*$")]
Ssh = Annotated[
    str,
    StringConstraints(
        pattern=r"^(local|([a-z_][a-z0-9_.-]*@)?([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:]+\])(:\d{1,5})?)$"
    ),
]

RESERVED_ENVIRONMENT = frozenset({"RAY_ADDRESS", "VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_RPC_BASE_PATH"})

PATTERNS = {
    "name": "must be lower-case letters, digits and dashes",
    "jump": "must be the name of another node",
    "ssh": "must be user@host[:port], an alias of the ssh configuration, or local",
    "image": "must be an image reference such as name@sha256:…",
    "model": "must be an absolute path on the nodes",
    "source": "must be an absolute path on the nodes",
    "target": "must be an absolute path in the containers",
}
"""What is allowed, in words, where a setting has a pattern."""


class SettingsError(Exception):
    """The configuration is wrong; the text names every fault by its YAML path."""


class Model(BaseModel):
    """Base of all settings: unknown keys refused, immutable, numbers never taken from strings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Ulimit(Model):
    """One resource limit of a container; -1 means unlimited."""

    name: str
    """Name as `docker run --ulimit` takes it, e.g. memlock."""
    soft: int = Field(ge=-1)
    """Soft limit."""
    hard: int = Field(ge=-1)
    """Hard limit."""


class Mount(Model):
    """A directory of the node that its containers see."""

    source: AbsolutePath
    """Directory on the node. It must exist: Docker would otherwise create it, owned by root."""
    target: AbsolutePath
    """Path inside the containers."""
    read_only: bool = True
    """Read-only unless the containers must write, as for a compile cache."""


class ImageBuild(Model):
    """An image that is built on one node, from a directory of the operator's machine."""

    context: str
    """Directory that is sent whole to `docker build`. A changed file in it makes a new image."""
    dockerfile: str = "Dockerfile"
    """The Dockerfile, relative to the directory."""


class Deadlines(Model):
    """How long each wait may take, in seconds. Every wait polls; none sleeps for a fixed time."""

    connect: Seconds = 5
    """TCP connect of one ssh hop. A host in the same room answers in milliseconds."""
    survey: Seconds = 30
    """The whole read-only survey of one node, a slow login included (a 20 s login was reported from the field)."""
    gpus: Seconds = 120
    """From the containers' start to every GPU verified by Ray; 6 s seen lean, 23 s with the dashboard on two cores."""
    load: Seconds = 2700
    """From serve's start to its first completion: three times the 15 minutes that 119 GB of FP8 weights took."""
    completion: Seconds = 120
    """One completion of one token; the first one compiles lazily, 23 s seen."""
    probe: Seconds = 10
    """The one-token completion with which a refresh verifies serve; a busy engine answers it among the others."""
    stop: Annotated[int, Field(ge=1, le=600)] = 10
    """From SIGTERM to SIGKILL of a container. vLLM ignores SIGTERM while it loads."""


class Ray(Model):
    """How Ray is started. The defaults are lean, since a Spark's memory is shared with its GPU."""

    port: Port = 6379
    """Port of the GCS on the head's fabric address; Ray's own default."""
    dashboard: bool = False
    """Serve Ray's dashboard on the head's loopback port 8265. Costs 0.45 GiB and seconds of start-up, measured."""
    object_store_bytes: Annotated[int, Field(ge=80_000_000)] = 1_073_741_824
    """Object store of each node. Ray would take 30 % of memory; serving passes little through it."""
    arguments: tuple[str, ...] = ()
    """More arguments of `ray start`, on every node."""


class Node(Model):
    """One host. The first in the list is the head."""

    name: Name
    """Name in resources, labels and messages."""
    ssh: Ssh
    """`user@host[:port]`, an alias of the ssh configuration, or `local` for the machine that runs Pulumi."""
    jump: Name | None = None
    """Name of the node through which this one is reached."""
    identity_file: str | None = None
    """Private key for this node; ssh's own choice when unset."""
    fabric: Address | None = None
    """Address on the RoCE link. Found from the subnet that all nodes share when unset."""
    gpus: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that must be there; a Spark has one."""
    environment: dict[EnvironmentName, str] = {}
    """Environment of this node's containers, over the cluster's."""
    ray_arguments: tuple[str, ...] = ()
    """More arguments of `ray start` on this node."""

    @property
    def local(self) -> bool:
        """Whether the node is the machine that runs Pulumi."""
        return self.ssh == "local"

    @property
    def user(self) -> str | None:
        """Login name, or None to leave it to ssh."""
        return self.ssh.rpartition("@")[0] or None

    @property
    def host(self) -> str:
        """Host name, address or ssh alias, without brackets."""
        return self._host_and_port()[0]

    @property
    def port(self) -> int | None:
        """Ssh port, or None to leave it to ssh."""
        return self._host_and_port()[1]

    def _host_and_port(self) -> tuple[str, int | None]:
        match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?", self.ssh.rpartition("@")[2])
        assert match  # noqa: S101 - the field's pattern admits nothing else
        return match["v6"] or match["host"], int(match["port"]) if match["port"] else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local and self.jump:
            raise ValueError("a local node is not reached through a jump host: remove `jump`")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"ssh port {self.port} is not in 1…65535")
        _refuse_reserved(self.environment)
        return self


class Cluster(Model):
    """The cluster: its nodes, what they serve and how."""

    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=64)]
    """The hosts; the first is the head, which also serves the API."""
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
    """Image with vLLM and Ray. Pin it by digest (`name@sha256:…`): tags have been moved in the field."""
    image_archive: str | None = None
    """`docker save` tar of the image on the operator's machine, for nodes that lack the image. One node loads it, the
    others copy from that over the fabric."""
    image_build: ImageBuild | None = None
    """Build the image instead of pulling or loading it; `image` is the tag it gets."""
    model: AbsolutePath
    """Model directory, the same path on every node."""
    served_model_name: str | None = None
    """Name the API answers to; the directory's name when unset."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """Ranks a layer is split over; all GPUs (divided by the pipeline size) when unset."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Stages the layers are spread over."""
    port: Port = 30000
    """Port of the OpenAI-compatible API on the head; the field case's."""
    listen: Address = Field(default="0.0.0.0", validate_default=True)  # noqa: S104
    """Address the API binds to. Set an apiKey when it is not loopback."""
    engine_arguments: tuple[str, ...] = ()
    """More arguments of `vllm serve`."""
    environment: dict[EnvironmentName, str] = {}
    """Environment of all containers."""
    mounts: tuple[Mount, ...] = ()
    """More directories of every node for its containers."""
    devices: tuple[AbsolutePath, ...] = ("/dev/infiniband",)
    """Device paths for the containers where the node has them; NCCL needs /dev/infiniband for RDMA."""
    ulimits: tuple[Ulimit, ...] = (
        Ulimit(name="memlock", soft=-1, hard=-1),
        Ulimit(name="nofile", soft=1048576, hard=1048576),
    )
    """Limits of the containers: RDMA registers memory (memlock), vLLM warns below 65,535 files."""
    restart: Literal["unless-stopped", "always", "on-failure", "no"] = "unless-stopped"
    """Docker's restart policy, the first line of repair: a power cut ends in a serving cluster."""
    ray: Ray = Ray()
    """How Ray is started."""
    deadlines: Deadlines = Deadlines()
    """How long each wait may take."""
    ssh_config: str | None = None
    """Configuration file for ssh (-F); the user's own when unset."""

    @property
    def head(self) -> Node:
        """The node that runs Ray's head and the API."""
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        """All nodes but the head."""
        return self.nodes[1:]

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return sum(node.gpus for node in self.nodes)

    @property
    def tensor_parallel(self) -> int:
        """Tensor parallel size in force."""
        return self.tensor_parallel_size or self.gpus // self.pipeline_parallel_size

    @property
    def model_name(self) -> str:
        """Model name in force at the API."""
        return self.served_model_name or PurePosixPath(self.model).name

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return {node.name: node for node in self.nodes}[name]

    def route(self, node: Node) -> tuple[Node, ...]:
        """The nodes an ssh connection passes through, in order, `node` last."""
        return (*self.route(self.node(node.jump)), node) if node.jump else (node,)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_nodes()
        if self.port == self.ray.port:
            raise ValueError(f"port and ray.port are both {self.port}: give them different ports")
        _refuse_reserved(self.environment)
        if self.image_build and self.image_archive:
            raise ValueError("image_archive and image_build are two sources of one image: remove one of them")
        if self.image_build and ("@" in self.image or self.image.startswith("sha256:")):
            raise ValueError(f"image {self.image}: what image_build builds cannot be pinned beforehand, give it a tag")
        sizes = self.tensor_parallel * self.pipeline_parallel_size
        if sizes != self.gpus:
            fits = ", ".join(
                f"{self.gpus // stages} × {stages}" for stages in range(1, self.gpus + 1) if self.gpus % stages == 0
            )
            raise ValueError(
                f"tensor_parallel_size {self.tensor_parallel} × pipeline_parallel_size {self.pipeline_parallel_size} = "
                f"{sizes}, but the nodes have {self.gpus} GPUs; sizes that fit (tensor × pipeline): {fits}"
            )
        return self

    def _check_nodes(self) -> None:
        names = [node.name for node in self.nodes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two nodes are named {name!r}: names must be unique")
        addresses = [node.fabric for node in self.nodes if node.fabric]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"two nodes have the fabric address {address}")
        logins = [node.ssh.rpartition("@")[2] for node in self.nodes]
        for node in self.nodes:
            if node.jump is None and logins.count(node.ssh.rpartition("@")[2]) > 1:
                raise ValueError(f"node {node.name}: another node has ssh {node.ssh!r} too: one host is one node")
            seen = {node.name}
            at = node
            while at.jump:
                if at.jump not in names:
                    raise ValueError(f"node {at.name}: jump {at.jump!r} is not a node{_suggest(at.jump, names)}")
                if self.node(at.jump).local:
                    raise ValueError(f"node {at.name}: jump {at.jump!r} is the local machine: remove `jump`")
                if at.jump in seen:
                    raise ValueError(f"node {node.name}: its jump hosts form a circle ({at.name} → {at.jump})")
                seen.add(at.jump)
                at = self.node(at.jump)


def parse(value: object) -> Cluster:
    """Validate the configuration value; raises SettingsError that lists every fault with its YAML path."""
    if not isinstance(value, dict):
        raise SettingsError("dgx-spark-cluster:cluster: must be a mapping with nodes, image and model")
    try:
        # As JSON and strict: a list may be a tuple there, but "30000" is no number.
        return Cluster.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        inner = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
        # A list whose entries are invalid is also reported as too short: only the entries are at fault.
        lines = [_explain(dict(f)) for f in faults if not (f["type"] == "too_short" and f["loc"] in inner)]
        raise SettingsError("\n".join(lines)) from None


def _explain(fault: dict[str, Any]) -> str:
    path = "dgx-spark-cluster:cluster" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"] if part != "[key]"
    )
    if fault["type"] == "extra_forbidden":
        known = _fields_at(fault["loc"][:-1])
        return f"{path}: unknown setting{_suggest(str(fault['loc'][-1]), known)}"
    if fault["type"] == "missing":
        return f"{path}: is required"
    if fault["type"] == "value_error":
        return f"{path}: {fault['ctx']['error']}"
    shown = repr(fault["input"])
    allowed = PATTERNS.get(str(fault["loc"][-1])) if fault["type"] == "string_pattern_mismatch" else None
    return f"{path}: {allowed or fault['msg']}, got {shown if len(shown) <= 80 else shown[:77] + '…'}"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """Names of the settings allowed at a location, for suggestions."""
    models: dict[str, type[Model]] = {
        "nodes": Node, "ray": Ray, "deadlines": Deadlines, "mounts": Mount, "ulimits": Ulimit,
        "image_build": ImageBuild,
    }  # fmt: skip
    parents = [part for part in location if isinstance(part, str)]
    return list((models.get(parents[-1], Cluster) if parents else Cluster).model_fields)


def _suggest(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _refuse_reserved(environment: dict[str, str]) -> None:
    for name in sorted(RESERVED_ENVIRONMENT & environment.keys()):
        raise ValueError(f"environment {name} is set by the program from live facts: remove it")
