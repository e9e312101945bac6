"""Which node lacks which files of the model, and who has them: decided before anything is registered."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hosts.faults import Fault
from hosts.images.stock import SLACK, amount
from hosts.ssh import Connection
from hosts.survey import Survey
from hosts.weights.files import Lack, ModelFiles
from hosts.weights.look import ENGINES_JSON, INDEX, WEIGHTS, loaded
from settings import Cluster, Node

SHOWN = 5
"""Files that a message names."""
LOADED = re.compile(
    WEIGHTS.pattern + f"|{ENGINES_JSON.pattern}" + r"|(vocab|merges)[^/]*\.txt$|\.(model(\.v\d+)?|tiktoken|jinja|py)$"
)
"""What the engine has in memory: another one means to load anew. Other files are copied without that."""


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
    refs: Mapping[str, str] = field(default_factory=dict)
    """Of a hub cache: the file that names the revision, and the commit that it is to name."""

    @property
    def nothing(self) -> bool:
        """Whether the node has all."""
        return not (self.files or self.links or self.refs)

    @property
    def size(self) -> int:
        """Bytes of these files; of some a part may be there."""
        return sum(one.size for one in self.files.values())

    def __str__(self) -> str:
        named = [f"{file} ({one})" for file, one in list(self.files.items())[:SHOWN]]
        more = len(self.files) - len(named)
        return ", ".join([*named, *([f"{more} more"] if more else [])]) or f"{len(self.links) + len(self.refs)} link(s)"


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
    disputed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By file: sizes on the nodes that have another one each, where nothing tells which is whole."""
    download: bool = False
    """Whether no node has the model, so that one gets it from the hub, which a directory does not come from."""


def plan(cluster: Cluster, surveys: Mapping[str, Survey]) -> WeightsPlan:
    """Decide for each file which node has it whole, and which nodes lack it.

    A file that is whole on any node mends all others, so that no node need have all of them. But where one has the
    model whole (the head first, a mix of two versions last), its files are the model's: another node may have a former
    version, or another format.
    What no node has whole is a fault of :func:`check`, or downloaded.
    """
    seen = {node.name: surveys[node.name].model for node in cluster.nodes if node.name in surveys}
    some = sorted(
        (name for name in seen if seen[name].exists),
        key=lambda name: (not seen[name].complete, len(seen[name].mismatched)),
    )
    below = seen[some[0]].below if some else None  # of two revisions in the nodes' caches the head's is meant
    together = any(seen[name].weights for name in some) and not incomplete(surveys, below)
    if below is None or (cluster.hub_name and not seen[some[0]].complete and not together):
        nothing = {name: Share() for name in seen}
        return WeightsPlan(None, None, None, {}, {}, nothing, download=cluster.hub_name is not None)
    # Of another revision only the blobs are of use, which are named by their content.
    there = {
        name: facts if facts.below == below else ModelFiles(stock={**facts.stock, **facts.whole})
        for name, facts in seen.items()
    }
    owners: dict[str, str] = {}
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    refs: dict[str, str] = {}
    roots = {name: surveys[name].path(cluster.model_root) for name in there}
    plain = {name: _plain(facts.links, roots[name]) for name, facts in there.items()}
    # The containers see the model under the head's path: an absolute link of another one leads nowhere there.
    same = {name: root == roots.get(cluster.head.name) for name, root in roots.items()}
    fitting = {name: plain[name] if same[name] else facts.links for name, facts in there.items()}
    first = seen[some[0]]
    whole = {name: _of_model(facts.whole, first) for name, facts in there.items()}
    for name in sorted(there, key=lambda name: name != some[0]):
        facts = there[name]
        for file, size in whole[name].items():
            owners.setdefault(file, name)
            sizes.setdefault(file, size)
        links = {**plain[name], **links}
        refs = {**facts.refs, **refs}
    shares = {
        name: Share(
            {
                file: Missing(size, facts.files.get(file), owners[file])
                for file, size in sizes.items()
                if size not in (whole[name].get(file), facts.stock.get(file))
            },
            {link: target for link, target in links.items() if fitting[name].get(link) != target},
            {ref: commit for ref, commit in refs.items() if facts.refs.get(ref) != commit},
        )
        for name, facts in there.items()
    }
    disputed = _disputed(there, whole, first)
    return WeightsPlan(some[0], below, digest(below, sizes, links), owners, sizes, shares, disputed)


