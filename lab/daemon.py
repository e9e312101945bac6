"""The outer Docker daemon: the one that runs already, or one that the lab starts and `down` stops."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lab import docker, processes
from lab.layout import STATE
from lab.processes import CommandFailedError, LabError

LOG = STATE / "dockerd.log"
PID_FILE = STATE / "dockerd.pid"
RECORD = STATE / "daemon.json"
"""Written when the lab starts a daemon, with its process id and start time: only that one is ever stopped."""
CGROUPS = Path("/sys/fs/cgroup")
NODES_CGROUP = "dgx-spark-lab"
SYSTEM_PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_SECONDS = 60.0
PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
}


def _missing_packages() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
    return sorted({package for tool, package in PACKAGES.items() if not shutil.which(tool, path=path)})


def packages_ready() -> bool:
    """Whether the programs that the lab runs are installed."""
    return not _missing_packages()


def install_packages(note: Callable[[str], None]) -> None:
    """Install what is missing from the distribution."""
    missing = _missing_packages()
    if not shutil.which("apt-get"):
        raise LabError(f"not installed: {', '.join(missing)}", next_step="the lab needs Debian 12 or a relative of it")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    # Others may be installing at this moment; and an interrupted installation is completed first.
    wait = ("-o", "DPkg::Lock::Timeout=300")
    try:
        processes.run(["dpkg", "--configure", "-a"], note=note, env=env)
        processes.run(["apt-get", *wait, "update"], note=note, env=env)
        install = ["apt-get", *wait, "install", "--yes", "--no-install-recommends", *missing]
        processes.run(install, note=note, env=env)
    except CommandFailedError as error:
        error.next_step = f"run `apt-get update && apt-get install {' '.join(missing)}` as root and see what it says"
        raise


def own_daemon() -> psutil.Process | None:
    """The daemon that the lab started, while it lives."""
    try:
        record = json.loads(RECORD.read_text())
        process = psutil.Process(record["pid"])
        # A process id alone may by now be somebody else's.
        same = abs(process.create_time() - record["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return process if same else None


def _drop_stale_pid_file(path: Path, program: str) -> None:
    """A pid file that a killed daemon left keeps the next from starting once its number is taken again."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        try:
            holder = psutil.Process(pid)
            stale = holder.name() != program or holder.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            stale = True
        if stale:
            path.unlink()


def _runtime_hook() -> Path:
    """Directory with a stand-in of NVIDIA's hook: Docker grants `--gpus` when it finds one on its PATH."""
    hook = STATE / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    return hook.parent


def _little_weight() -> list[str]:
    """Options that give the nodes less of the processors than the operator's programs: real ones have their own.

    None where this machine's control groups do not take that.
    """
    for controller, file, value in ((CGROUPS / "cpu", "cpu.shares", "64"), (CGROUPS, "cpu.weight", "6")):
        group = controller / NODES_CGROUP
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            (group / file).write_text(value)  # a sixteenth of what every other group has by default
            return ["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{NODES_CGROUP}"]
    return []


def _log_tail() -> str:
    try:
        return "\n".join(LOG.read_text(errors="replace").splitlines()[-12:])
    except OSError:
        return ""


def start(note: Callable[[str], None]) -> None:
    """Start a daemon unless ours is on its way up, and wait until it answers."""
    process = own_daemon()
    if process is None:
        if os.geteuid() != 0:
            raise LabError("no Docker daemon answers", next_step="start Docker, or run this as root so that it can")
        PID_FILE.unlink(missing_ok=True)  # of one that was killed
        _drop_stale_pid_file(Path("/var/run/docker/containerd/containerd.pid"), "containerd")
        STATE.mkdir(parents=True, exist_ok=True)
        path = f"{_runtime_hook()}:{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
        # The default data root, not one of this checkout: containers that outlive a killed daemon can only be
        # ended by a daemon that knows them, and so whoever starts the next one finds them. No docker0: not needed.
        with LOG.open("w") as log:
            child = subprocess.Popen(
                ["dockerd", "--pidfile", str(PID_FILE), "--bridge", "none", *_little_weight()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path},
                start_new_session=True,
            )
        process = psutil.Process(child.pid)
        RECORD.write_text(json.dumps({"pid": process.pid, "created": process.create_time()}))
    deadline = time.monotonic() + START_SECONDS
    while not docker.answers():
        note(f"waiting for dockerd (pid {process.pid}), log {LOG}")
        if own_daemon() is None or time.monotonic() > deadline:
            raise LabError("dockerd did not come up", evidence=_log_tail(), next_step=f"read {LOG}")
        processes.pause(0.2)


def stop(note: Callable[[str], None]) -> None:
    """Stop the daemon if the lab started it; any other is left alone."""
    process = own_daemon()
    if process is not None:
        note(f"stopping dockerd (pid {process.pid})")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(40)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(10)
    RECORD.unlink(missing_ok=True)
    PID_FILE.unlink(missing_ok=True)
