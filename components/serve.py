"""Serve: the engine's API on the head, and the gate that opens on a completion."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pulumi

from components.node import Node
from components.page_cache import dropping
from components.ray import Ray
from engines import vllm_ray
from hosts.fabric import Fabric
from providers.gate import Watched
from providers.serve_gate import ServeGate
from settings import Cluster


class Serve(pulumi.ComponentResource):
    """The API server, started only behind the GPU gate."""

    def __init__(
        self,
        cluster: Cluster,
        head: Node,
        ray: Ray,
        *,
        fabric: Mapping[str, Fabric],
        api_key: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("dgx-spark-cluster:index:Serve", "serve", None, opts)
        container = head.container(
            "serve",
            vllm_ray.serve_command(cluster, head.model),
            upstream=ray.head_id,  # and not the workers': a lost rank ends the engine, which starts anew by itself
            api_key=api_key,
            before=dropping(ray.nodes),
            files=_files(cluster, fabric),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[ray.gate]),
        )
        own = container.id.apply(lambda id_: Watched(head.connection, id_, "serve").dump())
        local = "127.0.0.1" if cluster.listen.is_unspecified else str(cluster.listen)
        host = local if head.args.settings.local else head.args.settings.host
        self.endpoint = _url(host, cluster.port)
        self.gate = ServeGate(
            "serving",
            url=_url(local, cluster.port),
            model=cluster.model_name,
            watched=pulumi.Output.all(own, ray.watched).apply(lambda both: [both[0], *both[1]]),
            addresses=[end.address for end in fabric.values()],
            deadlines={
                "deadline": cluster.deadlines.load,
                "completion": cluster.deadlines.completion,
                "probe": cluster.deadlines.probe,
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[container], deleted_with=head.host),
        )
        self.register_outputs({"endpoint": self.endpoint})


def _files(cluster: Cluster, fabric: Mapping[str, Fabric]) -> dict[str, str]:
    """Files of serve's container. An upload and not a directory of the node: it comes and goes with the container."""
    return {vllm_ray.KEPT_FILE: json.dumps(vllm_ray.kept_variables(cluster, fabric))}


def _url(host: str, port: int) -> str:
    """Base URL of the API."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