def _plain(links: Mapping[str, str], root: str) -> dict[str, str]:
    """A node's links with absolute targets inside the model written as relative ones, as they hold on every node."""
    inside = {link: target for link, target in links.items() if target.startswith(f"{root}/")}
    return {**links, **{link: posixpath.relpath(inside[link], posixpath.dirname(f"{root}/{link}")) for link in inside}}


def _of_model(whole: Mapping[str, int], first: ModelFiles) -> dict[str, int]:
    """A node's files without weights that are no part of the model as the first node has it, if that has it whole."""
    return {
        file: size
        for file, size in whole.items()
        if not first.complete or file in first.files or not (WEIGHTS.search(file) or INDEX.search(file))
    }


def _disputed(
    there: Mapping[str, ModelFiles], whole: Mapping[str, Mapping[str, int]], first: ModelFiles
) -> dict[str, dict[str, int]]:
    """Files of different sizes, any of which may be cut off: to choose one could destroy the only good copy.

    Weights too where no node has the model whole: they are of two versions, and would be mixed.
    """
    files = {file for facts in there.values() for file in facts.unjudged}
    if not first.complete:
        files |= {file for found in whole.values() for file in found if WEIGHTS.search(file) or INDEX.search(file)}
    sizes = {file: {name: whole[name][file] for name in there if file in whole[name]} for file in sorted(files)}
    return {file: found for file, found in sizes.items() if len(set(found.values())) > 1}


def digest(below: str, files: Mapping[str, int], links: Mapping[str, str]) -> str:
    """Hash over paths and sizes of what the engine loads; a link to a blob tells its content."""
    known = [{name: value for name, value in names.items() if LOADED.search(name)} for names in (files, links)]
    return hashlib.sha256(json.dumps([below, *known], sort_keys=True).encode()).hexdigest()


def incomplete(surveys: Mapping[str, Survey], below: str | None) -> dict[str, Lack]:
    """Files of a revision that some node lacks by its own index or headers, and that no node has whole.

    None where a node has the model whole: what another lacks besides is of a former version.
    """
    seen = [facts.model for facts in surveys.values() if facts.model.below == below]
    if any(model.complete for model in seen):
        return {}
    whole = {file for facts in seen for file in facts.whole}
    return {file: lack for facts in seen for file, lack in facts.lacks.items() if file not in whole}


def check(cluster: Cluster, surveys: Mapping[str, Survey], found: WeightsPlan) -> Iterator[Fault]:
    """What stands in the way of a complete model on every node, by the plan for all of them."""
    seen = [(node, surveys[node.name]) for node in cluster.nodes]
    if not cluster.hub_name:
        yield from _nowhere(cluster, seen, incomplete(surveys, found.below))
    for file, sizes in found.disputed.items():
        yield Fault(
            ", ".join(sizes),
            f"{file} is another one on each node, and nothing tells which is whole: "
            + ", ".join(f"{size} bytes on {name}" for name, size in sizes.items()),
            "remove the wrong one: the other is then copied to that node",
        )
    yield from _strays(cluster, surveys, found)
    for node, facts in seen:
        path, share = facts.path(cluster.model_root), found.shares[node.name]
        if facts.model.error:
            continue
        yield from _closed(cluster, surveys, node, share)
        needed = room_needed(facts, share)
        if not facts.model.writable and (not share.nothing or found.download):
            own = Connection.of(cluster, node).by_hand(f"sudo install -d -o $USER {shlex.quote(path)}")
            yield Fault(
                node.name,
                f"may not write into {path}, which lacks {'the model' if share.nothing else share}",
                f"give it to the user: {own}, or copy it there yourself",
            )
        if needed > facts.model.free:
            yield Fault(
                node.name,
                f"no room for the model: {amount(needed)} needed in {path}, {amount(facts.model.free)} free",
                "make room and run again, or put the model elsewhere and correct `model`",
            )


