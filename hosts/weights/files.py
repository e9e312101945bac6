"""What of the model is on a node, as hosts/weights/look.py tells it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from hosts.bundle import bundle
from hosts.ssh import Connection
from hosts.weights import look as model_look


class Lack(BaseModel):
    """A file that the model needs and that is missing or not whole."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name in the model's directory."""
    wanted: int | None = None
    """Bytes it should have, by its own header or (about) by the index; None where neither tells."""
    found: int | None = None
    """Bytes it has; None where it is missing."""
    irregular: bool = False
    """Whether a FIFO, a socket or a device stands in its place."""

    def __str__(self) -> str:
        wanted = "" if self.wanted is None else f"{self.wanted} bytes wanted, "
        missing = "no regular file" if self.irregular else "missing"
        return f"{self.name} ({wanted}{missing if self.found is None else f'{self.found} found'})"


class ModelFiles(BaseModel):
    """The model on a node. Paths of files are relative to the directory that is mounted."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    error: str = ""
    """Why the directory cannot be looked at, where it exists."""
    exists: bool = True
    """Whether the model's directory is there."""
    below: str = ""
    """The model's directory below the mounted one: snapshots/COMMIT of a hub cache, else empty."""
    weights: bool = True
    """Whether there is any file of weights, or an index that names one."""
    files: Mapping[str, int] = {}
    """Size of each file in bytes; those that links lead to under their own paths."""
    links: Mapping[str, str] = {}
    """Symbolic links and what they say."""
    outside: Mapping[str, str] = {}
    """Those of them that lead out of the mounted directory."""
    lacks: Mapping[str, Lack] = {}
    """What is missing or not whole, by path."""
    mismatched: tuple[str, ...] = ()
    """Names of shards that are whole, and hold other tensors than the index gives them."""
    closed: tuple[str, ...] = ()
    """Files that the user may not read: the containers' root can, but nobody can copy them."""
    unjudged: tuple[str, ...] = ()
    """Files of which nothing tells whether they are whole: neither a header nor the end of JSON."""
    refs: Mapping[str, str] = {}
    """In a hub cache: the file that names the revision, and the commit in it."""
    stock: Mapping[str, int] = {}
    """Sizes of a hub cache's other blobs: of another revision, or of a copy that has no links yet."""
    parts: Mapping[str, int] = {}
    """Bytes of files that are on their way, by the file that they will be."""
    snapshots: tuple[str, ...] = ()
    """In a hub cache without the wanted snapshot: those that are there."""
    free: int = 0
    """Bytes that the user may still write there."""
    writable: bool = True
    """Whether the user may write there, or into what exists above."""

    @property
    def whole(self) -> Mapping[str, int]:
        """The files that are not known to be cut off."""
        return {file: size for file, size in self.files.items() if file not in self.lacks}

    @property
    def complete(self) -> bool:
        """Whether the node could serve from it."""
        return self.exists and self.weights and not self.error and not self.lacks


def look(connection: Connection, path: str, revision: str) -> ModelFiles:
    """Look at the model on a node anew; raises Fault when the node cannot be asked."""
    script = f"{bundle(model_look)}\nimport json\nprint(json.dumps(module.look({path!r}, {revision!r})))\n"
    done = connection.run("python3", "-", stdin=script, check=True)
    # The last line: a shell's start may say something before.
    return ModelFiles.model_validate_json(done.stdout.strip().rpartition("\n")[2])
