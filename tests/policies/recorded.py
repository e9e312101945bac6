"""Resources as the engine handed them to a policy pack, recorded from a preview of two nodes.

The wire's shape is kept (camelCase for Docker, sentinel strings for the unknown, sentinel mappings for secrets): the
SDK's own decoding is part of every test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulumi_policy import (
    PolicyCustomTimeouts,
    PolicyProviderResource,
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.deserialize import SPECIAL_SECRET_SIG, SPECIAL_SIG_KEY, deserialize_properties
from pulumi_policy.proxy import UNKNOWN_ARRAY_VALUE, UNKNOWN_STRING_VALUE, unknown_checking_proxy

from policies.pack import POLICIES
from policies.registered import CONTAINER, GPU_GATE, NODE_IMAGE, SERVE_GATE

ID = "sha256:" + "0123456789abcdef" * 4
FABRIC = {"spark-1": "192.168.200.12", "spark-2": "192.168.200.13"}
HEAD = "192.168.200.12:6379"
KEY = "hunter2-is-the-key"
UNKNOWN = UNKNOWN_STRING_VALUE
UNKNOWN_LIST = UNKNOWN_ARRAY_VALUE
OPTIONS = PolicyResourceOptions(
    protect=False,
    ignore_changes=[],
    delete_before_replace=None,
    aliases=[],
    custom_timeouts=PolicyCustomTimeouts(0, 0, 0),
    additional_secret_outputs=[],
)


@dataclass
class Recorded:
    """One resource on the wire."""

    type: str
    name: str
    props: dict[str, Any]
    provider: str | None = "default"
    stack: str = "spark"
    depends_on: Sequence[Recorded] = field(default_factory=list)

    @property
    def urn(self) -> str:
        return f"urn:pulumi:{self.stack}::dgx-spark-cluster::dgx-spark-cluster:index:Cluster${self.type}::{self.name}"


def secret(value: Any) -> dict[str, Any]:
    return {SPECIAL_SIG_KEY: SPECIAL_SECRET_SIG, "value": value}


def labels(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"value": value, "label": f"dgx-spark-cluster.{key}"} for key, value in values.items()]


def container(role: str, node: str, words: list[str], **changes: Any) -> Recorded:
    """A container that keeps every rule, but for `changes` of its properties."""
    stack = changes.pop("stack", "spark")
    provider = changes.pop("provider", node)
    props = {
        "name": f"dgx-spark-cluster-{stack}-{role}",
        "image": ID,
        "entrypoints": words[:1],
        "command": words[1:],
        "envs": ["GLOO_SOCKET_IFNAME=enp1s0f1np1", f"RAY_ADDRESS={HEAD}", f"VLLM_HOST_IP={FABRIC[node]}"],
        "labels": labels({"stack": stack, "role": role, "node": node, "upstream": UNKNOWN}),
        "networkMode": "host",
        "ipcMode": "host",
        "gpus": "all",
        "mustRun": True,
        "destroyGraceSeconds": 10.0,
        "devices": [{"permissions": "rwm", "hostPath": "/dev/infiniband"}],
        "volumes": [
            {"readOnly": True, "hostPath": "/opt/models/m", "containerPath": "/opt/models/m"},
            {"volumeName": "dgx-spark-cluster-spark-cache", "containerPath": "/root/.cache"},
        ],
        "restart": "unless-stopped",
        **changes,
    }
    return Recorded(CONTAINER, f"{node}-{role}", props, provider, stack)


def head(**changes: Any) -> Recorded:
    command = ["ray", "start", "--block", "--head", "--port=6379", "--node-ip-address=192.168.200.12"]
    return container("ray-head", "spark-1", command, **changes)


def worker(**changes: Any) -> Recorded:
    command = ["ray", "start", "--block", f"--address={HEAD}", "--node-ip-address=192.168.200.13"]
    return container("ray-worker", "spark-2", command, **changes)


def serve(**changes: Any) -> Recorded:
    environment = secret([f"RAY_ADDRESS={HEAD}", f"VLLM_HOST_IP={FABRIC['spark-1']}", f"VLLM_API_KEY={KEY}"])
    command = ["vllm", "serve", "/opt/models/m", "--served-model-name=m", "--host=0.0.0.0", "--port=30000"]
    return container("serve", "spark-1", command, **{"envs": environment, **changes})


def node_image(image: str = f"nvcr.io/x/vllm@{ID}", stack: str = "spark", **changes: Any) -> Recorded:
    connection = {"node": "spark-1", "hops": [], "connect_timeout": 5.0}
    props: dict[str, Any] = {"connection": connection, "image": image, "image_id": ID}
    return Recorded(NODE_IMAGE, "spark-1", props | changes, stack=stack)


def gpu_gate(**changes: Any) -> Recorded:
    nodes = [{"gpus": 1.0, "address": address, "name": name} for name, address in FABRIC.items()]
    props = {"address": HEAD, "nodes": nodes, "watched": UNKNOWN_LIST, "deadline": 120.0, **changes}
    return Recorded(GPU_GATE, "gpus", props)


def cluster(**members: Recorded) -> dict[str, Recorded]:
    """A stack that keeps every rule, but for the members given: head, worker, gate, serve, verified."""
    found = {"head": head(), "worker": worker(), "gate": gpu_gate(), "serve": serve(), **members}
    found["gate"].depends_on = [found["head"], found["worker"]]
    found["serve"].depends_on = [found["gate"]]
    found.setdefault("verified", Recorded(SERVE_GATE, "serving", {"model": "m", "watched": UNKNOWN_LIST}))
    found["verified"].depends_on = [found["serve"]]
    return found


def check(policy: str, *resources: Recorded) -> list[str]:
    """What a policy reports, through the SDK's decoding; for each resource alone unless it is a stack policy."""
    texts: list[str] = []
    found = next(one for one in POLICIES if one.name == policy)
    if isinstance(found, ResourceValidationPolicy):
        for one in resources:
            args = ResourceValidationArgs(one.type, _decoded(one), one.urn, one.name, OPTIONS, _provider(one))
            found.validate(args, lambda text, _urn: texts.append(text))
    else:
        assert isinstance(found, StackValidationPolicy)
        seen = {
            one.urn: PolicyResource(
                one.type, _decoded(one), one.urn, one.name, OPTIONS, _provider(one), None, [], {}
            )
            for one in resources
        }  # fmt: skip
        for one in resources:
            seen[one.urn].dependencies += [seen[other.urn] for other in one.depends_on if other.urn in seen]
        found.validate(StackValidationArgs(list(seen.values())), lambda text, urn: texts.append(f"{urn} {text}"))
    return texts


def _decoded(one: Recorded) -> dict[str, Any]:
    return unknown_checking_proxy(deserialize_properties(one.props))


def _provider(one: Recorded) -> PolicyProviderResource | None:
    if one.provider is None:
        return None
    return PolicyProviderResource("pulumi:providers:docker", {}, f"urn:…::{one.provider}", one.provider)
