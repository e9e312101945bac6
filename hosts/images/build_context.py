"""A directory of the operator's machine as the context of a `docker build` on a node."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

from hosts.faults import Fault


def digest(context: Path, dockerfile: str) -> str:
    """Hash of everything that a build sees: names, contents, kinds, and which Dockerfile is meant.

    Raises:
        Fault: the directory or its Dockerfile is absent or unreadable, or there is a .dockerignore.
    """
    if not (context / dockerfile).is_file():
        raise Fault("operator", f"no {dockerfile} in {context}", "correct `image_build`")
    if (context / ".dockerignore").exists():
        # Docker reads it on the side of its client, which has no part in this build.
        raise Fault(
            "operator",
            f"{context}/.dockerignore would be ignored: the directory is sent whole",
            "remove it, and let `image_build.context` hold only what the image needs",
        )
    whole = hashlib.sha256(dockerfile.encode())
    try:
        for path in _entries(context):
            mode = path.lstat().st_mode
            kind = f"{stat.S_IFMT(mode):o} {bool(mode & 0o100)}"  # not all of it: checkouts differ by umask
            whole.update(f"\0{path.relative_to(context)}\0{kind}\0".encode())
            if path.is_symlink():
                whole.update(os.readlink(path).encode())  # noqa: PTH115 - as it is written
            elif path.is_file():
                with path.open("rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise _unreadable(error) from None
    return whole.hexdigest()


def size(context: Path) -> int:
    """Bytes of its files, which Docker keeps on the node while it builds.

    It is the least that a build needs: what the base image, the layers and what they install add is known only when
    they are there.

    Raises:
        Fault: the directory cannot be read.
    """
    try:
        stats = [path.lstat() for path in _entries(context)]
    except OSError as error:
        raise _unreadable(error) from None
    # Of files that are hard links to each other the tar holds one.
    return sum({(one.st_dev, one.st_ino): one.st_size for one in stats if stat.S_ISREG(one.st_mode)}.values())


def write(context: Path, sink: Any) -> None:
    """Write the directory as a tar into a file-like sink (write, tell); files belong to root, as Docker has them.

    Docker tells a tar from a Dockerfile by the first header, which must not be an extended one: whole seconds and a
    short name first.
    """

    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_entries(context), key=lambda one: len(one.parts)):
            tar.add(path, str(path.relative_to(context)), recursive=False, filter=as_root)


def _entries(context: Path) -> list[Path]:
    return sorted(context.rglob("*"))


def _unreadable(error: OSError) -> Fault:
    return Fault("operator", f"build context: {error}", "make it readable, or correct `image_build`")
