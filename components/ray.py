"""Ray: the head, its workers, and the gate that opens on a verified GPU count."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from components.node import Node
from engines import vllm_ray
from providers.gate import Watched
from providers.gpu_gate import GpuGate
from providers.image_gate import ImageGate
from providers.members import Members
from settings import Cluster


class Ray(pulumi.ComponentResource):
    """One Ray cluster over all nodes; serve may start when its gate exists."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[Node],
        image: ImageGate,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("dgx-spark-cluster:index:Ray", "ray", None, opts)
        self.nodes = nodes
        head, *workers = nodes
        head_container = head.container(
            "ray-head",
            vllm_ray.ray_command(cluster, head.args.settings, head.fabric, head.fabric),
            upstream="",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[image]),
        )
        containers = [(head, "ray-head", head_container)]
        containers += [
            (
                worker,
                "ray-worker",
                worker.container(
                    "ray-worker",
                    vllm_ray.ray_command(cluster, worker.args.settings, worker.fabric, head.fabric),
                    upstream=head_container.id,
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[head_container]),
                ),
            )
            for worker in workers
        ]
        self.address = head.fabric.endpoint(cluster.ray.port)
        self.head_id = head_container.id
        self.watched = pulumi.Output.all(*(container.id for _, _, container in containers)).apply(
            lambda ids: [
                Watched(node.connection, id_, role).dump() for (node, role, _), id_ in zip(containers, ids, strict=True)
            ]
        )
        members = Members(
            "members",
            nodes={node.name: (node.fabric.address, node.connection) for node in nodes},
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.gate = GpuGate(
            "gpus",
            address=self.address,
            nodes=[
                {"name": node.name, "address": node.fabric.address, "gpus": node.args.settings.gpus} for node in nodes
            ],
            watched=self.watched,
            former=members.former,
            stack=head.args.stack,
            grace=cluster.deadlines.stop,
            deadline=cluster.deadlines.gpus,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[container for _, _, container in containers], deleted_with=head.host
            ),
        )
        self.register_outputs({"address": self.address})
