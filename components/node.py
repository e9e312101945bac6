"""Node: one host, prepared, with its Docker provider, its facts, the image and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulumi
import pulumi_docker as docker

from components.hooks import beside
from components.preparation import Preparation
from components.weights import model_weights
from engines import vllm_ray
from hosts import ownership
from hosts.containers import claim, remove_all
from hosts.fabric import Fabric
from hosts.images.plan import Plan
from hosts.ssh import Connection
from hosts.stale import Stale
from hosts.survey import Survey, dump
from hosts.weights.plan import WeightsPlan
from providers.host import Host
from providers.image_copy import Source
from providers.model_weights import ModelWeights
from providers.node_image import NodeImage
from settings import Cluster
from settings import Node as Settings

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - in the containers
"""A volume in memory, empty when no container uses it. One container's own, joined by the others, would do until a
reboot: Docker then starts them in any order, and serve might not find its partner."""


@dataclass(frozen=True)
class End:
    """What a node is to the others when files are copied."""

    connection: Connection
    address: str
    """On the fabric."""
    root: str
    """Directory of the model that the containers see, on this node."""


@dataclass(frozen=True)
class NodeArgs:
    """All that is known of a node before anything is created."""

    stack: str
    cluster: Cluster
    settings: Settings
    facts: Survey
    fabric: Fabric
    head_fabric: Fabric
    image: Plan
    """Which image, and which node has or gets it first."""
    seed: Node | None
    """That node; None for itself."""
    ends: Mapping[str, End]
    """All nodes by name."""
    weights: WeightsPlan | None
    """Where the model's files are, and who lacks which; None where there is no model."""
    secrets: pulumi.Output[dict[str, str]] | None
    """More of the containers' environment, secret."""
    hub_token: pulumi.Output[str] | None
    """For the download of the model, secret."""


