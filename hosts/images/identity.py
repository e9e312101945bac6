"""Which image a node has: identity by what the image is made of, not by its tag nor by the id of one kind of store."""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hosts.faults import Fault
from hosts.ssh import Connection

CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "StopSignal", "User", "Volumes", "WorkingDir",
)  # fmt: skip
"""What of an image's configuration counts: the fields of the OCI image specification (config.md). Docker's own
(Healthcheck, OnBuild, Shell, Hostname, …) are shown by some versions and stores only, and would be false alarms."""

CONTEXT_LABEL = "dgx-spark-cluster.context"
"""Label of an image built here: hash of the directory it was built from."""


@dataclass(frozen=True)
class Image:
    """An image as one store, or one archive, holds it."""

    id: str
    """Docker's id: the config's digest on graph drivers, the manifest's or index's with the containerd image store."""
    platform: str
    layers: tuple[str, ...]
    """Digests of the uncompressed layers (diff ids), lowest first: the same in every store."""
    config: Mapping[str, Any]
    """What containers of it start with, fields of :data:`CONFIG` that are set."""
    size: int = 0
    """Bytes as Docker counts them; of an archive, those of its layers."""
    tags: tuple[str, ...] = ()
    """Names it has on the node."""

    @classmethod
    def of_inspect(cls, found: Mapping[str, Any]) -> Image:
        """From an element of `docker image inspect`."""
        return cls(
            found["Id"],
            f"{found.get('Os', '')}/{found.get('Architecture', '')}",
            tuple((found.get("RootFS") or {}).get("Layers") or ()),
            _set(found.get("Config") or {}),
            found.get("Size") or 0,
            tuple(found.get("RepoTags") or ()),
        )

    @classmethod
    def of_config(cls, raw: bytes) -> Image:
        """From the configuration blob of an archive."""
        found = json.loads(raw)
        return cls(
            f"sha256:{hashlib.sha256(raw).hexdigest()}",
            f"{found.get('os', '')}/{found.get('architecture', '')}",
            tuple(found["rootfs"]["diff_ids"]),
            _set(found.get("config") or {}),
        )

    @cached_property
    def identity(self) -> str:
        """Equal for the same image in any store: a hash of platform, layers and configuration."""
        parts = [self.platform, self.layers, self.config]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def context(self) -> str | None:
        """Hash of the directory it was built from here, None for other images."""
        context: str | None = (self.config.get("Labels") or {}).get(CONTEXT_LABEL)
        return context

    def difference(self, other: Image) -> str:
        """How another image differs, in a few words; empty for the same one."""
        if self.platform != other.platform:
            return f"{self.platform} and {other.platform}"
        if self.layers != other.layers:
            same = common(self.layers, other.layers)
            return f"layers differ from the {same + 1}. of {len(self.layers)} and {len(other.layers)} on"
        names = [name for name in CONFIG if self.config.get(name) != other.config.get(name)]
        return f"same layers, other {', '.join(names)}" if names else ""


def _set(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in CONFIG if config.get(name)}


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many of the lowest layers two images share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


UNREADABLE = (
    OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, RecursionError, tarfile.TarError, zlib.error,
    lzma.LZMAError,
)  # fmt: skip
"""What reading an archive may raise that is cut off, damaged, or none."""


def is_tag(reference: str) -> bool:
    """Whether a reference is a name that a copy can carry; digests of registries and ids it cannot."""
    return "@" not in reference and not reference.startswith("sha256:")


def names(reference: str) -> tuple[str, ...]:
    """What an image may be called on a node: its reference, and the tag that stands for a digest on copies.

    A copy cannot have a registry's digest. Without any name the next run would not find it, and `docker image prune`
    would remove it.
    """
    repository, at, digest = reference.partition("@")
    if not at:
        return (reference,)
    above, slash, last = repository.rpartition("/")
    return reference, f"{above}{slash}{last.partition(':')[0]}:{digest.replace(':', '-')}"


def inspect(connection: Connection, reference: str) -> Image | None:
    """An image on a node, None if it is not there; raises Fault when Docker does not answer."""
    done = connection.run("docker", "image", "inspect", "--format", "{{json .}}", reference)
    if done.returncode == 0:
        return Image.of_inspect(json.loads(done.stdout))
    if "No such image" not in done.stderr:
        raise Fault(connection.node, "Docker does not answer", f"look at it: {connection.by_hand()}", done.stderr)
    return None


@dataclass(frozen=True)
class Archive:
    """A `docker save` tar on the operator's machine."""

    path: Path
    image: Image
    sizes: tuple[int, ...]
    """Bytes of each layer's file."""

    @classmethod
    def open(cls, path: Path, reference: str) -> Archive:
        """Read what it holds; of several images the one of this name.

        Raises:
            Fault: the file is absent, no archive, or does not hold the image.
        """
        try:
            if path.exists() and not path.is_file():  # to open a FIFO could take for ever
                raise ValueError("no regular file")
            with tarfile.open(path) as tar:
                entry = _entry(json.loads(_content(tar, "manifest.json")), reference)
                image = Image.of_config(_content(tar, entry["Config"]))
                if reference.startswith("sha256:") and reference not in (image.id, *_manifests(tar)):
                    raise ValueError(f"holds {image.id}, not {reference}")
                sizes = tuple(_size(tar, name) for name in entry["Layers"])
        except UNREADABLE as error:
            raise Fault(
                "operator",
                f"image archive {path}: {_words(error)}",
                "make it with docker save, or correct `image_archive`",
            ) from None
        return cls(path, replace(image, size=sum(sizes)), sizes)


def _entry(manifest: Any, reference: str) -> dict[str, Any]:
    """The image of that name; a digest or an id stands in no archive, nor does a name in one that was saved by id."""
    named = [entry for entry in manifest if _full(reference) in map(_full, entry.get("RepoTags") or ())]
    nameless = [entry for entry in manifest if not (entry.get("RepoTags") and is_tag(reference))]
    found: list[dict[str, Any]] = named or nameless
    if (not named and len(manifest) > 1) or not found:
        held = ", ".join(tag for entry in manifest for tag in entry.get("RepoTags") or ["one without a name"])
        raise ValueError(f"holds {held}, not {reference}")
    return found[0]


def _manifests(tar: tarfile.TarFile) -> list[str]:
    """Digests of the manifests, which are Docker's ids with the containerd store; an older archive has none."""
    try:
        found = json.loads(_content(tar, "index.json"))["manifests"]
    except KeyError:
        return []
    return [one["digest"] for one in found]


def _full(tag: str) -> str:
    """A name with what Docker leaves out of it and other tools write."""
    name = tag.removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _words(error: Exception) -> str:
    """What went wrong with a file that is named already."""
    if str(error).startswith("file could not be opened successfully"):  # what each method says in turn follows
        return "no tar, plain or compressed by gzip, bzip2 or xz"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is no file")
    return member.read()


def _size(tar: tarfile.TarFile, name: str) -> int:
    member = tar.getmember(name)
    # The older format saves a layer that occurs twice as a link to the first.
    return member.size if member.isreg() else 0
