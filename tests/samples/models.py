"""Made-up models: shards in the real format of safetensors with their index, as a directory or in a hub's cache."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

COMMIT = "4" * 40


def safetensors(tensors: Mapping[str, bytes]) -> bytes:
    """A file of these tensors: the header's length in 8 bytes, the header, the data without gaps."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "note": '"data_offsets":[0,999999]'}}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.values())


def contents(shards: int = 3, size: int = 1000, seed: int = 0) -> dict[str, bytes]:
    """Files of a model by name; random, so that no two shards are alike."""
    source = random.Random(seed)  # noqa: S311 - no secret
    files, where, total = {"config.json": b'{"model_type": "made-up"}', "tokenizer.json": b"{}"}, {}, 0
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        tensor = f"layers.{number}.weight"
        data = source.randbytes(size + number)
        files[name], where[tensor], total = safetensors({tensor: data}), name, total + len(data)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


def directory(root: Path, files: Mapping[str, bytes]) -> Path:
    """The files as a plain directory."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def hub_entry(cache: Path, files: Mapping[str, bytes], commit: str = COMMIT, ref: str | None = "main") -> Path:
    """The files as the hub's client keeps them: a snapshot of links into blobs, named by checksum (large) or by git."""
    entry = cache / "models--org--made-up"
    snapshot = entry / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir(exist_ok=True)
    for name, data in files.items():
        large = name.endswith(".safetensors")
        git = hashlib.sha1(b"blob %d\0" % len(data) + data)  # noqa: S324 - git's choice
        blob = (hashlib.sha256(data) if large else git).hexdigest()
        (entry / "blobs" / blob).write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    if ref:
        (entry / "refs").mkdir(exist_ok=True)
        (entry / "refs" / ref).write_text(commit)
    return entry