class Node(pulumi.ComponentResource):
    """A host of the cluster; roles are added to it by :meth:`container`."""

    def __init__(self, args: NodeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        self.args = args
        self.name = args.settings.name
        self.fabric = args.fabric
        self.own = args.cluster.of(args.settings)
        super().__init__("dgx-spark-cluster:index:Node", self.name, None, opts)
        self.connection = Connection.of(args.cluster, args.settings)
        inside = pulumi.ResourceOptions(parent=self)
        self.docker = docker.Provider(
            self.name,
            host=self.connection.docker_host,
            ssh_opts=self.connection.options,
            opts=inside,
        )
        self.preparation = Preparation(
            self.name,
            self.connection,
            Stale.of(self.own, args.facts),
            stack=args.stack,
            restore=self.own.restore_units,
            grace=args.cluster.deadlines.stop,
            opts=inside,
        )
        # Also in a preview: it must say so.
        takeover = pulumi.ResourceHook(
            f"{self.name}-takeover", self._take_over, pulumi.ResourceHookOptions(on_dry_run=True)
        )
        self.host = Host(
            self.name,
            connection=self.connection,
            stack=args.stack,
            facts=dump(args.facts),
            grace=args.cluster.deadlines.stop,
            timeout=args.cluster.deadlines.survey,
            discard="" if args.cluster.keep_image else args.cluster.image,
            opts=pulumi.ResourceOptions.merge(
                inside,
                pulumi.ResourceOptions(
                    # Units are put back only when all that is ours has left the node.
                    depends_on=[self.preparation.found],
                    hooks=pulumi.ResourceHookBinding(before_create=[takeover]),
                ),
            ),
        )
        self.claim = pulumi.ResourceHook(f"{self.name}-claim", self._claim)
        self.image = self._image(inside)
        self.weights = model_weights(self, args.weights) if args.weights else None
        self.volumes = self._volumes()
        self.register_outputs({"fabric": self.fabric.address, "interface": self.fabric.interface})

    def _image(self, inside: pulumi.ResourceOptions) -> NodeImage:
        plan, cluster, seed = self.args.image, self.args.cluster, self.args.seed
        build = cluster.image_build
        upstream: list[pulumi.Resource] = [seed.image] if seed else []
        return NodeImage(
            self.name,
            connection=self.connection,
            image=cluster.image,
            identity=plan.image.identity if plan.image else seed.image.identity if seed else None,
            image_id=plan.ids[self.name],
            source=Source(seed.connection, seed.fabric.address) if seed else None,
            archive=cluster.image_archive,
            build={**build.model_dump(), "digest": str(plan.context)} if build else None,
            opts=pulumi.ResourceOptions.merge(
                inside, pulumi.ResourceOptions(depends_on=[self.host, *upstream], deleted_with=self.host)
            ),
        )

    @property
    def model_root(self) -> str:
        """Where the containers see the model's directory: the head's path, as the engine tells its workers one."""
        return self.args.ends[self.args.cluster.head.name].root

    @property
    def model(self) -> pulumi.Output[str]:
        """Path of the model in the containers."""
        plan, weights = self._served
        known = pulumi.Output.from_input(plan.below) if plan.below is not None else weights.below
        return known.apply(lambda path: f"{self.model_root}/{path}".rstrip("/"))

    @property
    def _served(self) -> tuple[WeightsPlan, ModelWeights]:
        """The model of serve, which the settings have where they have serve."""
        assert self.args.weights  # noqa: S101 - see above
        assert self.weights  # noqa: S101 - made from the plan
        return self.args.weights, self.weights

    @property
    def roles(self) -> pulumi.ResourceOptions:
        """Options of what lives in this node's Docker: its provider, and no delete of its own when the host goes."""
        return pulumi.ResourceOptions(provider=self.docker, deleted_with=self.host, depends_on=[self.host])

    async def _take_over(self, _args: pulumi.ResourceHookArgs) -> None:
        """Before a node is new to this state: what a lost state, or another one, left there of this stack goes."""
        containers = self.args.facts.docker.containers
        ours = sorted(one.name for one in containers if one.labels.get("stack") == self.args.stack)
        if not ours:
            return
        pulumi.log.warn(
            f"{self.name}: {', '.join(ours)} of stack {self.args.stack!r} are there, but this state does not know "
            "them (it is new, or was lost): up removes them and starts anew",
            self,
        )
        if not pulumi.runtime.is_dry_run():
            await beside(partial(remove_all, self.connection, self.args.stack, self.args.cluster.deadlines.stop))

    async def _claim(self, args: pulumi.ResourceHookArgs) -> None:
        """Before a container is created: free its name, if the survey saw it taken a moment ago."""
        name = str((args.new_inputs or {})["name"])
        if not any(container.name == name for container in self.args.facts.docker.containers):
            return
        if await beside(partial(claim, self.connection, name, self.args.stack)):
            pulumi.log.warn(
                f"{self.name}: {name} was there, but not in this state; an interrupted run, or another state, left it: "
                "it is replaced",
                self,
            )

    def _volumes(self) -> list[docker.ContainerVolumeArgs]:
        """What the containers see of the node: the model, volumes of ours, directories of the user's."""
        facts = self.args.facts
        taken = {mount.key for mount in self.own.mounts}
        model = docker.ContainerVolumeArgs(
            host_path=self.args.ends[self.name].root, container_path=self.model_root, read_only=True
        )
        return [
            *([model] if self.weights else []),
            *(self._volume(role, path) for role, path in self._own_paths().items() if path not in taken),
            *(
                docker.ContainerVolumeArgs(
                    host_path=facts.path(mount.source), container_path=mount.target, read_only=mount.read_only
                )
                for mount in self.own.mounts
            ),
        ]

    def _own_paths(self) -> dict[str, str]:
        """Where the containers see the volumes of ours, by role."""
        return vllm_ray.VOLUMES | ({} if self.own.ipc == "host" else {"shm": SHARED_MEMORY})

    def _volume(self, role: str, path: str) -> docker.ContainerVolumeArgs:
        memory = {"type": "tmpfs", "device": "tmpfs", "o": f"size={self.own.shm_size_mib}m,mode=1777"}
        volume = docker.Volume(
            f"{self.name}-{role}",
            name=self.docker_name(role),
            driver_opts=memory if path == SHARED_MEMORY else None,
            labels=[
                docker.VolumeLabelArgs(label=label, value=value)
                for label, value in ownership.labels(self.args.stack, self.name, role).items()
            ],
            opts=pulumi.ResourceOptions.merge(self.roles, pulumi.ResourceOptions(parent=self)),
        )
        return docker.ContainerVolumeArgs(volume_name=volume.name, container_path=path)

    def docker_name(self, role: str) -> str:
        """Name of a container or volume on the node."""
        return ownership.name(self.own.container_prefix, self.args.stack, role)

    def _environment(self, api_key: pulumi.Output[str] | None) -> pulumi.Input[list[str]]:
        """Lines of the environment; secret as a whole where a part of it is."""
        args = self.args
        plain = vllm_ray.environment(args.cluster, args.settings, self.fabric, args.head_fabric)
        if args.secrets is None and api_key is None:
            return _lines(plain)
        secrets: list[Any] = [args.secrets or {}, {"VLLM_API_KEY": api_key} if api_key is not None else {}]
        return pulumi.Output.all(*secrets).apply(lambda more: _lines(plain | more[0]) + _lines(more[1]))

    def container(
        self,
        role: str,
        command: Sequence[pulumi.Input[str]],
        *,
        upstream: pulumi.Input[str],
        api_key: pulumi.Output[str] | None = None,
        before: Sequence[pulumi.ResourceHook] = (),
        files: Mapping[str, str] | None = None,
        opts: pulumi.ResourceOptions,
    ) -> docker.Container:
        """A container of this node.

        Args:
            role: ray-head, ray-worker or serve.
            command: what it runs; the image's entrypoint is overridden.
            upstream: id of the container it is replaced with, kept in a label; empty for none.
            api_key: secret that serve's API asks for.
            before: what else happens before it is created.
            files: contents by path, put into the container before it starts.
            opts: parent and dependencies.
        """
        args = self.args
        assert self.preparation.stopped  # noqa: S101 - Cluster declares it before the first role
        labels: dict[str, pulumi.Input[str]] = {
            **self.own.labels,
            **ownership.labels(args.stack, self.name, role),
            f"{ownership.PREFIX}.upstream": upstream,
        }
        if role == "serve":  # it has loaded what is in memory: another model is loaded by another container
            plan, weights = self._served
            loaded = plan.digest or weights.digest
            labels[f"{ownership.PREFIX}.weights"] = pulumi.Output.from_input(loaded).apply(lambda digest: digest[:12])
        return docker.Container(
            f"{self.name}-{role}",
            name=self.docker_name(role),
            image=self.image.image_id,
            entrypoints=command[:1],
            command=command[1:],
            envs=self._environment(api_key),
            labels=[docker.ContainerLabelArgs(label=label, value=value) for label, value in labels.items()],
            network_mode="host",
            ipc_mode="host" if self.own.ipc == "host" else "private",
            gpus="all",
            devices=[docker.ContainerDeviceArgs(host_path=path) for path in args.facts.devices],
            ulimits=[
                docker.ContainerUlimitArgs(name=limit.name, soft=limit.soft, hard=limit.hard)
                for limit in self.own.ulimits
            ],
            volumes=self.volumes,
            uploads=[docker.ContainerUploadArgs(file=path, content=text) for path, text in (files or {}).items()],
            restart=self.own.restart,
            must_run=True,
            destroy_grace_seconds=args.cluster.deadlines.stop,
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions.merge(self.roles, opts),
                pulumi.ResourceOptions(
                    depends_on=[*([self.weights] if self.weights else []), self.preparation.stopped],
                    delete_before_replace=True,
                    hooks=pulumi.ResourceHookBinding(before_create=[self.claim, *before]),
                ),
            ),
        )


def _lines(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(environment.items())]
