"""The cluster and its nodes as a user describes them, every default with its reason and source."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

from settings.checks import cluster_faults, node_faults
from settings.fields import (
    Address,
    ContradictionError,
    HostAddress,
    Image,
    Line,
    LocalPath,
    Model,
    ModelPlace,
    Name,
    PathInside,
    Port,
    Seconds,
    Ssh,
)
from settings.host import Overridable
from settings.weights import Weights

DOUBTFUL = "doubtful"
"""Key of the context of validation: names of settings that were wrong by themselves and have been left out."""
MOST_NODES = 64
"""Most nodes of one cluster: what is done on all of them at once is bounded by it."""
RAY_ALONE: dict[str, JsonValue] = {"properties": {"serve": {"const": False}}, "required": ["serve"]}
"""JSON schema of settings that need no model."""

HUB_ENTRY = re.compile(r"(?P<root>.*/models--(?:[^/]+?--)?(?P<name>[^/]+))(?:/snapshots/[^/]+)?/?$")
"""An entry of the hub's cache, or a snapshot in it; old models like gpt2 have no organization."""


class Deadlines(Model):
    """How long each wait may take, in seconds. Every wait polls; none sleeps for a fixed time.

    For the whole cluster only: most waits are for all nodes together, and a limit costs a fast node nothing.
    """

    connect: Seconds = 4
    """TCP connect of one ssh hop. A host in the same room answers in milliseconds; TCP asks again after 1 s and 3 s."""
    survey: Seconds = 30
    """The whole read-only survey of one node, a slow login included (a 20 s login was reported from the field); also
    the answer of the hub that a preview asks for a model that no node has."""
    gpus: Seconds = 120
    """From the containers' start to every GPU verified by Ray; 6 s seen lean, 23 s with the dashboard on two cores."""
    load: Seconds = 2700
    """From serve's start to its first completion: three times the 15 minutes that 119 GB of FP8 weights took."""
    completion: Seconds = 120
    """One completion of one token; the first one compiles lazily, 23 s seen."""
    probe: Seconds = 10
    """The one-token completion with which a refresh verifies serve; a busy engine answers it among the others."""
    transfer: Seconds = 21600
    """An image or a model on its way to one node, by copy, download or build: 119 GB take 5.3 h at 50 Mbit/s."""
    stop: Annotated[int, Field(ge=1, le=600)] = 10
    """From SIGTERM to SIGKILL of a container; Docker's own default. vLLM ignores SIGTERM while it loads. A stale unit
    has this on top of the 90 s after which systemd kills it."""


class Ray(Model):
    """How Ray is started. The defaults are lean, since a Spark's memory is shared with its GPU."""

    port: Port = 6379
    """Port of the GCS on the head's fabric address; Ray's own default."""
    dashboard: bool = False
    """Serve Ray's dashboard on the head's loopback port 8265. Costs 0.45 GiB and seconds of start-up, measured."""
    object_store_bytes: Annotated[int, Field(ge=80_000_000)] = 1_073_741_824
    """Object store of each node. Ray would take 30 % of memory; serving passes little through it. Ray's least is
    75 MiB."""
    arguments: tuple[Line, ...] = ()
    """More arguments of `ray start`, on every node."""


class ImageBuild(Model):
    """An image that is built on one node, from a directory of the operator's machine."""

    context: LocalPath
    """Directory that is sent whole to `docker build`. A changed file in it makes a new image. One with a
    `.dockerignore` is refused: it would be without effect."""
    dockerfile: PathInside = "Dockerfile"
    """The Dockerfile, relative to the directory; Docker's own default."""


