"""Root file systems from the distribution's packages: no image registry is needed."""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import layout, processes
from lab.layout import STATE, TEMPORARY
from lab.processes import CommandFailedError

SUITE = "bookworm"
# Documentation and translations are half the files and no use here.
LEAN = tuple(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale", "info", "lintian"))


@dataclass(frozen=True)
class RootFilesystem:
    """A Debian tree as a tar file, and the packages in it."""

    name: str
    packages: tuple[str, ...]

    @property
    def archive(self) -> Path:
        """Where the tar file is."""
        return STATE / f"{self.name}.tar"

    @property
    def stamp(self) -> Path:
        """Where the hash of its definition is."""
        return STATE / f"{self.name}.stamp"

    def definition(self) -> str:
        """Hash of what it is made from."""
        return layout.digest(SUITE, LEAN, self.packages)

    def ready(self) -> bool:
        """Whether the archive is there and made from this definition."""
        return self.archive.exists() and layout.read_stamp(self.stamp) == self.definition()

    def make(self, note: Callable[[str], None]) -> None:
        """Make the archive under another name, then put it in place."""
        TEMPORARY.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=TEMPORARY))
        try:
            fresh = work / "root.tar"
            command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(self.packages)}", *LEAN]
            # Its own root is unpacked beside the archive, so that an interrupted run leaves nothing elsewhere.
            processes.run([*command, SUITE, str(fresh)], note=note, env={"TMPDIR": str(work)})
            fresh.replace(self.archive)
            self.stamp.write_text(self.definition())
        except CommandFailedError as error:
            error.next_step = "check that the Debian mirror answers: apt-get update"
            raise
        finally:
            clear(work)


def clear(folder: Path) -> None:
    """Remove a temporary folder, also while everything is being stopped; nothing that is mounted below it."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False, capture_output=True)


NODE_ROOT = RootFilesystem(
    "node-root",
    (
        *("systemd", "systemd-sysv", "dbus", "kmod", "openssh-server", "sudo", "docker.io", "iptables", "python3"),
        *("iproute2", "iputils-ping", "procps", "lsof", "rsync", "curl", "ca-certificates"),
    ),
)
SERVING_ROOT = RootFilesystem(
    "serving-root",
    # A compiler, because torch compiles on the first completion; numactl and OpenMP are linked by the engine.
    ("python3.11", "python3.11-dev", "g++", "libgomp1", "libnuma1", "procps", "iproute2", "curl", "ca-certificates"),
)
