"""Runs on a node as `python3 -I -S -`, read-only, standard library only: prints the node's facts as one line of JSON.

Sent by hosts/survey.py, which appends survey_hardware.py and the call of :func:`main` with the question. Written for
Python 3.8 and newer, as the node's own interpreter runs it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCKER_SOCKET = "/var/run/docker.sock"
LABEL = "dgx-spark-cluster."
VIRTUAL = r"docker(\d|_gwbridge)|br-[0-9a-f]{12}$|veth|virbr|(lxd|lxc|incus)br|(cni|podman)\d"
"""Interfaces of containers and virtual machines. Docker's networks have br- and 12 digits; br-lan is the user's."""


def engine(path: str) -> Any:
    """The answer of one GET of Docker's API; None where Docker does not know the thing asked for.

    Over its socket by hand: to import http.client takes the node 30 ms, and each call of the docker client 60. In
    HTTP/1.0 the answer ends with the connection.

    Raises:
        OSError: Docker does not answer, or with an error.
        ValueError: its answer is cut off.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(DOCKER_SOCKET)
        link.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        with link.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    status = head[9:12].decode()
    if status == "404":
        return None
    if status != "200":
        raise OSError(f"it answered {status or 'nothing'} to {path}: {body[:200]!r}")
    return json.loads(body)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command that only reads; one that cannot be run is exit code 127."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]}: no answer within 10 s")


def first_line(path: str | Path) -> str | None:
    """First line of a file of /proc or /sys, or None."""
    try:
        return Path(path).read_text(errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return None


def docker(images: list[str]) -> dict[str, Any]:
    """Engine, image (under the first name that is known) and containers, or the error that says why there are none."""
    if not shutil.which("docker"):
        return {"error": "Docker is not installed"}
    try:
        info = engine("/info") or {}
        found = None
        for name in images:
            found = found or engine(f"/images/{urllib.parse.quote(name)}/json")
        containers = [
            {
                "id": row["Id"],
                "name": row["Names"][0].lstrip("/") if row.get("Names") else "",
                "image": row["ImageID"],
                "state": row["State"],
                "labels": {k[len(LABEL) :]: v for k, v in (row.get("Labels") or {}).items() if k.startswith(LABEL)},
                "published": [
                    [port.get("IP") or "0.0.0.0", port["PublicPort"]]  # noqa: S104 - what no IP means
                    for port in row.get("Ports") or []
                    if port["Type"] == "tcp" and "PublicPort" in port
                ],
            }
            for row in engine("/containers/json?all=1") or []
        ]
    except PermissionError:
        return {"error": "the user may not use Docker"}
    except (OSError, ValueError) as error:
        return {"error": f"Docker does not answer: {error}"}
    return {
        "version": info.get("ServerVersion"),
        "driver": info.get("Driver"),
        "containerd": "io.containerd.snapshotter" in json.dumps(info.get("DriverStatus")),
        "image": found and {key: found.get(key) for key in ("Id", "Os", "Architecture", "RootFS", "Config", "Size")},
        "images": info.get("Images"),
        "containers": containers,
        "root": image_root(info),
        "gpu_runtimes": gpu_runtimes(info),
    }


def image_root(info: dict[str, Any]) -> str:
    """Directory that holds the images: Docker's own, or containerd's where that is the store."""
    stored = "io.containerd.snapshotter" in json.dumps(info.get("DriverStatus"))
    return "/var/lib/containerd" if stored and exists("/var/lib/containerd") else info.get("DockerRootDir") or ""


def gpu_runtimes(info: dict[str, Any]) -> list[str]:
    """By which ways Docker can grant GPUs: NVIDIA's runtime, its hook on Docker's PATH, or CDI devices."""
    ways = ["runtime"] if "nvidia" in (info.get("Runtimes") or {}) else []
    if shutil.which("nvidia-container-runtime-hook", path="/usr/bin:/usr/local/bin:/usr/sbin:/usr/local/sbin"):
        ways.append("hook")
    if "nvidia.com/gpu" in json.dumps(info.get("DiscoveredDevices") or []):
        ways.append("CDI")
    return ways


def gpus() -> dict[str, Any]:
    """GPUs by nvidia-smi, whose memory readings are [N/A] on a GB10 and not asked for."""
    done = run("nvidia-smi", "--query-gpu=index,name,uuid", "--format=csv,noheader")
    if done.returncode:
        return {"gpus": [], "gpu_error": (done.stderr or done.stdout).strip(), "gpu_processes": []}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.count(",") >= 2]
    rows = [row for row in rows if row[0].isdigit()]  # it may warn on the same stream
    return {
        "gpus": [{"index": int(row[0]), "name": row[1], "uuid": row[2]} for row in rows],
        "gpu_error": "",
        "gpu_processes": gpu_processes(),
    }


