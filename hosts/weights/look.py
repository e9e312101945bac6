"""Runs on a node as a part of the survey, read-only: which files of the model are there, whole and reachable.

Standard library only, Python 3.8 and newer. Costs a stat per file and the head of each shard; no weights are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

PARTIAL = ".dgx-spark-part"
"""End of the name of a file that is on its way (hosts/weights/receiver.py)."""
LEDGER = ".dgx-spark-cluster"
"""Names of the files below the mounted directory that this program brought; a destroy may remove them."""
HEADER_LIMIT = 100_000_000
"""Longest header of a safetensors file, its reference implementation's limit."""
WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|gguf)$")
INDEX = re.compile(r"\.(safetensors|bin)\.index\.json$")
READ = re.compile(
    r"(\.(safetensors|bin|pt|pth|gguf|json|model(\.v\d+)?|tiktoken|jinja|py|ya?ml)|(vocab|merges)[^/]*\.txt)$"
)
"""What an engine may read of a model's directory; a README or notes that someone left there are no part of it."""
CONFIGS = {"config.json", "params.json"}
"""One of which every model has; the latter in Mistral's own format."""
ENGINES_JSON = re.compile(r"(config|index|modules|params|processor|token|tekken|vocab|merges|template)[^/]*\.json$")
"""JSON that an engine reads: an object or a list, which shows where it is cut off."""
PARSED_BYTES = 65536
"""Largest JSON file that is parsed, within a millisecond; a config.json has some KB."""
NUMBERED = re.compile(r"-(\d{5,})-of-(\d{5,})\.(safetensors|bin)$")
UNUSABLE = re.compile(r"[\n\udc80-\udcff]")
"""In names that no model has, and that neither a ledger nor JSON can hold: line ends, bytes that are no UTF-8."""
OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')
"""End of a tensor's data. In a string of the header the quotes would be escaped, so nothing else looks like it."""
PART = re.compile(r"(.+)\.\d+-[0-9a-f]+" + re.escape(PARTIAL) + "$")
"""Name of a part: the file's, and which version of it."""
BEGIN = re.compile(rb'"data_offsets":\[\d+$')
"""What stands before the end of a tensor's data."""


def header_of(path: str) -> tuple[int, bytes]:
    """Length that a safetensors file gives its header, and the header as far as it is there; none if it has none.

    Format: 8 bytes with the header's length, little-endian; the header, JSON; the tensors' data, without gaps.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 2 <= length <= HEADER_LIMIT else b""
    return length, header


def whole_size(length: int, header: bytes, size: int) -> int | None:
    """Bytes that a safetensors file has when it is whole, by its own header; None if it has no header.

    Args:
        length: of the header, as the file gives it.
        header: as far as it is there.
        size: bytes that the file has.
    """
    end = size - 8 - length
    last = header.find(b",%d]" % end)
    if header.startswith(b"{") and BEGIN.search(header, max(0, last - 60), last) and b":[%d," % end not in header:
        return size  # a tensor ends here and none begins: found in a tenth of the time that all offsets take
    if 2 <= length <= HEADER_LIMIT and len(header) < length:
        # The header itself is cut off: more is missing than it could tell.
        return 8 + length
    if not header.startswith(b"{"):
        return None
    return 8 + length + max(map(int, OFFSETS.findall(header)), default=0)


def holds(header: bytes, tensors: list[str]) -> bool:
    """Whether a header is of as many tensors as the index gives the shard, the first and the last of them among them.

    To parse the headers would double the time of a look.
    """
    if header.count(b'"data_offsets"') != len(tensors):
        return False
    plain = [name for name in (tensors[0], tensors[-1]) if name.isascii()]  # others may be escaped or not
    return all(json.dumps(name).encode() in header for name in plain)


def ends(path: str) -> bool:
    """Whether a file of JSON is there to its end; of a large one, as a tokenizer is, only that is looked at."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > PARSED_BYTES:
            file.seek(size - 4096)
            return file.read().rstrip()[-1:] in (b"}", b"]")
        try:
            json.loads(file.read())
        except (ValueError, RecursionError):
            return False
        return True