def room_needed(facts: Survey, share: Share) -> float:
    """Bytes that a node must have free for its share, with slack; parts that are there are gone on with."""
    return max(0, share.size - sum(facts.model.parts.get(file, 0) for file in share.files)) * SLACK


def check_node(cluster: Cluster, node: Node, facts: Survey) -> Iterator[Fault]:
    """What is wrong with the model on one node, whatever the others have."""
    path = facts.path(cluster.model_path)
    if facts.model.error:
        yield Fault(node.name, f"model directory {path}: {facts.model.error}", "correct it, or correct `model`")
    targets = [mount.key for mount in cluster.of(node).mounts]
    outside = {
        link: target
        for link, target in facts.model.outside.items()
        if not any(f"{target}/".startswith(f"{mounted}/") for mounted in targets)
    }
    if outside:
        link, target = next(iter(outside.items()))
        more = [f"{link} -> {target}" for link, target in list(outside.items())[1:SHOWN]]
        yield Fault(
            node.name,
            f"{facts.path(cluster.model_root)}/{link} is a link to {target}, outside of what the containers see"
            + (f", as are {len(outside) - 1} more" if more else ""),
            "put the file itself there, or mount the other directory under the same path (`mounts`)",
            "\n".join(more),
        )


def _strays(cluster: Cluster, surveys: Mapping[str, Survey], found: WeightsPlan) -> Iterator[Fault]:
    """Weights beside the model that the engine would load too: without an index it takes whatever is there."""
    first = surveys[found.seed].model if found.seed else ModelFiles()
    weights = {file for file in first.files if WEIGHTS.search(file)}
    if not first.complete or first.below or any(INDEX.search(file) for file in first.files):
        return
    for node in cluster.nodes:
        files = surveys[node.name].model.files
        strays = [name for name in loaded([*weights, *files]) if name.endswith(".safetensors") and name not in weights]
        if strays:
            path = surveys[node.name].path(cluster.model_root)
            yield Fault(
                node.name,
                f"beside the model that {found.seed} has there are other weights, which an engine would load too: "
                + ", ".join(strays[:SHOWN]),
                "move them away: "
                + Connection.of(cluster, node).by_hand(
                    f"cd {shlex.quote(path)} && mkdir -p .other && mv {shlex.join(strays)} .other"
                ),
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
                "let the user read the model: "
                + Connection.of(cluster, cluster.node(owner)).by_hand(f"sudo chmod -R a+rX {shlex.quote(path)}"),
            )


def _nowhere(cluster: Cluster, seen: list[tuple[Node, Survey]], lacks: Mapping[str, Lack]) -> Iterator[Fault]:
    """Files that no node has whole; each node says what it has of them."""
    some = any(facts.model.exists for _, facts in seen)
    weights = any(facts.model.exists and facts.model.weights for _, facts in seen)
    made_up = any("load-format" in argument.replace("_", "-") for argument in cluster.engine_arguments)
    for node, facts in seen:
        path, model = facts.path(cluster.model_path), facts.model
        if model.error or (some and not model.exists):
            continue  # it gets what another has
        remedy = "put the model there, on one node at least (the others copy it), or correct `model`"
        if model.snapshots:
            root, commit = facts.path(cluster.model_root), model.below.rpartition("/")[2]
            yield Fault(
                node.name,
                f"{root} has no snapshot of {commit}; there: {', '.join(model.snapshots)}",
                f"give one as `model`: {root}/snapshots/{model.snapshots[-1]}, or correct `weights.revision`",
            )
        elif not model.exists:
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
