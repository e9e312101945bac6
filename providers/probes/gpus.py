"""Reads the nodes that Ray's GCS knows: one process for a whole wait, as a new Python per poll costs seconds.

The dashboard is not needed. Field names are those of GcsNodeInfo in Ray 2.53 to 2.60 (gcs.proto).
"""

import json
import select
import sys
from typing import Any

import ray
from ray._raylet import GcsClient


def nodes(client: Any) -> list[dict[str, Any]]:
    """All nodes, dead ones included: a node that came back is listed twice."""
    return [
        {
            "address": info.node_manager_address,
            "alive": info.state == 0,
            "gpus": dict(info.resources_total).get("GPU", 0),
            "started": getattr(info, "start_time_ms", 0) / 1000,
            "reason": getattr(getattr(info, "death_info", None), "reason_message", ""),
        }
        for info in client.get_all_node_info(timeout=2).values()
    ]


def main(address: str, pause: float) -> None:
    """Print readings until the input closes."""
    client = None
    while True:
        try:
            client = client or GcsClient(address=address)
            reading: dict[str, Any] = {"ray": ray.__version__, "nodes": nodes(client)}
        except Exception as error:  # noqa: BLE001 - every failure is a reading: the GCS may not be up yet
            client, reading = None, {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(reading), flush=True)
        if not pause or select.select([sys.stdin], [], [], pause)[0]:
            return


main(sys.argv[1], float(sys.argv[2]))
