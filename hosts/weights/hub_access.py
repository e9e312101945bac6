"""Whether the Hugging Face hub gives the model, asked before anything is registered where no node has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hosts import fabric_link
from hosts.bundle import ask, program
from hosts.faults import Fault
from hosts.images.stock import SLACK, amount
from hosts.ssh import Connection
from hosts.survey import Survey
from hosts.weights import hub_access_script, hub_download
from hosts.weights import look as model_look
from hosts.weights.hub_access_script import INVALID
from settings import Cluster, Node

SCRIPT = program(fabric_link, model_look, hub_download, hub_access_script)
ENDPOINT = "https://huggingface.co"
"""The hub client's own default."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""What of the containers' environment counts on the way to the hub."""
NO_CLIENT = (
    "the image has no huggingface_hub to download with",
    "download the model yourself and give its path as `model`",
)
PLAIN = {
    "RevisionNotFoundError": ("the hub has no {what}", "correct `weights.revision`"),
    "NoWeights": ("{what} has no weights", "correct `model`"),
    "NoConfig": (
        "{what} has no config.json: GGUF, or an adapter, alone",
        "name the model itself as `model`",
    ),
    "ModuleNotFoundError": NO_CLIENT,
    "ImportError": NO_CLIENT,
}
"""Cause and next step by exception, where nothing else decides them."""
DENIED = ("GatedRepoError", "RepositoryNotFoundError", "DisabledRepoError")


def check(
    cluster: Cluster, surveys: Mapping[str, Survey], seed: str, token: str | None
) -> Iterator[tuple[bool, Fault]]:
    """What stands in the way of the download of the model, and whether that is certain.

    It is where the hub refuses, or a node has no room. A hub that does not answer now may do so when it matters.

    Args:
        cluster: the settings, with a model of the hub.
        surveys: facts by name, of all nodes.
        seed: name of the node that is to download.
        token: for the hub.
    """
    node = cluster.node(seed)
    said = _ask(cluster, node, surveys[seed].path(cluster.model_root), token)
    kind, error, blobs = said["kind"], said["error"], said["blobs"]
    if kind in (*DENIED, "RevisionNotFoundError", "NoWeights", "NoConfig") or INVALID in error:
        revision = cluster.weights.revision
        yield True, fault_of(seed, str(cluster.hub_name), revision, kind, error, with_token=token is not None)
    elif kind == "Gaps":
        # Shards of another numbering may be left over in a repository, and its index decides.
        gaps = Fault(
            seed,
            f"model {cluster.hub_name} at revision {cluster.weights.revision} seems not to be whole at the hub: shards "
            "are missing by their numbers",
            "look at its files there; where its index names these, correct `weights.revision`",
            error,
        )
        yield False, gaps
    elif kind:
        unheard = Fault(
            seed,
            f"{_endpoint(cluster, node)} does not tell whether it gives model {cluster.hub_name}: "
            "only the download will show it",
            "does the node reach it? A proxy: HTTPS_PROXY in `environment`; a mirror: `weights.endpoint`; no network: "
            "give the path of a copy as `model`",
            error,
        )
        yield False, unheard
    for name, facts in surveys.items():
        model = facts.model
        there = {**model.parts, **model.stock, **model.whole}  # also of a former revision, which does not count
        held = said["held"] if name == seed else sum(there.get(f"blobs/{blob}", 0) for blob in blobs)
        missing = max(0, sum(blobs.values()) - held)
        if missing * SLACK > model.free:
            full = Fault(
                name,
                f"no room for the model: {amount(missing)} needed in {facts.path(cluster.model_root)}, "
                f"{amount(model.free)} free",
                "make room and run again, or change `weights.download_to`",
            )
            yield True, full


def _endpoint(cluster: Cluster, node: Node) -> str:
    return cluster.weights.endpoint or cluster.of(node).environment.get("HF_ENDPOINT") or ENDPOINT


def _ask(cluster: Cluster, node: Node, entry: str, token: str | None) -> dict[str, Any]:
    """The answer of hosts/weights/hub_access_script.py on a node, within the time of a survey; no answer is one too."""
    bound, environment = cluster.deadlines.survey, cluster.of(node).environment
    question = {
        "name": cluster.hub_name,
        "revision": cluster.weights.revision,
        "token": token,
        "endpoint": _endpoint(cluster, node),
        "environment": {key: value for key, value in environment.items() if key.upper() in PROXIES},
        "seconds": 0.4 * bound,
        "entry": entry,
    }
    silent: dict[str, Any] = {"kind": "Unheard", "blobs": {}, "held": 0}
    return silent | ask(Connection.of(cluster, node), SCRIPT, question, bound)


def fault_of(node: str, name: str, revision: str, kind: str | None, evidence: str, *, with_token: bool) -> Fault:
    """What it means that the hub's client ended with an exception of this name.

    Args:
        node: that asked.
        name: ORG/NAME.
        revision: that was wanted.
        kind: the exception.
        evidence: its text.
        with_token: whether a token was given.
    """
    what = f"model {name} at revision {revision}"
    if INVALID in evidence:
        return Fault(
            node, "the hub refuses the token", "give a valid one: pulumi config set --secret hubToken", evidence
        )
    if kind in DENIED:
        token = "the token has no access" if with_token else "or give a token: pulumi config set --secret hubToken"
        remedy = f"correct `model`, accept its licence at the hub, {token}"
        return Fault(node, f"the hub does not give {what}", remedy, evidence)
    if kind == "NoRoom":
        return Fault(node, f"no room for {what}: {evidence}", "make room, or change `weights.download_to`")
    if kind in PLAIN:
        cause, remedy = PLAIN[kind]
        return Fault(node, cause.format(what=what), remedy, evidence)
    return Fault(
        node,
        f"{what} could not be downloaded",
        "run it again: it goes on from here. No network? Give the path of a copy as `model`",
        evidence,
    )
