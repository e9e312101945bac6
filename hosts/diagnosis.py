"""From a log to its cause: lines of Ray and vLLM that mean the container cannot succeed, and what to do about each.

Sources: outputs recorded from Ray 2.53 and vLLM 0.17.1/0.32.0, and reports from the field (tests/samples names them).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Cause:
    """What a log line means."""

    text: str
    """Cause in one line, with what the line named."""
    remedy: str
    line: str
    """The line itself, as evidence."""
    stays: bool
    """Whether the next start ends in the same, as nothing but the settings changes it."""


class Sign(NamedTuple):
    """A pattern in the log, and what to tell about it."""

    pattern: str
    text: str
    remedy: str
    stays: bool = True


SIGNS: tuple[Sign, ...] = (
    Sign(
        r"vllm.*error: unrecognized arguments: (?P<what>.+)",
        "the engine does not know {what}",
        "correct `engine_arguments`; see `vllm serve --help=all` in the image",
    ),
    Sign(
        r"vllm serve: error: (?P<what>.+)",
        "the engine refuses its arguments: {what}",
        "correct `engine_arguments`; see `vllm serve --help=all` in the image",
    ),
    Sign(
        r"^Error: No such option:? (?P<what>\S+)",
        "`ray start` does not know {what}",
        "correct `ray.arguments` or `ray_arguments`; see `ray start --help` in the image",
    ),
    Sign(
        r"Version mismatch: The cluster was started with",
        "Ray or Python of this node differs from the head's",
        "use one image on all nodes; pin `image` by digest",
    ),
    Sign(
        r"(?:Address already in use|\[Errno 98\])",
        "a port is already in use",
        "stop what listens there (ss -ltnp on the node), or choose another `port` or `ray.port`",
        stays=False,
    ),
    Sign(
        (
            r"Free memory on device.*\((?P<free>[\d.]+/[\d.]+) GiB\)"
            r".*less than desired GPU memory utilization \((?P<want>[\d.]+)"
        ),
        "only {free} GiB of memory is free, less than gpu-memory-utilization {want} asks; page cache counts as used",
        "free it (sync; echo 3 | sudo tee /proc/sys/vm/drop_caches), or lower --gpu-memory-utilization",
        stays=False,
    ),
    Sign(
        r"(?:CUDA out of memory|torch\S*OutOfMemoryError)",
        "the GPU is out of memory",
        "lower --gpu-memory-utilization or --max-model-len in `engine_arguments`",
        stays=False,
    ),
    Sign(
        r"Task was killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError",
        "Ray's memory monitor killed the engine",
        "set RAY_memory_monitor_refresh_ms=0 (the default of this program) or lower the engine's memory",
        stays=False,
    ),
    Sign(
        r"No available node types can fulfill resource request \{.*?'node:(?P<what>[^']+)'",
        "the engine asks for a GPU on address {what}, which no Ray node registered",
        "VLLM_HOST_IP must be the node's fabric address: remove overrides from `environment`",
        stays=False,
    ),
    Sign(
        r"Current node has no GPU available",
        "Ray has no free GPU on the head",
        "stop what else uses this Ray cluster, or look at `ray status` in the head's container",
        stays=False,
    ),
    Sign(
        r"(?:FileNotFoundError|OSError|ValueError): .*?(?P<what>/\S*(?:config\.json|safetensors|tokenizer\S*))",
        "the model is incomplete: {what}",
        "complete the model directory on the node",
    ),
    Sign(
        r"^(?:\([^()]* pid=[^()]*\) )?\s*Value error, (?P<what>.+?)(?: \[type=|$)",
        "the engine refuses its configuration: {what}",
        "correct `engine_arguments` or `environment`, or take another model",
    ),
    Sign(
        r"exec: \"(?P<what>ray|vllm)\": executable file not found",
        "the image has no {what}",
        "use an image with vLLM and Ray (pip install 'ray[default]' in a derived image)",
    ),
    Sign(
        r"Failed to initialize any NET plugin",
        "NCCL cannot use RDMA in the container, and `require_rdma` leaves it nothing else",
        "see with NCCL_DEBUG=INFO in `environment` why NET/IB fails, or remove `require_rdma`",
    ),
    Sign(
        r"Bootstrap : no socket interface found",
        "NCCL_SOCKET_IFNAME names an interface that the node does not have",
        "remove NCCL_SOCKET_IFNAME from `environment`: each node gets its own",
    ),
    Sign(
        r"connectFullMesh failed",
        "the ranks cannot reach each other (Gloo)",
        "check the fabric interfaces of the nodes; see the stack output `nodes`",
        stays=False,
    ),
)
"""Outputs of Ray, vLLM and Docker that end a start."""


def diagnose(log: str, expected: Collection[str] = ()) -> Cause | None:
    """The first known fatal line of a log, or None.

    Args:
        log: lines of the container's log.
        expected: what a fatal line may name without being fatal, e.g. addresses about to register.
    """
    for line in log.splitlines():
        for sign in SIGNS:
            if match := re.search(sign.pattern, line):
                named = {key: value.strip() for key, value in match.groupdict().items()}
                if named.get("what") in expected:
                    continue
                return Cause(sign.text.format(**named), sign.remedy, line.strip(), sign.stays)
    return None


EXCEPTION = re.compile(
    r"^(?:\([^()]* pid=[^()]*\) )?(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .+)?)$"
)


def exception(log: str) -> str:
    """The last exception that ends a Python traceback in a log, in its own words; empty without one."""
    found = [match["what"] for line in log.splitlines() if (match := EXCEPTION.match(line.rstrip()))]
    return found[-1][:300] if found else ""


PHASES: tuple[str, ...] = (
    r"Starting to load model .*",
    r"Loading safetensors checkpoint shards:\s+\d+% Completed.*",
    r"Loading weights took .*",
    r"Model loading took .*",
    r"torch\.compile takes .*",
    r"Available KV cache memory: .*",
    r"Capturing CUDA graphs.*",
    r"Graph capturing finished .*",
    r"init engine .* took .*",
    r"Starting vLLM API server .*",
    r"Application startup complete",
    r"Waiting for creating a placement group of specs for \d+ seconds",
    r"Local node IP: .*",
    r"Ray runtime started",
)
"""Phases of a start, as vLLM 0.17 to 0.32 and Ray 2.53 log them."""


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DECORATION = re.compile(r"^\([^()]* pid=[^()]*\) |^(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d [\d:]+ \[[^\]]*\] ")
"""Process names and time stamps in front of a message."""


def undecorated(line: str) -> str:
    """The message of a line without what vLLM puts in front."""
    last, shorter = "", line
    while shorter != last:  # one decoration may stand behind another
        last, shorter = shorter, DECORATION.sub("", shorter)
    return last


def phase(log: str) -> str:
    """The last phase that a log names, as progress; its last message if it names none."""
    lines = [line.strip() for line in COLOUR.sub("", log).splitlines() if line.strip()]
    for line in reversed(lines):
        for pattern in PHASES:
            if match := re.search(pattern, line):
                return match.group()[:120]
    if not lines:
        return "no log yet"
    return undecorated(lines[-1])[:120]
