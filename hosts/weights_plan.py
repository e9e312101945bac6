"""Which node lacks which files of the model, and who has them: decided before anything is registered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hosts.faults import Fault
from hosts.image_stock import SLACK, amount
from hosts.model_files import Lack, ModelFiles
from hosts.survey import Survey
from settings import Cluster, Node

SHOWN = 5
"""Files that a message names."""


@dataclass(frozen=True)
class Missing:
    """A file that a node is to get."""

    size: int
    """Bytes it has where it is whole."""
    found: int | None
    """Bytes that the node has of it, or of another one under its name."""
    owner: str
    """Name of the node that it is copied from."""

    def dump(self) -> dict[str, Any]:
        """Plain data for Pulumi's state and its diffs."""
        return {"size": self.size, "found": self.found, "from": self.owner}

    def __str__(self) -> str:
        found = "missing" if self.found is None else f"{self.found} bytes instead of {self.size}"
        return f"{found}, from {self.owner}"


@dataclass(frozen=True)
class Share:
    """What one node is to get."""

    files: Mapping[str, Missing] = field(default_factory=dict)
    """By path below the mounted directory."""
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes that it may have to take; a part that was left by an interrupted run is not known here."""
        return sum(one.size for one in self.files.values())

    def __str__(self) -> str:
        named = [f"{file} ({one})" for file, one in list(self.files.items())[:SHOWN]]
        more = len(self.files) - len(named)
        return ", ".join([*named, *([f"{more} more"] if more else [])]) or f"{len(self.links)} links"


@dataclass(frozen=True)
class WeightsPlan:
    """Where every file of the model is, and who is to get what."""

    seed: str | None
    """Name of a node that has the model, or most of it; None until it has been downloaded."""
    below: str | None
    """The model's directory below the mounted one; None until it has been downloaded."""
    digest: str | None
    """Hash over paths and sizes of all files: what the engine is to load. None until it has been downloaded."""
    owners: Mapping[str, str]
    """By file: the node that the others compare it with."""
    sizes: Mapping[str, int]
    """By file: bytes."""
    shares: Mapping[str, Share]
    """By node."""

    @property
    def download(self) -> bool:
        """Whether no node has the model, so that one gets it from the hub."""
        return self.digest is None


def plan(cluster: Cluster, surveys: Mapping[str, Survey]) -> WeightsPlan:
    """Decide for each file which node has it whole, the head first, and which nodes lack it.

    A file that is whole on any node mends all others, so that no node need have all of them. What no node has whole
    is a fault of :func:`check`, or downloaded.
    """
    seen = {node.name: surveys[node.name].model for node in cluster.nodes if node.name in surveys}
    some = sorted((name for name in seen if seen[name].exists), key=lambda name: not seen[name].complete)
    together = any(seen[name].weights for name in some) and not incomplete(cluster, surveys)
    if not some or (cluster.hub_name and not seen[some[0]].complete and not together):
        return WeightsPlan(None, None, None, {}, {}, {name: Share() for name in seen})
    below = seen[some[0]].below  # of two revisions in the nodes' caches the head's is meant
    # What a node has of another revision is of no use, except where a file is the same: that is seen when it is copied.
    there = {name: facts if facts.below == below else ModelFiles(exists=False) for name, facts in seen.items()}
    owners: dict[str, str] = {}
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    whole = {name: facts.whole for name, facts in there.items()}
    for name, facts in there.items():
        for file, size in whole[name].items():
            owners.setdefault(file, name)
            sizes.setdefault(file, size)
        links = {**facts.links, **links}
    shares = {
        name: Share(
            {
                file: Missing(size, facts.files.get(file), owners[file])
                for file, size in sizes.items()
                if whole[name].get(file) != size
            },
            {link: target for link, target in links.items() if facts.links.get(link) != target},
        )
        for name, facts in there.items()
    }
    return WeightsPlan(some[0], below, digest(below, sizes, links), owners, sizes, shares)


def digest(below: str, files: Mapping[str, int], links: Mapping[str, str]) -> str:
    """Hash over paths and sizes: another one means that the engine is to load anew."""
    return hashlib.sha256(json.dumps([below, dict(files), dict(links)], sort_keys=True).encode()).hexdigest()


