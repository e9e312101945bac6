"""What may differ from host to host: given for the whole cluster, for one node, or both."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from settings.checks import host_faults
from settings.fields import (
    AbsolutePath,
    ContainerName,
    ContradictionError,
    EnvironmentName,
    EnvironmentValue,
    HcaName,
    InterfaceName,
    LabelName,
    Line,
    Model,
    MountTarget,
    Name,
    NodePath,
    Port,
    UnitName,
)

MOST = 2**63 - 1
"""Highest limit that Docker takes, an int64; -1 is beyond it."""


class Entry(Model):
    """An entry of a list that is known by a key: a node's entry takes the place of the cluster's with that key."""

    @property
    def key(self) -> str:
        """What names the entry in its list."""
        raise NotImplementedError


class Ulimit(Entry):
    """One resource limit of a container; -1 means unlimited."""

    name: Literal[
        "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
        "rttime", "sigpending", "stack",
    ]  # fmt: skip
    """Name as `docker run --ulimit` takes it."""
    soft: int = Field(ge=-1, le=MOST)
    """Soft limit, in the unit of setrlimit(2): bytes, seconds or a count."""
    hard: int = Field(ge=-1, le=MOST)
    """Hard limit, not below the soft one."""

    @property
    def key(self) -> str:
        """Its name."""
        return self.name


class Mount(Entry):
    """A directory of the node that its containers see."""

    source: NodePath
    """Directory on the node, `~/…` in its `home`. It must exist: Docker would create it, owned by root."""
    target: MountTarget
    """Path inside the containers."""
    read_only: bool = True
    """Read-only unless the containers must write, as for a compile cache."""

    @property
    def key(self) -> str:
        """Its target, however it is written."""
        return str(PurePosixPath(self.target))


class Overridable(Model):
    """Settings of a host: the cluster's hold for all nodes, a node's own win over them.

    Mappings, and lists whose entries have a key (a mount's target, a ulimit's name), are merged entry by entry; any
    other value replaces the cluster's. Of a setting that may be `null`, that on a node brings back what is found where
    nothing is given.
    """

    interface: InterfaceName | None = None
    """Network interface of the fabric. The one that has the fabric address when unset: names differ between hosts
    (enp1s0f0np0 or enp1s0f1np1 by the cage that is cabled), so it is best left to the survey."""
    hcas: tuple[HcaName, ...] | None = None
    """RDMA devices for NCCL_IB_HCA. Both PCIe twins of the fabric's port when unset, since NCCL reaches full bandwidth
    only with both (NVIDIA's connect-two-sparks playbook). An empty list turns RDMA off (NCCL_IB_DISABLE)."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """NCCL_IB_GID_INDEX. Left to NCCL when unset: since 2.21 it finds the RoCE v2 GID of the address itself."""
    ssh_port: Port | None = None
    """Port of sshd. A port in `ssh` wins; ssh's own choice (its configuration, else 22) when unset."""
    identity_file: Line | None = None
    """Private key on the operator's machine; ssh's own choice (agent, configuration) when unset."""
    home: AbsolutePath | None = None
    """Directory that `~/` means in `model` and in the sources of `mounts`; that of the ssh user when unset."""
    environment: dict[EnvironmentName, EnvironmentValue] = Field(default={})
    """Environment of the containers, over what the program sets. Secrets go into `secretEnvironment` instead."""
    mounts: tuple[Mount, ...] = ()
    """More directories for the containers. The model is mounted without being named here."""
    devices: tuple[AbsolutePath, ...] = ("/dev/infiniband",)
    """Device paths for the containers, where the node has them; NCCL needs /dev/infiniband for RDMA."""
    ulimits: tuple[Ulimit, ...] = (
        Ulimit(name="memlock", soft=-1, hard=-1),
        Ulimit(name="nofile", soft=1048576, hard=1048576),
    )
    """Limits of the containers: RDMA registers memory (memlock, NCCL's guide), vLLM warns below 65,535 files."""
    restart: Literal["unless-stopped", "always", "on-failure", "no"] = "unless-stopped"
    """Docker's restart policy, the first line of repair: both nodes rebooted, 44 s later they served, measured."""
    ipc: Literal["shared", "host"] = "shared"
    """Whose /dev/shm the containers use. Ray and the engine meet there, so all containers of a node must see the same
    one: `shared` among them, a volume in memory that leaves with the stack, or the `host`'s, as vLLM's documentation
    has it, where the segments of an engine that had to be killed stay until a reboot."""
    shm_size_mib: Annotated[int, Field(ge=64, le=2**20)] = 10240
    """Most that a `shared` /dev/shm holds, in MiB; that of vLLM's run_cluster.sh (10.24g). Only what is used costs
    memory. The host's has its own size."""
    labels: dict[LabelName, Line] = Field(default={})
    """More labels of the containers, for monitoring and the like. The program's own begin with dgx-spark-cluster."""
    container_prefix: Name = "dgx-spark-cluster"
    """First part of the names of containers and volumes, PREFIX-STACK-ROLE; the project's, so that `docker ps` tells
    whose they are. A change replaces them all."""
    stale_units: tuple[UnitName, ...] = (
        "vllm-cluster.service",
        "vllm-proxy.service",
        "vllm-embeddings.service",
        "vllm-reranker.service",
    )
    """systemd units that may be stopped and disabled: what earlier set-ups left, which holds the GPU after each reboot.
    The field case's by default. Nothing else of the node's is ever stopped."""
    stale_containers: tuple[ContainerName, ...] = ("vllm_node", "reranker", "vllm_embeddings")
    """Containers that may be stopped and removed, their volumes left; the field case's by default. They do not come
    back."""
    restore_units: bool = True
    """Whether destroy enables and starts these units again, each as it was found first: a destroy is to leave a host as
    it was. False where they shall stay off for good."""
    drop_page_cache: bool = False
    """Drop the node's page cache whenever serve is created or replaced; a stopped one is started without. On a Spark it
    counts as used GPU memory, and vLLM may refuse to start (vLLM issue 35313); every NVIDIA playbook has this step.
    False, as it needs sudo without a password and slows down whatever else runs on the host."""

    def over(self, lower: Overridable) -> Overridable:
        """The values in force where these are given over those of `lower`."""
        return Overridable.model_construct(
            **{
                name: _merged(getattr(self, name), getattr(lower, name))
                if name in self.model_fields_set
                else getattr(lower, name)
                for name in Overridable.model_fields
            }
        )

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if faults := list(host_faults(self)):
            raise ContradictionError(faults)
        return self


def _merged(upper: Any, lower: Any) -> Any:
    """`upper` in the place of `lower`, or merged with it where their parts have keys."""
    if isinstance(upper, dict) and isinstance(lower, dict):
        return lower | upper
    if isinstance(upper, tuple) and isinstance(lower, tuple) and all(isinstance(e, Entry) for e in (*lower, *upper)):
        return tuple({entry.key: entry for entry in (*lower, *upper)}.values())
    return upper