def read(path: str) -> str:
    """Text of a regular file, or of what a link to one leads to; to open a FIFO could take for ever."""
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    return Path(path).read_text()


def part_of_model(name: str) -> bool:
    """Whether a name in the model's directory can be of the model."""
    return not (name.startswith(".") or UNUSABLE.search(name))


def loaded(names: list[str]) -> list[str]:
    """Weights that an engine loads, and their indexes: of those in several formats or places, one."""
    weights = [name for name in names if WEIGHTS.search(name) or INDEX.search(name)]
    best = [name for name in weights if name.endswith((".safetensors", ".safetensors.index.json"))] or weights
    return [name for name in best if "/" not in name] or best


def locate(path: str, revision: str) -> tuple[str, str, str]:
    """Directory to mount, the model's directory below it, and the file that names the revision (or empty).

    In an entry of the Hugging Face hub's cache, `models--ORG--NAME`, the files of a snapshot are links into blobs/
    beside it: the whole entry is mounted, so that they resolve.
    """
    path = os.path.normpath(path)
    entry = re.match(r"(?P<root>.*/models--[^/]+)(/snapshots/(?P<commit>[^/]+))?$", path)
    if not entry:
        return path, "", ""
    root, commit, ref = entry["root"], entry["commit"], ""
    if not commit:
        ref = "refs/" + revision
        with contextlib.suppress(OSError):
            commit = read(os.path.join(root, ref)).strip()
        if not commit:
            commit, ref = revision, ""
    return root, "snapshots/" + commit, ref


def series(name: str) -> str:
    """What the path of an index and those of its shards have in common."""
    return INDEX.sub(r".\1", NUMBERED.sub(r".\3", name))


def alike(name: str) -> set[str]:
    """Names of all shards that are numbered as this one is, its own among them; none of one without a number."""
    number = NUMBERED.search(name)
    if not number:
        return set()
    stem, width, last, kind = name[: number.start()], len(number[1]), number[2], number[3]
    return {f"{stem}-{one:0{width}}-of-{last}.{kind}" for one in range(1, int(last) + 1)}


def by_shard(folder: str, weight_map: dict[str, str]) -> dict[str, list[str]]:
    """Tensors that an index in a folder gives each shard, by the shard's path in the model's directory.

    Raises:
        ValueError: it gives none.
    """
    tensors = {}  # type: dict[str, list[str]]
    for tensor, name in weight_map.items():
        tensors.setdefault(name, []).append(tensor)
    if not tensors:
        raise ValueError("an index of nothing")
    return {os.path.normpath(os.path.join(folder, name)): its for name, its in tensors.items()}


