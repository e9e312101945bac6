"""Archives as `docker save` writes them, in both formats, small."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMPTY_CONFIG = {"Hostname": "", "Domainname": "", "User": "", "Env": None, "Cmd": None, "Labels": None}
CONFIG = {"Env": ["PATH=/usr/bin"], "Cmd": ["sh", "-c", "echo <ä> & true"]}


@dataclass(frozen=True)
class Saved:
    """An archive and what is in it."""

    path: Path
    id: str
    layers: list[str]
    """Diff ids, lowest first."""
    files: list[str]
    """Name of each layer's file."""


def diff_id(layer: bytes) -> str:
    return f"sha256:{hashlib.sha256(layer).hexdigest()}"


def _config(layers: Sequence[bytes]) -> bytes:
    ids = [diff_id(layer) for layer in layers]
    found = {"architecture": "arm64", "os": "linux", "config": CONFIG, "rootfs": {"type": "layers", "diff_ids": ids}}
    return json.dumps(found).encode()


def _write(path: Path, members: Sequence[tuple[str, bytes | str]]) -> None:
    """Regular files, and links where the content is a str."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def oci(path: Path, tag: str, layers: Sequence[bytes]) -> Saved:
    """Docker 25 and newer on a graph driver: blobs, the manifest near the end."""
    config = _config(layers)
    id_ = hashlib.sha256(config).hexdigest()
    files = [f"blobs/sha256/{diff_id(layer)[7:]}" for layer in layers]
    blobs: dict[str, bytes] = dict(zip(files, layers, strict=True)) | {f"blobs/sha256/{id_}": config}
    manifest = [{"Config": f"blobs/sha256/{id_}", "RepoTags": [tag], "Layers": files}]
    last = [("index.json", b"{}"), ("manifest.json", json.dumps(manifest).encode()), ("oci-layout", b"{}")]
    _write(path, [*sorted(blobs.items()), *last])
    return Saved(path, f"sha256:{id_}", [diff_id(layer) for layer in layers], files)


def legacy(path: Path, tag: str, layers: Sequence[bytes]) -> Saved:
    """Docker up to 24: directories named by moby's image/v1 CreateID, sorted; a repeated layer is a link."""
    config = _config(layers)
    id_ = hashlib.sha256(config).hexdigest()
    chain = parent = ""
    first: dict[bytes, str] = {}
    members: dict[str, bytes | str] = {f"{id_}.json": config}
    files = []
    for number, layer in enumerate(layers):
        chain = (
            f"sha256:{hashlib.sha256(f'{chain} {diff_id(layer)}'.encode()).hexdigest()}" if chain else diff_id(layer)
        )
        described: dict[str, Any] = {"created": "1970-01-01T01:00:00+01:00", "container_config": EMPTY_CONFIG}
        if number == len(layers) - 1:
            described |= {"architecture": "arm64", "config": CONFIG, "created": "2025-11-30T00:00:00Z"}
        hashed = described | {"layer_id": chain} | ({"parent": f"sha256:{parent}"} if parent else {})
        directory = hashlib.sha256(_go(dict(sorted(hashed.items()))).encode()).hexdigest()
        told = {"id": directory} | ({"parent": parent} if parent else {}) | described | {"os": "linux"}
        members[f"{directory}/VERSION"] = b"1.0"
        members[f"{directory}/json"] = _go(told).encode()
        members[f"{directory}/layer.tar"] = f"../{first[layer]}/layer.tar" if layer in first else layer
        first.setdefault(layer, directory)
        files.append(f"{directory}/layer.tar")
        parent = directory
    manifest = [{"Config": f"{id_}.json", "RepoTags": [tag], "Layers": files}]
    _write(path, [*sorted(members.items()), ("manifest.json", json.dumps(manifest).encode()), ("repositories", b"{}")])
    return Saved(path, f"sha256:{id_}", [diff_id(layer) for layer in layers], files)


def _go(value: Any) -> str:
    """JSON as Go's encoder writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