class Node(Overridable):
    """One host. The first in the list is the head."""

    name: Name
    """Name in resources, labels and messages."""
    ssh: Ssh
    """`user@host[:port]`, an alias of the ssh configuration, or `local` for the machine that runs Pulumi."""
    jump: Name | None = None
    """Name of the node through which this one is reached; directly when unset."""
    fabric: HostAddress | None = None
    """Address on the fabric, the link between the nodes. Found from the subnet that all nodes share when unset:
    over RDMA before others, and among either link-local ones (169.254.x.x, netplan's `link-local: [ ipv4 ]`) last.
    """
    gpus: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that must be there; a Spark has one."""
    ray_arguments: tuple[Line, ...] = ()
    """More arguments of `ray start` on this node, behind those of `ray.arguments`."""

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
        """Port that `ssh` says, or None."""
        return self._host_and_port()[1]

    def _host_and_port(self) -> tuple[str, int | None]:
        match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?", self.ssh.rpartition("@")[2])
        assert match  # noqa: S101 - the field's pattern admits nothing else
        return match["v6"] or match["host"], int(match["port"]) if match["port"] else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if faults := list(node_faults(self)):
            raise ContradictionError(faults)
        return self


class Cluster(Overridable):
    """The cluster: its nodes, what they serve and how."""

    model_config = ConfigDict(json_schema_extra={"if": RAY_ALONE, "else": {"required": ["model"]}})

    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=MOST_NODES)]
    """The hosts; the first is the head, which also serves the API."""
    image: Image
    """Image with vLLM and Ray. Pin it by digest (`name@sha256:…`): tags have been moved in the field."""
    image_archive: LocalPath | None = None
    """`docker save` tar of the image on the operator's machine, for nodes that lack the image. One node loads it, the
    others copy from that over the fabric. Without it the image is pulled. Where `image` is a tag, the tar says
    which image that is: one made anew reaches every node. One pinned by digest is taken from a node that has it."""
    keep_image: bool = True
    """Destroy leaves the image on the nodes: 20 GB are soon wanted again. `false` removes it, wherever it came from."""
    image_build: ImageBuild | None = None
    """Build the image instead of pulling or loading it; `image` is the tag it gets. Pulled or loaded when unset."""
    serve: bool = True
    """Serve the model. `false` leaves a cluster of Ray alone, for batch jobs: no API, an image without vLLM will do,
    and the model is on the nodes only where one is given. Settings of serve stand without effect meanwhile."""
    model: ModelPlace | None = Field(default=None, validate_default=True)
    """Model directory, the same path on every node or `~/…` in each node's `home`; or an entry of the hub's cache
    (`…/models--ORG--NAME`, also with `/snapshots/COMMIT`); or `ORG/NAME`, which is downloaded once where no node has
    it. One node that has it is enough: the others copy it over the fabric. Required unless `serve: false`."""
    weights: Weights = Weights()
    """How the model gets onto the nodes."""
    served_model_name: Line | None = None
    """Name the API answers to; the model's name when unset."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """Ranks a layer is split over; all GPUs (divided by the pipeline size) when unset."""
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Stages the layers are spread over; 1 is vLLM's own default."""
    port: Port = 30000
    """Port of the OpenAI-compatible API on the head; the field case's."""
    listen: Address = Field(default="0.0.0.0", validate_default=True)  # noqa: S104
    """Address the API binds to; all of them, since it is for others. Set an apiKey when it is not loopback."""
    engine_arguments: tuple[Line, ...] = ()
    """More arguments of `vllm serve`, which runs on the head only."""
    require_rdma: bool = False
    """Stop where NCCL would fall back to sockets, and leave it no way to (NCCL_NET=IB). By default that is a warning:
    nodes without RDMA serve too, but slower (24 instead of 40 tokens/s were reported of two Sparks)."""
    ray: Ray = Ray()
    """How Ray is started."""
    deadlines: Deadlines = Deadlines()
    """How long each wait may take."""
    ssh_config: LocalPath | None = None
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
    def ports(self) -> dict[int, str]:
        """Ports that must be free on the head, and the setting of each."""
        return {self.ray.port: "ray.port"} | ({self.port: "port"} if self.serve else {})

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
        """Model name in force at the API; empty where there is neither a name nor a model."""
        model = self.model or ""
        entry = HUB_ENTRY.match(model)
        return self.served_model_name or (entry["name"] if entry else PurePosixPath(model).name)

    @property
    def hub_name(self) -> str | None:
        """Name of the model at the hub, None where `model` is a path."""
        return self.model if self.model and not self.model.startswith(("/", "~")) else None

    @property
    def model_path(self) -> str:
        """Where the model is on each node, as the settings write it; a hub name's entry in the cache; '' for none."""
        if self.hub_name is None:
            return self.model or ""
        return f"{self.weights.download_to.rstrip('/')}/models--{self.hub_name.replace('/', '--')}"

    @property
    def model_root(self) -> str:
        """Directory that the containers see: the model's own, or the entry of a hub cache with all its blobs."""
        entry = HUB_ENTRY.match(self.model_path)
        return entry["root"] if entry else self.model_path and str(PurePosixPath(self.model_path))

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return {node.name: node for node in self.nodes}[name]

    def of(self, node: Node) -> Overridable:
        """The values in force on a node: its own, else the cluster's, else the defaults."""
        return node.over(self)

    def route(self, node: Node) -> tuple[Node, ...]:
        """The nodes an ssh connection passes through, in order, `node` last."""
        return (*self.route(self.node(node.jump)), node) if node.jump else (node,)

    @field_validator("model")
    @classmethod
    def _needed(cls, model: str | None, info: ValidationInfo) -> str | None:
        """Told beside other faults, as `is required` of other settings."""
        if model is None and info.data.get("serve") and "serve" not in _doubtful(info):
            raise ContradictionError([((), "is required to serve; for a cluster of Ray alone set `serve: false`")])
        return model

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if faults := list(cluster_faults(self, _doubtful(info))):
            raise ContradictionError(faults)
        return self


def _doubtful(info: ValidationInfo) -> Collection[str]:
    doubtful: Collection[str] = (info.context or {}).get(DOUBTFUL, ())
    return doubtful