def incomplete(cluster: Cluster, surveys: Mapping[str, Survey]) -> dict[str, Lack]:
    """Files that some node lacks by its own index or headers, and that no node has whole."""
    seen = [surveys[node.name].model for node in cluster.nodes if node.name in surveys]
    whole = {file for facts in seen for file in facts.whole}
    return {file: lack for facts in seen for file, lack in facts.lacks.items() if file not in whole}


def check(cluster: Cluster, surveys: Mapping[str, Survey]) -> Iterator[Fault]:
    """What stands in the way of a complete model on every node, found before anything starts."""
    seen = [(node, surveys[node.name]) for node in cluster.nodes if node.name in surveys]
    for node, facts in seen:
        yield from _node(cluster, node, facts)
    everyone = len(seen) == len(cluster.nodes)  # one that was not reached may have what is missing
    if everyone and not cluster.hub_name:
        yield from _nowhere(cluster, seen, incomplete(cluster, surveys))
    found = plan(cluster, surveys)
    for node, facts in seen:
        path, share = facts.path(cluster.model_root), found.shares[node.name]
        if facts.model.error:
            continue
        yield from _closed(cluster, surveys, node, share)
        if not facts.model.writable and (share.files or share.links or found.download):
            user = node.user or "$USER"
            yield Fault(
                node.name,
                f"may not write into {path}, which lacks {share if share.files else 'the model'}",
                f"give it to the user: sudo install -d -o {user} {path}, or copy it there yourself",
            )
        elif share.size * SLACK > facts.model.free:
            yield Fault(
                node.name,
                f"no room for the model: {amount(share.size * SLACK)} needed in {path}, "
                f"{amount(facts.model.free)} free",
                "make room and run again, or put the model elsewhere and correct `model`",
            )


def _node(cluster: Cluster, node: Node, facts: Survey) -> Iterator[Fault]:
    path = facts.path(cluster.model_path)
    if facts.model.error:
        yield Fault(node.name, f"model directory {path}: {facts.model.error}", "correct it, or correct `model`")
    targets = [mount.key for mount in cluster.of(node).mounts]
    for link, target in facts.model.outside.items():
        if not any(f"{target}/".startswith(f"{mounted}/") for mounted in targets):
            yield Fault(
                node.name,
                f"{facts.path(cluster.model_root)}/{link} is a link to {target}, outside of what the containers see",
                "put the file itself there, or mount the other directory under the same path (`mounts`)",
            )


def _closed(cluster: Cluster, surveys: Mapping[str, Survey], node: Node, share: Share) -> Iterator[Fault]:
    """Files that cannot be copied because their owner's user may not read them."""
    for owner in sorted({one.owner for one in share.files.values()}):
        path = surveys[owner].path(cluster.model_root)
        closed = [
            file for file, one in share.files.items() if one.owner == owner and file in surveys[owner].model.closed
        ]
        if closed:
            yield Fault(
                owner,
                f"may not read {', '.join(closed[:SHOWN])} in {path}, which {node.name} lacks",
                f"let the user read the model: sudo chmod -R a+rX {path}",
            )


def _nowhere(cluster: Cluster, seen: list[tuple[Node, Survey]], lacks: Mapping[str, Lack]) -> Iterator[Fault]:
    """Files that no node has whole; each node says what it has of them."""
    some = any(facts.model.exists for _, facts in seen)
    weights = any(facts.model.exists and facts.model.weights for _, facts in seen)
    made_up = any("load-format" in argument.replace("_", "-") for argument in cluster.engine_arguments)
    for node, facts in seen:
        path, model = facts.path(cluster.model_path), facts.model
        if model.error or (some and not model.exists):
            continue
        remedy = "put the model there, on one node at least (the others copy it), or correct `model`"
        if not model.exists:
            others = f"; models there: {', '.join(facts.models)}" if facts.models else ""
            yield Fault(node.name, f"model directory {path}: No such file or directory", remedy + others)
        elif mine := [lack for file, lack in model.lacks.items() if file in lacks]:
            named = ", ".join(map(str, mine[:SHOWN])) + (f", {len(mine) - SHOWN} more" if len(mine) > SHOWN else "")
            yield Fault(
                node.name,
                f"model directory {path} is not complete, nor is it elsewhere: {named}",
                "bring the files there again (an interrupted download?); one node that has them is enough",
            )
        elif not weights and not made_up:
            yield Fault(
                node.name, f"model directory {path}: no weights (safetensors, bin, pt or gguf) among its files", remedy
            )