def gpu_processes() -> list[dict[str, Any]]:
    """Who computes on a GPU, with the memory that nvidia-smi tells (a GB10 tells it for processes), in MiB."""
    done = run("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        pid, _, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if pid.strip().isdigit():
            mib = int(memory) if memory.strip().isdigit() else None
            found.append({"pid": int(pid), "name": name.strip(), "mib": mib, **owner(cgroups(int(pid)))})
    return found


def cgroups(pid: int) -> str:
    """Cgroups of a process, one a line; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def owner(groups: str) -> dict[str, str]:
    """Container and systemd unit that cgroups belong to; empty where there is none."""
    containers = re.findall(r"[0-9a-f]{64}", groups)
    units = re.findall(r"/([^/\n]+\.service)", groups)
    # A unit of a user's own manager (user@1000.service/…) is none that root could stop by its name.
    if "/user@" in groups:
        units = []
    # The innermost of each: the node may be a container itself.
    return {"container": containers[-1] if containers else "", "unit": units[-1] if units else ""}


def interfaces() -> list[dict[str, Any]]:
    """Interfaces that are up and have an address, without loopback and Docker's bridges.

    IPv4 of scope link counts: a cable has nothing else where netplan says `link-local: [ ipv4 ]`, as in NVIDIA's
    playbook for two Sparks. IPv6's fe80:: does not: every interface has one, and it cannot be dialled without its zone.
    """
    found = []
    try:
        listed = json.loads(run("ip", "-json", "address", "show", "up").stdout or "[]")
    except ValueError:
        listed = []
    for row in listed:
        name = row.get("ifname", "")
        addresses = [
            f"{a['local']}/{a['prefixlen']}"
            for a in row.get("addr_info", [])
            if a.get("scope") == "global" or (a.get("scope"), a.get("family")) == ("link", "inet")
        ]
        if not addresses or row.get("link_type") == "loopback" or re.match(VIRTUAL, name):
            continue
        speed = first_line(f"/sys/class/net/{name}/speed") or ""
        found.append(
            {
                "name": name,
                "addresses": addresses,
                "mtu": row.get("mtu"),
                "speed": int(speed) if speed.isdigit() else None,
                "state": row.get("operstate") or "",
            }
        )
    return found


def listeners(ports: list[int], containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who listens on the ports that the cluster needs.

    Processes of other users show only with sudo, but everybody is told the cgroup, and so the unit or container. Behind
    a published port is its container, and not Docker, whose proxy listens.
    """
    if not ports:
        return []
    expression = " or ".join(f"sport = :{port}" for port in ports)
    argv = ["ss", "-Hltnp", "--cgroup", expression]
    done = run(*argv)
    if done.returncode:  # before iproute2 5.8 there is no --cgroup
        argv = ["ss", "-Hltnp", expression]
        done = run(*argv)
    if any("pid=" not in line for line in done.stdout.splitlines()):
        elevated = run("sudo", "-n", *argv)
        done = elevated if elevated.returncode == 0 else done
    published = {(ip, port): container["id"] for container in containers for ip, port in container["published"]}
    found = []
    for line in done.stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        process = re.search(r'\(\("(?P<name>[^"]*)",pid=(?P<pid>\d+)', line)
        group = re.search(r" cgroup:(\S+)", line)
        known = owner(cgroups(int(process["pid"])) if process else group[1] if group else "")
        behind = published.get((address.strip("[]").replace("*", "::"), int(port)))
        found.append(
            {
                "port": int(port),
                "address": address,
                "process": process["name"] if process else "",
                "pid": int(process["pid"]) if process else None,
                **known,
                **({"container": behind} if behind else {}),
            }
        )
    return found


def units(names: list[str]) -> list[dict[str, str]]:
    """Those of the named systemd units that run, or would after the next boot."""
    if not names:
        return []
    done = run("systemctl", "show", "--property=ActiveState,UnitFileState", "--", *names)
    found = []
    # A block of properties for each name, in their order; without systemd there is none.
    for name, block in zip(names, done.stdout.strip().split("\n\n")):  # noqa: B905 - Python 3.8 has no strict
        state = dict(line.partition("=")[::2] for line in block.splitlines())
        active, enabled = state.get("ActiveState", ""), state.get("UnitFileState", "")
        if active not in ("", "inactive", "failed") or enabled in ("enabled", "enabled-runtime"):
            found.append({"name": name, "active": active, "enabled": enabled})
    return found


def refused(programs: list[str]) -> list[str]:
    """For which of these programs sudo would ask a password."""
    return [name for name in programs if os.geteuid() and run("sudo", "-n", name, "--version").returncode]


def exists(path: str) -> bool:
    """Whether the user sees it; Path.exists raises PermissionError before Python 3.12."""
    return os.path.exists(path)  # noqa: PTH110


def main(
    question: dict[str, Any],
    hardware: Callable[[str, str], dict[str, Any]],
    look: Callable[[str, str], dict[str, Any]],
) -> None:
    """Print the answer to `question`: keys image, model, revision, paths, devices, ports, units, sudo and home.

    `hardware` and `look` are those of hosts/survey_hardware.py and hosts/weights/look.py, which are sent along.
    """
    home = question["home"] or os.path.expanduser("~")  # noqa: PTH111 - Path's may raise

    def at_home(path: str) -> str:
        return home + path[1:] if path.startswith("~/") else path

    stale = units(question["units"])
    answer = json.dumps(
        {
            "hostname": socket.gethostname(),
            "architecture": os.uname().machine,
            "docker": (images := docker(question["images"])),
            **gpus(),
            "interfaces": interfaces(),
            "listeners": listeners(question["ports"], images.get("containers", [])),
            "units": stale,
            "refused": refused((["systemctl"] if stale else []) + question["sudo"]),
            "model": look(at_home(question["model"]), question["revision"]) if question["model"] else {},
            "missing": [path for path in map(at_home, question["paths"]) if not exists(path)],
            "devices": [path for path in question["devices"] if exists(path)],
            "home": home,
            **hardware(images.get("root", ""), at_home(question["model"])),
        },
        ensure_ascii=False,
    )
    # A name that is no UTF-8 has surrogates.
    sys.stdout.buffer.write(answer.encode(errors="replace") + b"\n")
