"""Cluster: everything of one stack, from settings and surveyed facts to outputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from components.node import End, Node, NodeArgs
from components.ray import Ray
from components.serve import Serve
from engines import vllm_image
from hosts.fabric import Fabric
from hosts.images.plan import Plan
from hosts.images.stock import amount
from hosts.ssh import Connection
from hosts.survey import Survey
from hosts.weights.plan import WeightsPlan
from providers.image_gate import ImageGate
from settings import Cluster as Settings


@dataclass(frozen=True)
class ClusterArgs:
    """Settings, the facts of every node, what was decided from both, and the secrets if there are any."""

    stack: str
    settings: Settings
    surveys: Mapping[str, Survey]
    fabric: Mapping[str, Fabric]
    image: Plan
    weights: WeightsPlan | None
    """None where there is no model."""
    api_key: pulumi.Output[str] | None
    secrets: pulumi.Output[dict[str, str]] | None = None
    """Environment of all containers that is secret."""
    hub_token: pulumi.Output[str] | None = None
    """For a model that is downloaded from the hub."""


class Cluster(pulumi.ComponentResource):
    """Nodes, Ray and serve, with the stack's outputs as attributes."""

    def __init__(self, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Register everything."""
        super().__init__("dgx-spark-cluster:index:Cluster", "cluster", None, opts)
        settings, fabric, image = args.settings, args.fabric, args.image
        ends = {
            node.name: End(
                Connection.of(settings, node),
                fabric[node.name].address,
                args.surveys[node.name].path(settings.model_root),
            )
            for node in settings.nodes
        }
        inside = pulumi.ResourceOptions(parent=self)
        made: dict[str, Node] = {}
        for node in sorted(settings.nodes, key=lambda one: one.name != image.seed):
            made[node.name] = Node(
                NodeArgs(
                    stack=args.stack,
                    cluster=settings,
                    settings=node,
                    facts=args.surveys[node.name],
                    fabric=fabric[node.name],
                    head_fabric=fabric[settings.head.name],
                    image=image,
                    seed=made.get(image.seed),
                    ends=ends,
                    weights=args.weights,
                    secrets=args.secrets,
                    hub_token=args.hub_token,
                ),
                inside,
            )
            if args.weights:
                lacking(made[node.name], args.weights)
        nodes = [made[node.name] for node in settings.nodes]
        head = nodes[0]
        gate = ImageGate(
            "image",
            connection=head.connection,
            stack=args.stack,
            image=settings.image,
            image_id=head.image.image_id,
            mounts=vllm_image.mounts(settings, settings.head, head.args.facts),
            arguments=vllm_image.arguments(settings),
            opts=pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(deleted_with=head.host)),
        )
        # On no node before all of them have what is to come instead: a live service ends for nothing less.
        ready = [gate, *(node.image for node in nodes), *(node.weights for node in nodes if node.weights)]
        for one in nodes:
            one.preparation.stop(ready)
        ray = Ray(settings, nodes, gate, inside)
        self.outputs: dict[str, Any] = {
            "nodes": [
                {
                    "name": node.name,
                    "role": "head" if node.name == settings.head.name else "worker",
                    "management": node.args.settings.host,
                    "fabric": f"{node.fabric.address} on {node.fabric.interface} ({node.fabric.reason})",
                    "hcas": list(node.fabric.hcas),
                    "gpus": [gpu.name for gpu in node.args.facts.gpus],
                }
                for node in nodes
            ],
            "ray": {"address": ray.address, "version": ray.gate.ray},
        }
        if settings.serve:
            serve = Serve(settings, head, ray, fabric=fabric, api_key=args.api_key, opts=inside)
            self.outputs |= {
                "endpoint": serve.endpoint,
                "model": settings.model_name,
                "curl": curl(serve.endpoint, settings.model_name, with_key=args.api_key is not None),
                "vllm": gate.vllm,
                "first_token_seconds": serve.gate.first_token_seconds,
                "tokens_per_second": serve.gate.tokens_per_second,
            }
        self.register_outputs({})


def lacking(node: Node, plan: WeightsPlan) -> None:
    """Say which files a node lacks, and where they come from: Pulumi's own preview shows only that there are some."""
    share = plan.shares[node.name]
    if plan.download:
        name = node.args.cluster.hub_name
        pulumi.log.info(f"{node.name}: model {name} is on no node and is downloaded", node.weights)
    elif not share.nothing:
        pulumi.log.info(f"{node.name}: the model lacks {share}; {amount(share.size)} in all", node.weights)


def curl(endpoint: str, model: str, *, with_key: bool) -> str:
    """A line to paste into a shell; the key is left to the user's environment."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
    key = ' -H "Authorization: Bearer $API_KEY"' if with_key else ""
    return f"curl -s {endpoint}/chat/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"
