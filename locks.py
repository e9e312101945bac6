"""Who works on a stack: the locks that Pulumi keeps in a backend that is a folder."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import pydantic
from pulumi import automation

SCHEME = "file://"
UNLOCK = "make unlock STACK={stack}"


class Lock(pydantic.BaseModel):
    """What stands in a lock (pkg/backend/diy/lock.go of Pulumi)."""

    pid: int
    username: str
    hostname: str
    timestamp: datetime

    def __str__(self) -> str:
        """Whose it is."""
        since = self.timestamp.astimezone().isoformat(timespec="minutes")
        return f"pulumi (pid {self.pid}) of {self.username}@{self.hostname}, since {since}"

    @property
    def local(self) -> bool:
        """Whether it was taken on this host, where the process can be looked for."""
        return self.hostname == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether its process runs, here. The name tells too: numbers are given again, after a reboot at the latest."""
        try:
            process = psutil.Process(self.pid)
            return process.name() == "pulumi" and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class Held:
    """A stack that is locked: by a run at work, or, as far as this host can know, by none."""

    busy: bool
    text: str


def folder(stack: automation.Stack) -> Path | None:
    """Where the locks of a stack are; None where its backend is no folder, and tells only an update of them."""
    url = stack.workspace.who_am_i().url or ""
    if not url.startswith(SCHEME):
        return None
    backend = Path(stack.workspace.work_dir, Path(url.removeprefix(SCHEME).partition("?")[0]).expanduser())
    return backend / ".pulumi" / "locks" / "organization" / stack.workspace.project_settings().name / stack.name


def held(locks: Path | None, stack: str) -> Held | None:
    """Who has locked a stack; None where nobody has, or the backend does not tell."""
    unlock = UNLOCK.format(stack=stack)
    for path in sorted(locks.glob("*.json")) if locks else ():
        try:
            lock = Lock.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            continue  # given back just now
        except (OSError, pydantic.ValidationError) as error:  # a power cut may leave it empty
            return Held(busy=False, text=f"{path} cannot be read ({type(error).__name__}); if no pulumi runs: {unlock}")
        if not lock.local:
            return Held(busy=False, text=f"{lock}; if it runs there no more: {unlock}")
        if lock.alive:
            return Held(busy=True, text=f"{lock}, works on this stack")
        return Held(busy=False, text=f"{lock}, ended without giving its lock back: {unlock}")
    return None
