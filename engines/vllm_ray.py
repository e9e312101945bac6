"""vLLM over Ray: what each container runs, in which environment.

Sources: Ray 2.53 and 2.60 `ray start --help`; vLLM 0.17.1 and 0.32.0 (executor/ray_executor.py, envs.py). The
entrypoint of an image is always overridden: some are driven by environment variables and swallow the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hosts.fabric import Fabric
from settings import Cluster, Node

ModelPath = TypeVar("ModelPath")
"""Text, or what becomes text later."""

RAY_DIRECTORY = "/tmp/ray"  # noqa: S108 - Ray's own, inside the container; a volume of ours on the node
CACHE_DIRECTORY = "/root/.cache"
"""Where vLLM, Triton and torch keep what they compile; see :func:`environment`."""
VOLUMES = {"ray": RAY_DIRECTORY, "cache": CACHE_DIRECTORY}
"""Volumes of ours by role, and where the containers see them."""
CONFIG_DIRECTORY = "/etc/dgx-spark-cluster"
"""Where vLLM looks for its configuration: readable for any user of the image, wherever its home is."""
KEPT_FILE = f"{CONFIG_DIRECTORY}/ray_non_carry_over_env_vars.json"
"""Names of variables that the engine's driver does not copy from serve to the workers (vllm/ray/ray_env.py)."""


def ray_command(cluster: Cluster, node: Node, fabric: Fabric, head: Fabric) -> list[str]:
    """Argument list of `ray start` for the head or a worker, as the container's first process.

    `--block` makes it exit when a process of Ray dies, so that Docker's restart policy sees it.
    """
    if node == cluster.head:
        role = ["--head", f"--port={cluster.ray.port}", f"--include-dashboard={str(cluster.ray.dashboard).lower()}"]
    else:
        role = [f"--address={head.endpoint(cluster.ray.port)}"]
    return [
        "ray",
        "start",
        "--block",
        *role,
        f"--node-ip-address={fabric.address}",
        f"--object-store-memory={cluster.ray.object_store_bytes}",
        "--disable-usage-stats",
        *cluster.ray.arguments,
        *node.ray_arguments,
    ]


def serve_command(cluster: Cluster, model: ModelPath) -> list[str | ModelPath]:
    """Argument list of `vllm serve` on the head; `model` is the path that all containers have, or a promise of it."""
    return [
        "vllm",
        "serve",
        model,
        f"--served-model-name={cluster.model_name}",
        f"--host={cluster.listen}",
        f"--port={cluster.port}",
        f"--tensor-parallel-size={cluster.tensor_parallel}",
        f"--pipeline-parallel-size={cluster.pipeline_parallel_size}",
        "--distributed-executor-backend=ray",
        *cluster.engine_arguments,
    ]


def kept_variables(cluster: Cluster, fabric: Mapping[str, Fabric]) -> list[str]:
    """Names of variables that no worker takes from serve, for :data:`KEPT_FILE` in its container.

    Those that differ between the nodes, and the API key, which is serve's alone and would go through Ray in the clear.

    vLLM 0.17's driver copies what begins with NCCL_, UCX_, … over the workers' own: a head on port f1 would make a
    worker on port f0 look for devices that it does not have (sparkrun#135). 0.32 only fills what a worker lacks, which
    is as wrong for a variable that one node has on purpose. Each node's containers have all that they need.
    """
    head, *others = (environment(cluster, node, fabric[node.name], fabric[cluster.head.name]) for node in cluster.nodes)
    differing = {name for own in others for name in head | own if head.get(name) != own.get(name)}
    return sorted({*differing, "VLLM_API_KEY"})


def environment(cluster: Cluster, node: Node, fabric: Fabric, head: Fabric) -> dict[str, str]:
    """Environment of a node's containers, Ray and serve alike.

    vLLM copies few variables from the driver to the workers (VLLM_, NCCL_, UCX_, HF_), so each node gets all of its
    own; VLLM_HOST_IP must be the address that Ray registered, or the placement group waits for 1,800 s in vain.
    """
    values = {
        "RAY_ADDRESS": head.endpoint(cluster.ray.port),
        # Raylet's defaults cost a Spark memory and start-up time: idle Python workers, and a monitor that kills the
        # engine at 95 % of memory, which weights and KV cache reach by design.
        "RAY_num_prestart_python_workers": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        # A worker notices a head that came back anew by asking it, by default once a minute, and joins it only then.
        "RAY_raylet_liveness_self_check_interval_ms": "5000",
        "VLLM_HOST_IP": fabric.address,
        # Serve's engine and the local Ray worker are in two containers and meet on unix sockets there.
        "VLLM_RPC_BASE_PATH": RAY_DIRECTORY,
        "VLLM_ENGINE_READY_TIMEOUT_S": f"{cluster.deadlines.load:.0f}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": fabric.interface,
        "NCCL_SOCKET_IFNAME": fabric.interface,
        "OMPI_MCA_btl_tcp_if_include": fabric.interface,
        "TP_SOCKET_IFNAME": fabric.interface,
        "UCX_NET_DEVICES": fabric.interface,
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_DIRECTORY}/inductor",
        "TRITON_CACHE_DIR": f"{CACHE_DIRECTORY}/triton",
        "VLLM_CACHE_ROOT": f"{CACHE_DIRECTORY}/vllm",
        "VLLM_CONFIG_ROOT": CONFIG_DIRECTORY,
    }
    own = cluster.of(node)
    if fabric.hcas and fabric.rdma:
        values["NCCL_IB_HCA"] = ",".join(fabric.hcas)
        if ":" in fabric.address:
            values["NCCL_IB_ADDR_FAMILY"] = "AF_INET6"  # its default is IPv4; that of the RoCE version is 2
    else:
        values["NCCL_IB_DISABLE"] = "1"  # or NCCL takes any device that is active, be it on another cable
    gid_index = fabric.gid_index if own.gid_index is None else own.gid_index
    if gid_index is not None:
        values["NCCL_IB_GID_INDEX"] = str(gid_index)
    if cluster.require_rdma and len(cluster.nodes) > 1:  # a single node has no network to cross
        values["NCCL_NET"] = "IB"
    return values | own.environment
