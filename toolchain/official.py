"""Finds an official Pulumi on PATH, which always wins over one built here."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from toolchain.versions import OLDEST_OFFICIAL, version_tuple

_VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class Official:
    """A Pulumi CLI found on PATH, and what speaks against its use ("" where nothing does)."""

    executable: Path
    version: str
    objection: str = ""


def find_official(search_path: str, own_bin: Path) -> Official | None:
    """Looks for `pulumi` on a search path, leaving out what this package built, here or in another checkout."""
    own = own_bin.resolve().parts[-3:]  # .build/toolchain/bin
    folders = [f for f in search_path.split(os.pathsep) if f and Path(f).resolve().parts[-3:] != own]
    others = os.pathsep.join(folders)
    found = shutil.which("pulumi", path=others)
    if found is None:
        return None
    executable = Path(found)
    version = _version_of(executable)
    number = version_tuple(version)
    if not number:
        return Official(executable, version, "it does not tell its version")
    if number < OLDEST_OFFICIAL:
        return Official(executable, version, f"it is older than {'.'.join(map(str, OLDEST_OFFICIAL))}")
    beside = executable.resolve().with_name("pulumi-language-python")
    if not beside.is_file() and shutil.which("pulumi-language-python", path=others) is None:
        return Official(executable, version, "pulumi-language-python is neither beside it nor on PATH")
    return Official(executable, version)


def _version_of(executable: Path) -> str:
    try:
        answer = subprocess.run(
            [str(executable), "version"],
            env=dict(os.environ, PULUMI_SKIP_UPDATE_CHECK="true"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