class Look:
    """One look at a model: what is found is collected in attributes."""

    def __init__(self, root: str, below: str) -> None:
        self.root = root
        self.top = os.path.join(root, below) if below else root
        self.below = below
        self.files = {}  # type: dict[str, int]
        self.links = {}  # type: dict[str, str]
        self.outside = {}  # type: dict[str, str]
        self.lacks = {}  # type: dict[str, dict[str, Any]]
        self.closed = set()  # type: set[str]
        self.judged = set()  # type: set[str]
        self.tensors = {}  # type: dict[str, list[str]]
        self.mismatched = set()  # type: set[str]
        self.stock = {}  # type: dict[str, int]
        self.parts = {}  # type: dict[str, int]

    def walk(self) -> None:
        """List files and links below the model's directory, without hidden ones; raises OSError."""
        for folder, folders, names in os.walk(self.top, onerror=_raise):
            folders[:] = sorted(name for name in folders if part_of_model(name))
            for name in filter(part_of_model, names + folders):
                path = os.path.join(folder, name)
                if os.path.islink(path) and (name in folders or READ.search(name)):
                    self.link(path)
                elif name not in folders and READ.search(name):
                    about = os.stat(path)
                    if stat.S_ISREG(about.st_mode):
                        self.files[self.relative(path)] = about.st_size
                    else:  # an engine that opens it could wait for ever
                        self.lack(self.relative(path), os.path.relpath(path, self.top), irregular=True)

    def beside(self) -> None:
        """Count what is there and not of the model: parts of files, and a hub entry's other blobs; raises OSError."""
        for folder, folders, names in os.walk(os.path.join(self.root, "blobs") if self.below else self.root):
            folders[:] = filter(part_of_model, folders)
            for name in filter(part_of_model, names):
                path, part = os.path.join(folder, name), PART.match(name)
                if part:
                    file = self.relative(os.path.join(folder, part[1]))
                    self.parts[file] = self.parts.get(file, 0) + os.stat(path).st_size
                elif self.below and "." not in name and self.relative(path) not in self.files:
                    self.stock[self.relative(path)] = os.stat(path).st_size

    def relative(self, path: str) -> str:
        """A path as it is below the mounted directory."""
        return os.path.relpath(path, self.root)

    def link(self, path: str) -> None:
        """Follow a link; it must stay inside what is mounted."""
        name, place = self.relative(path), path
        for _ in range(8):  # a link to a link, not a circle
            target = os.readlink(place)
            self.links[self.relative(place)] = target
            # Not realpath: in the container there is the path as it is written, nothing above the mount.
            place = os.path.normpath(os.path.join(os.path.dirname(place), target))
            if not f"{place}/".startswith(f"{self.root}/") or UNUSABLE.search(place):
                self.outside[name] = target
                return
            if not os.path.islink(place):
                break
        if os.path.isfile(place):
            self.files[self.relative(place)] = os.stat(place).st_size
        elif not os.path.isdir(place):
            self.lack(self.relative(place), os.path.relpath(path, self.top), irregular=os.path.exists(place))

    def lack(
        self, file: str, name: str, wanted: int | None = None, found: int | None = None, *, irregular: bool = False
    ) -> None:
        """Note a file that is missing (nothing found) or not whole."""
        self.lacks.setdefault(file, {"name": name, "wanted": wanted, "found": found, "irregular": irregular})

    def held(self, name: str) -> str:
        """Where the content of a file of the model is: itself, or what its link leads to."""
        file = os.path.normpath(os.path.join(self.below, name))
        for _ in range(8):
            if file not in self.links:
                break
            target = os.path.join(self.root, os.path.dirname(file), self.links[file])  # it may be absolute
            file = self.relative(os.path.normpath(target))
        return file

    def names(self) -> list[str]:
        """Names in the model's directory."""
        names = [os.path.relpath(file, self.below or ".") for file in [*self.files, *self.links]]
        return [name for name in names if not name.startswith("..")]

    def leave(self, names: set[str]) -> None:
        """Forget files that are no part of the model, with what only they lead to."""
        held = {self.held(name) for name in names} - {self.held(name) for name in self.names() if name not in names}
        for name in names:
            path = os.path.normpath(os.path.join(self.below, name))
            self.links.pop(path, None)
            self.outside.pop(path, None)
        for file in held:
            self.files.pop(file, None)
            self.lacks.pop(file, None)
        self.closed &= set(self.files)

    def judge(self) -> bool:
        """Find what is missing or cut off; whether there are weights at all.

        What the user may not read, but the container's root may, is judged by nothing.
        """
        self.closed = {file for file in self.files if not os.access(os.path.join(self.root, file), os.R_OK)}
        names = self.names()
        chosen = loaded(names)
        shards, total = {name for name in chosen if name.endswith((".safetensors", ".bin"))}, None
        indexed = set()  # type: set[str]
        named = set()  # type: set[str]
        for index in filter(INDEX.search, chosen):
            if self.held(index) in self.closed:
                continue
            try:
                found = json.loads(read(os.path.join(self.root, self.held(index))))
                its = by_shard(os.path.dirname(index), found["weight_map"])
                total = (found.get("metadata") or {}).get("total_size", total)
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                file = self.held(index)
                self.lack(file, index, None, self.files.get(file))
            else:
                self.tensors.update(its)
                named |= set(its)
                indexed |= {series(name) for name in (index, *its)}
        # Safetensors numbered otherwise are left over from another version; vLLM does not load them either.
        spare = {name for name in shards - named if name.endswith(".safetensors") and NUMBERED.search(name)}
        unnamed = {name for name in spare if series(name) in indexed}
        self.mismatched |= {name for name in unnamed if alike(name) & named}
        left = unnamed - self.mismatched
        self.leave(left)
        names, shards = self.names(), shards - left | named
        for name in list(shards):
            if series(name) not in indexed:
                shards |= alike(name)
        if not CONFIGS & set(names):
            self.lack(self.held("config.json"), "config.json")
        for name in sorted(shards):
            self.shard(name)
        for name in names:
            file = self.held(name)
            if not name.endswith(".json") or file not in self.files or file in self.closed:
                continue
            if not ENGINES_JSON.search(name) or ends(os.path.join(self.root, file)):
                self.judged.add(file)
            else:
                self.lack(file, name, None, self.files[file])
        self.remainder(shards, total)
        return bool(shards) or any(WEIGHTS.search(name) for name in names)

    def shard(self, name: str) -> None:
        """Compare the size of a shard with what its header says, and that with the index."""
        file = self.held(name)
        if os.path.normpath(os.path.join(self.below, name)) in self.outside:
            return
        if file not in self.files:
            self.lack(file, name)
            return
        if not name.endswith(".safetensors") or file in self.closed:
            return
        length, header = header_of(os.path.join(self.root, file))
        wanted = whole_size(length, header, self.files[file])
        if wanted != self.files[file]:
            self.lack(file, name, wanted, self.files[file])
            return
        self.judged.add(file)
        if name in self.tensors and not holds(header, self.tensors[name]):
            self.mismatched.add(name)

    def remainder(self, shards: set[str], total: Any) -> None:
        """Size of the only shard that is missing: by the index, less the others; headers are thousandths of it."""
        held = {self.held(name) for name in shards}
        missing = [file for file in held if file not in self.files and file in self.lacks]
        if len(missing) == 1 and isinstance(total, int):
            self.lacks[missing[0]]["wanted"] = max(0, total - sum(self.files.get(file, 0) for file in held))


