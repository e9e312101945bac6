"""Node: one host with its Docker provider, its facts and the image."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_docker as docker

from engines import vllm_ray
from hosts import ownership
from hosts.containers import claim
from hosts.fabric import Fabric
from hosts.image_plan import Plan
from hosts.ssh import Connection
from hosts.survey import Survey, dump
from providers.host import Host
from providers.image_copy import Source
from providers.node_image import NodeImage
from settings import Cluster
from settings import Node as Settings


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


class Node(pulumi.ComponentResource):
    """A host of the cluster; roles are added to it by :meth:`container`."""

    def __init__(self, args: NodeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        self.args = args
        self.name = args.settings.name
        self.fabric = args.fabric
        super().__init__("dgx-spark-cluster:index:Node", self.name, None, opts)
        self.connection = Connection.of(args.cluster, args.settings)
        inside = pulumi.ResourceOptions(parent=self)
        self.docker = docker.Provider(
            self.name,
            host=self.connection.docker_host,
            ssh_opts=self.connection.options,
            opts=inside,
        )
        self.host = Host(
            self.name,
            connection=self.connection,
            stack=args.stack,
            facts=dump(args.facts),
            grace=args.cluster.deadlines.stop,
            timeout=args.cluster.deadlines.survey,
            opts=inside,
        )
        self.claim = pulumi.ResourceHook(f"{self.name}-claim", self._claim)
        self.image = self._image(inside)
        self.volumes = [self._volume("ray", vllm_ray.RAY_DIRECTORY)]
        if vllm_ray.CACHE_DIRECTORY not in {mount.target for mount in args.cluster.mounts}:
            self.volumes.append(self._volume("cache", vllm_ray.CACHE_DIRECTORY))
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
    def roles(self) -> pulumi.ResourceOptions:
        """Options of what lives in this node's Docker: its provider, and no delete of its own when the host goes."""
        return pulumi.ResourceOptions(provider=self.docker, deleted_with=self.host, depends_on=[self.host])

    def _claim(self, args: pulumi.ResourceHookArgs) -> None:
        """Before a container is created: free its name, if the survey saw it taken a moment ago."""
        name = str((args.new_inputs or {})["name"])
        if any(container.name == name for container in self.args.facts.docker.containers):
            claim(self.connection, name, self.args.stack)

    def _volume(self, role: str, path: str) -> docker.ContainerVolumeArgs:
        volume = docker.Volume(
            f"{self.name}-{role}",
            name=ownership.name(self.args.stack, role),
            labels=[
                docker.VolumeLabelArgs(label=label, value=value)
                for label, value in ownership.labels(self.args.stack, self.name, role).items()
            ],
            opts=pulumi.ResourceOptions.merge(self.roles, pulumi.ResourceOptions(parent=self)),
        )
        return docker.ContainerVolumeArgs(volume_name=volume.name, container_path=path)

    def container(
        self,
        role: str,
        command: list[str],
        *,
        upstream: pulumi.Input[str],
        api_key: pulumi.Output[str] | None = None,
        opts: pulumi.ResourceOptions,
    ) -> docker.Container:
        """A container of this node.

        Args:
            role: ray-head, ray-worker or serve.
            command: what it runs; the image's entrypoint is overridden.
            upstream: ids of the containers it depends on. A label holds them, so that it is replaced with them.
            api_key: secret that serve's API asks for.
            opts: parent and dependencies.
        """
        args = self.args
        plain = vllm_ray.environment(args.cluster, args.settings, self.fabric, args.head_fabric)
        lines = [f"{name}={value}" for name, value in sorted(plain.items())]
        envs: pulumi.Input[list[str]] = lines
        if api_key is not None:
            envs = api_key.apply(lambda key: [*lines, f"VLLM_API_KEY={key}"])
        labels = {**ownership.labels(args.stack, self.name, role), f"{ownership.PREFIX}.upstream": upstream}
        return docker.Container(
            f"{self.name}-{role}",
            name=ownership.name(args.stack, role),
            image=self.image.image_id,
            entrypoints=command[:1],
            command=command[1:],
            envs=envs,
            labels=[docker.ContainerLabelArgs(label=label, value=value) for label, value in labels.items()],
            network_mode="host",
            ipc_mode="host",
            gpus="all",
            devices=[docker.ContainerDeviceArgs(host_path=path) for path in args.facts.devices],
            ulimits=[
                docker.ContainerUlimitArgs(name=limit.name, soft=limit.soft, hard=limit.hard)
                for limit in args.cluster.ulimits
            ],
            volumes=[
                docker.ContainerVolumeArgs(
                    host_path=args.cluster.model, container_path=args.cluster.model, read_only=True
                ),
                *self.volumes,
                *(
                    docker.ContainerVolumeArgs(
                        host_path=mount.source, container_path=mount.target, read_only=mount.read_only
                    )
                    for mount in args.cluster.mounts
                ),
            ],
            restart=args.cluster.restart,
            must_run=True,
            destroy_grace_seconds=args.cluster.deadlines.stop,
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions.merge(self.roles, opts),
                pulumi.ResourceOptions(
                    delete_before_replace=True, hooks=pulumi.ResourceHookBinding(before_create=[self.claim])
                ),
            ),
        )
