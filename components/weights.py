"""What ModelWeights of a node is told, from the plan for all nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pulumi

from hosts.weights.plan import WeightsPlan
from providers.hub import Download
from providers.image_copy import Source
from providers.model_weights import ModelWeights

if TYPE_CHECKING:
    from components.node import Node


def model_weights(node: Node, plan: WeightsPlan) -> ModelWeights:
    """Declare the model on a node; where it must be downloaded, the node that gets the image first does that."""
    args, cluster, seed = node.args, node.args.cluster, node.args.seed
    own = cluster.weights
    share = plan.shares[node.name]
    compared: dict[str, dict[str, int]] = {}
    if own.verify == "checksum":
        for file, owner in plan.owners.items():
            compared.setdefault(owner, {})[file] = plan.sizes[file]
    inputs: dict[str, Any] = {
        "below": plan.below,
        "digest": plan.digest,
        "lacks": {file: one.dump() for file, one in share.files.items()},
        "links": dict(share.links),
        "refs": dict(share.refs),
        "sources": {
            name: {**Source(other.connection, other.address).dump(), "root": other.root}
            for name, other in args.ends.items()
            if name != node.name
        }
        if share.files or compared or plan.download
        else {},
        "compared": compared,
        "download": None,
        "streams": own.streams,
        "verify": own.verify,
        "keep": own.keep,
    }
    upstream: list[pulumi.Resource] = [node.host]
    if plan.download and seed and seed.weights:
        inputs |= {key: getattr(seed.weights, key) for key in ("below", "digest")}
        inputs |= {"lacks": seed.weights.offer, "links": seed.weights.offered_links, "refs": seed.weights.offered_refs}
        upstream.append(seed.weights)
    elif plan.download:
        inputs["download"] = _download(node)
        upstream.append(node.image)
    return ModelWeights(
        node.name,
        connection=node.connection,
        root=args.ends[node.name].root,
        inputs=inputs,
        token=args.hub_token if inputs["download"] else None,
        opts=pulumi.ResourceOptions(
            parent=node,
            depends_on=upstream,
            # What is to be removed has a delete of its own; otherwise the host's going is enough.
            deleted_with=node.host if own.keep else None,
            additional_secret_outputs=["token"],
        ),
    )


def _download(node: Node) -> pulumi.Output[dict[str, Any]]:
    """The download in a container that has the node's mounts and environment, as the engine may live in them."""
    args, own = node.args, node.own
    return node.image.image_id.apply(
        lambda image: asdict(
            Download(
                name=str(args.cluster.hub_name),
                revision=args.cluster.weights.revision,
                endpoint=args.cluster.weights.endpoint,
                image=image,
                stack=args.stack,
                mounts={mount.target: args.facts.path(mount.source) for mount in own.mounts},
                environment=dict(own.environment),
            )
        )
    )