def _raise(error: OSError) -> None:
    raise error


def look(path: str, revision: str) -> dict[str, Any]:
    """What is there of the model: see hosts/weights/files.py for the answer's fields."""
    root, below, ref = locate(path, revision)
    seen, error, weights = Look(root, below), "", False
    exists = os.path.isdir(seen.top)
    snapshots = os.path.join(root, "snapshots")
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(seen.top)  # a closed directory above it hides whether it exists
        if exists or os.path.exists(seen.top):
            seen.walk()
            weights = seen.judge()
        seen.beside()
        others = [] if exists or not os.path.isdir(snapshots) else sorted(os.listdir(snapshots))
    except OSError as fault:
        error, others = f"{fault.strerror}: {fault.filename}", []
    above = root
    while not os.path.exists(above):
        above = os.path.dirname(above)
    try:
        disk = os.statvfs(above)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        free = 0
    return {
        "error": error,
        "exists": exists,
        "below": below,
        "weights": weights,
        "files": seen.files,
        "links": seen.links,
        "outside": seen.outside,
        "lacks": seen.lacks,
        "mismatched": sorted(seen.mismatched),
        "closed": sorted(seen.closed),
        "unjudged": sorted(set(seen.files) - seen.judged - set(seen.lacks)),
        "refs": {ref: below.rpartition("/")[2]} if ref else {},
        "stock": seen.stock,
        "parts": seen.parts,
        "snapshots": others,
        "free": free,
        "writable": os.access(above, os.W_OK | os.X_OK),
    }
