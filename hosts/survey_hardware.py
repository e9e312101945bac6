"""Second part of the script that runs on a node (hosts/survey.py): RDMA devices, and readings that vary.

It stands behind survey_script.py in one source, whose `from __future__` line holds here too: Python 3.8 and newer.
"""

import os
import time
from pathlib import Path
from typing import Any

STARTED = time.time()
"""When the node began to answer, by its own clock."""
INFINIBAND = Path("/sys/class/infiniband")
MOST_MODELS = 50


def text_of(path: str) -> str:
    """A short file of /proc or /sys in one read; empty where the kernel has no answer (EINVAL of a free GID slot)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(handle, 4096).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(handle)


def gids(port: str) -> list[dict[str, Any]]:
    """The filled slots of a port's GID table: 256 on a ConnectX-7, of which a Spark's port fills four or six."""
    found = []
    try:
        slots = sorted(int(slot) for slot in os.listdir(f"{port}/gids"))  # noqa: PTH208 - 256 names, no objects
    except OSError:
        return []
    for slot in slots:
        value = text_of(f"{port}/gids/{slot}")
        if value.strip("0:"):
            kind = text_of(f"{port}/gid_attrs/types/{slot}")
            interface = text_of(f"{port}/gid_attrs/ndevs/{slot}")
            found.append({"index": slot, "gid": value, "type": kind, "interface": interface})
    return found


def hcas() -> list[dict[str, Any]]:
    """RDMA devices: interfaces behind each with their MTU, state and link layer of port 1, its GIDs while it is active.

    Every port of a ConnectX-7 is a device of its own with the one port 1. A VLAN or a bond on an interface shows only
    with its GIDs.
    """
    found = []
    for device in sorted(INFINIBAND.glob("*")):
        port = f"{device}/ports/1"
        state = text_of(f"{port}/state")
        mtus = {entry.name: text_of(f"{entry}/mtu") for entry in sorted(device.glob("device/net/*"))}
        table = gids(port) if "ACTIVE" in state else []
        found.append(
            {
                "name": device.name,
                "interfaces": sorted({*mtus, *(gid["interface"] for gid in table if gid["interface"])}),
                "mtus": {name: int(mtu) for name, mtu in mtus.items() if mtu.isdigit()},
                "state": state,
                "link_layer": text_of(f"{port}/link_layer"),
                "gids": table,
            }
        )
    return found


def memory() -> dict[str, Any]:
    """Memory in bytes. A GB10 shares it with its GPU, for which nvidia-smi says [N/A]."""
    lines = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
    total, available = (int(lines.get(name, "0").split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return {"total": total, "available": available}


def room(path: str) -> dict[str, Any] | None:
    """Room on the file system of a path, or of its nearest parent that exists, in bytes; None where none answers."""
    place = path
    while place.startswith("/"):
        try:
            found, device = os.statvfs(place), os.stat(place).st_dev  # noqa: PTH116 - as above
        except OSError:
            if place == "/":
                break
            place = os.path.dirname(place)  # noqa: PTH120 - as above
            continue
        return {"path": path, "free": found.f_bavail * found.f_frsize, "device": device}
    return None


def models(model: str) -> list[str]:
    """Names of the models in the directory where the wanted one is or shall be, told by their config.json."""
    try:
        names = sorted(os.listdir(os.path.dirname(model)))  # noqa: PTH120, PTH208 - as above
    except OSError:
        return []
    found = [name for name in names if os.path.exists(f"{os.path.dirname(model)}/{name}/config.json")]  # noqa: PTH110, PTH120
    return found[:MOST_MODELS]


def os_name() -> str:
    """Name and version of the distribution."""
    lines = dict(line.split("=", 1) for line in text_of("/etc/os-release").splitlines() if "=" in line)
    return lines.get("PRETTY_NAME", "").strip('"')


def hardware(image_root: str, model: str) -> dict[str, Any]:
    """What this part adds to the answer, asked with the directories of the images and of the model."""
    return {
        "os": os_name(),
        "kernel": os.uname().release,
        "hcas": hcas(),
        "memory": memory(),
        "image_room": room(image_root),
        "model_room": room(model),
        "models": models(model),
        # Last: the end of the answer.
        "clock": {"started": STARTED, "ended": time.time()},
    }
