"""ModelWeights: the model is complete on the node. Nothing is sent when it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from hosts.bundle import bundle
from hosts.containers import others_mounting
from hosts.faults import Fault
from hosts.ssh import Connection
from hosts.weights import forget as weights_forget
from hosts.weights import look as model_look
from hosts.weights.files import look
from hosts.weights.plan import digest
from providers import progress
from providers.base import Provider
from providers.hub import Download, download
from providers.image_copy import Source
from providers.weights_copy import Order, checksums, copy, differing, point


class ModelWeightsProvider(Provider):
    """Complete by sizes, and by checksums where these are asked for; what is missing is copied or downloaded.

    Reads nothing of its own: the program looks at every file in each run, and passes what the node lacks.
    """

    compared = ("digest",)
    remembered = ("connection", "keep", "verify")
    identity = ("root",)

    def acts(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        """Something is missing, is another than before, or is to be read through now."""
        asked = news["verify"] == "checksum" != olds.get("verify")
        return super().acts(olds, news) or asked or any(news.get(key) for key in ("lacks", "links", "refs", "download"))

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """Bring what the node lacks."""
        return CreateResult(f"{props['connection']['node']}{props['root']}", self._ensure(props))

    def renew(self, _olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
        """Bring what the node lacks now."""
        return self._ensure(news)

    def delete(self, _id: str, props: Mapping[str, Any]) -> None:
        """Remove what was brought, unless it is to be kept; what was there before stays in any case.

        So does what another's container has mounted: the node may have another name in the settings now.
        """
        if props["keep"]:
            return
        connection, root = Connection.load(props["connection"]), str(props["root"])
        if users := others_mounting(connection, root):
            progress.lasting(f"{connection.node}: model {root} stays: {', '.join(users)} has it mounted")
            return
        script = f"{bundle(model_look, weights_forget)}\nmodule.forget({root!r})\n"
        told = connection.run("python3", "-", stdin=script, timeout=120, check=True).stdout.strip()
        if told:
            progress.lasting(f"Model of {connection.node}: {told}")

    def _ensure(self, props: Mapping[str, Any]) -> dict[str, Any]:
        outs = {**props, "token": None, "lacks": {}, "links": {}, "refs": {}, "compared": {}}
        if props.get("download"):
            outs |= _downloaded(props)
        wanted: dict[str, dict[str, int]] = defaultdict(dict)
        for file, one in props["lacks"].items():
            wanted[one["from"]][file] = int(one["size"])
        target = Connection.load(props["connection"])
        for owner, files in wanted.items():
            copy(_source(props, owner), target, _order(props, owner, files))
        if props["links"] or props["refs"]:
            point(target, props["root"], props["links"], props["refs"])
        if props["verify"] == "checksum":
            for owner, files in props["compared"].items():
                wanted[owner].update((file, int(size)) for file, size in files.items())
            for owner, files in wanted.items():
                _verify(props, owner, files)
        return outs


def _source(props: Mapping[str, Any], owner: str) -> Source:
    return Source.load(props["sources"][owner])


def _order(props: Mapping[str, Any], owner: str, files: Mapping[str, int], *, anew: bool = False) -> Order:
    """An order of files from one node."""
    return Order(props["sources"][owner]["root"], props["root"], files, int(props["streams"]), anew)


def _downloaded(props: Mapping[str, Any]) -> dict[str, Any]:
    """Download; the outputs, with what the other nodes are to copy.

    Raises:
        Fault: see :func:`providers.hub.download`; or what the hub has is no complete model.
    """
    connection, wanted = Connection.load(props["connection"]), Download(**props["download"])
    download(connection, str(props["root"]).rpartition("/")[0], wanted, props.get("token"))
    found = look(connection, props["root"], wanted.revision)
    if not found.complete:
        raise Fault(
            connection.node,
            f"model {wanted.name} is not complete after its download",
            "look at what the hub has of it, or give the path of a complete copy as `model`",
            found.error or "\n".join(map(str, found.lacks.values())) or "no weights among its files",
        )
    return {
        "below": found.below,
        "digest": digest(found.below, found.files, found.links),
        "offer": {file: {"size": size, "found": None, "from": connection.node} for file, size in found.files.items()},
        "offered_links": dict(found.links),
        "offered_refs": dict(found.refs),
    }


def _verify(props: Mapping[str, Any], owner: str, files: Mapping[str, int]) -> None:
    """Compare checksums with the owner's; a file that differs is copied anew.

    Raises:
        Fault: one differs after that too, or the owner's own blob is not what its name says.
    """
    target = Connection.load(props["connection"])
    if owner == target.node:
        blobs = {file: size for file, size in files.items() if file.startswith("blobs/")}
        found = checksums(target, props["root"], list(blobs), sum(blobs.values())) if blobs else {}
        wrong = [file for file, checksum in found.items() if checksum != file.rpartition("/")[2]]
        if wrong:
            raise Fault(
                target.node,
                f"not what their names say: {', '.join(wrong)}",
                f"remove them below {props['root']} and run again: they are copied or downloaded anew",
            )
        return
    source, order = _source(props, owner), _order(props, owner, files)
    wrong = differing(source, target, order)
    if not wrong:
        return
    progress.lasting(f"Model of {target.node}: other checksums than {owner}'s, copied anew: {', '.join(wrong)}")
    again = _order(props, owner, {file: files[file] for file in wrong}, anew=True)
    copy(source, target, again)
    if still := differing(source, target, again):
        raise Fault(
            target.node,
            f"checksums differ after the copy too: {', '.join(still)}",
            f"a fault of disk or memory? Compare on both nodes: sha256sum {props['root']}/{still[0]}",
        )


class ModelWeights(Resource, module="spark", name="ModelWeights"):
    """The model on one node."""

    below: pulumi.Output[str]
    """The model's directory below the mounted one."""
    digest: pulumi.Output[str]
    """Hash over paths and sizes of its files, the same on every node."""
    offer: pulumi.Output[dict[str, Any]]
    """After a download: what the other nodes lack."""
    offered_links: pulumi.Output[dict[str, str]]
    """The same of symbolic links."""
    offered_refs: pulumi.Output[dict[str, str]]
    """The same of the file that names the revision."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        root: str,
        inputs: Mapping[str, Any],
        token: pulumi.Input[str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare the model on a node.

        Args:
            name: of the node.
            connection: to the node.
            root: directory that the containers see.
            inputs: `below` and `digest` (what is wanted), `lacks` (by file: size, found, from), `links` and
                `refs` (name: what it says), `sources` (by node: :meth:`Source.dump` and `root`), `compared` (by owner:
                size of each file whose checksum is to be compared), `download` (:class:`Download` as a dictionary,
                or None), `streams`, `verify` and `keep`.
            token: for the hub, secret.
            opts: as usual.
        """
        props = {
            **inputs,
            "connection": connection.dump(),
            "root": root,
            "token": pulumi.Output.secret(token) if token is not None else None,
            "offer": None,
            "offered_links": None,
            "offered_refs": None,
        }
        super().__init__(ModelWeightsProvider(), name, props, opts)
