"""Names, addresses and paths of the lab: what everything else in it agrees on."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FILES = CHECKOUT / "lab" / "files"
STATE = CHECKOUT / ".build" / "lab"
TEMPORARY = STATE / "tmp"
LOCK = CHECKOUT / ".build" / "lab.lock"  # outlives a purge
SSH_CONFIG = STATE / "ssh_config"
ENGINE = STATE / "engine"
MODELS = STATE / "models"
MODELS_AT = "/opt/models"  # of the nodes
IMAGE_ARCHIVE = STATE / "image.tar"

OWNER_LABEL = "dgx-spark-lab"
DEFINITION_LABEL = "dgx-spark-lab.definition"
OWNER = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:16]
"""Which checkout a container, network or image belongs to."""

NODE_ROOT_IMAGE = "dgx-spark-lab/node-root:1"
NODE_IMAGE = "dgx-spark-lab/node:1"
SERVING_ROOT_IMAGE = "dgx-spark-lab/serving-root:1"
SERVING_IMAGE = "dgx-spark-lab/vllm:1"

USER = "aurora"


@dataclass(frozen=True)
class Network:
    """A Docker network of the outer daemon; `bridge` is the name of its device on this machine."""

    name: str
    bridge: str
    subnet: str
    host_address: bool


@dataclass(frozen=True)
class Node:
    """A simulated Spark; without a management address it is reached through the first node only."""

    name: str
    fabric: str
    management: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses, the one the operator dials first."""
        return (self.management, self.fabric) if self.management else (self.fabric,)

    @property
    def state(self) -> Path:
        """Where this machine keeps the node's keys and compile cache."""
        return STATE / "nodes" / self.name


MANAGEMENT = Network("spark-mgmt", "spark-mgmt", "10.1.230.0/24", host_address=True)
# Without a host address: the fabric is a cable between the two Sparks, this machine is not on it.
FABRIC = Network("spark-fabric", "spark-fabric", "192.168.200.0/24", host_address=False)
NETWORKS = (MANAGEMENT, FABRIC)
MOST_NODES = 8
SPARKS = (
    Node("spark-1", fabric="192.168.200.12", management="10.1.230.180"),
    *(Node(f"spark-{number}", fabric=f"192.168.200.{11 + number}") for number in range(2, MOST_NODES + 1)),
)
"""All that there may be, the head first. Keys and ssh configuration know them all, whether they run or not."""
NODES = SPARKS[:2]
"""Those of a plain `up`; more are for the measurement by number of nodes."""


def digest(*parts: object) -> str:
    """Short hash of a definition: files by name and content, everything else by its JSON."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in sorted(part.rglob("*")) if part.is_dir() else [part]:
                if file.is_file() and "__pycache__" not in file.parts:
                    whole.update(f"{file.relative_to(part.parent)}\0{os.access(file, os.X_OK)}\0".encode())
                    whole.update(file.read_bytes())
        else:
            whole.update(json.dumps(part, sort_keys=True).encode())
        whole.update(b"\0")
    return whole.hexdigest()[:16]


def read_stamp(path: Path) -> str:
    """The hash a finished piece was built from; empty when there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
