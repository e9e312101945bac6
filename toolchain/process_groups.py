"""Child processes that can all be ended at once, with everything they started."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL; less than the 5 s that the engine grants a plugin (ExecPlugin in pulumi's plugin.go)."""


SIGNAL_SECONDS = 0.5
"""The longest the main thread may wait at a time.

What CPython does of a signal that comes between the beginning of a wait and its sleep, it does after the wait
(lock_PyThread_acquire_lock gives up the GIL in between, which may take a while).
"""


class EndedError(Exception):
    """No process is started any more: `ProcessGroups.end` was called."""


class ProcessGroups:
    """Starts processes as leaders of groups of their own, so that no signal to ours reaches them but through `end`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended

    def start(self, args: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a process; takes the options of `subprocess.Popen`.

        Raises:
            EndedError: `end` was called before.
            OSError: The program or its directory cannot be used.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        with self._changed:
            if self._ended:
                raise EndedError
            process = subprocess.Popen(args, process_group=0, **options)
            self._running.add(process)
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the end of a process; its exit code, negative for a signal."""
        # Left unreaped until the lock is held: its id cannot be given to another process while it may be signalled.
        if hasattr(os, "waitid"):  # macOS has it in Python 3.13 and later only
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with self._changed:
            self._running.discard(process)
            self._changed.notify_all()
            return process.wait()

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        """Ends one process and its group, by force after the grace; returns at once."""
        if self._signal(process, signal.SIGTERM):
            timer = threading.Timer(GRACE_SECONDS, self._signal, (process, signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """Ends all processes and starts no more; returns at once, whoever waits for a process sees it end."""
        with self._changed:
            self._ended = True
            processes = list(self._running)
        for process in processes:
            self.terminate(process)

    def close(self) -> None:
        """As `end`, and returns when all processes have been waited for, by force after the grace."""
        self.end()
        if not self._wait_for_all(GRACE_SECONDS):
            with self._changed:
                processes = list(self._running)
            for process in processes:
                self._signal(process, signal.SIGKILL)
            self._wait_for_all(1.0)

    def _wait_for_all(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout=seconds)

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
        with self._changed:
            if process not in self._running:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            return True
