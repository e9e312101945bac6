"""How the operator reaches the nodes: keys, known hosts, and an ssh configuration that never dials outside the lab."""

import shutil
from collections.abc import Callable
from pathlib import Path

from lab import layout, processes
from lab.layout import MANAGEMENT, SPARKS, SSH_CONFIG, STATE, USER, Node

OPERATOR_KEY = STATE / "keys" / "operator"
KNOWN_HOSTS = STATE / "known_hosts"


def is_up() -> bool:
    """Whether the lab's management network is there. While it is not, its addresses belong to somebody else."""
    return Path("/sys/class/net", MANAGEMENT.bridge).exists()


def ssh_config(*, device: str = MANAGEMENT.bridge, key: Path = OPERATOR_KEY, known_hosts: Path = KNOWN_HOSTS) -> str:
    """Text of the ssh configuration; `device` is the bridge without which nothing is dialled."""
    head, *workers = SPARKS
    inside = [pattern for network in layout.NETWORKS for pattern in [network.subnet.replace("0/24", "*")]]
    names = [*inside, *(node.name for node in SPARKS)]
    behind = "".join(
        f"Host {node.name}\n    HostName {node.fabric}\n    ProxyJump {USER}@{head.management}\n" for node in workers
    )

    def refuse(why: str) -> str:
        return f"""ProxyCommand sh -c 'echo "{why}" >&2; exit 1'"""

    return f"""# Written by `python -m lab up`. Nothing reached through this file is outside this machine.
# While the lab is down its addresses belong to somebody else: refuse before anything is sent.
Match !exec "test -e /sys/class/net/{device}"
    {refuse("the lab is down (no device " + device + "): not dialling %h; run python -m lab up")}
Match host "{",".join("!" + name for name in names)},*"
    {refuse("%h is no address of the lab: not dialling it")}

Host {head.name}
    HostName {head.management}
{behind}
Host *
    User {USER}
    IdentityFile "{key}"
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile "{known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    HostKeyAlgorithms ssh-ed25519
    ConnectTimeout 10
"""


def host_key(node: Node) -> Path:
    """The node's host key, made here so that it is known before the first connection."""
    return node.state / "ssh" / "ssh_host_ed25519_key"


def _known_hosts() -> str:
    lines = []
    for node in SPARKS:
        kind, key = host_key(node).with_suffix(".pub").read_text().split()[:2]
        lines.append(f"{','.join((node.name, *node.addresses))} {kind} {key}\n")
    return "".join(lines)


def _keys() -> list[Path]:
    return [OPERATOR_KEY, *(host_key(node) for node in SPARKS)]


def ready() -> bool:
    """Whether keys, known hosts and configuration are there and of this version."""
    if not all(key.exists() and key.with_suffix(".pub").exists() for key in _keys()):
        return False
    return (
        layout.read_stamp(KNOWN_HOSTS) == _known_hosts().strip()
        and layout.read_stamp(SSH_CONFIG) == ssh_config().strip()
        and all((node.state / "ssh" / "authorized_keys").exists() for node in SPARKS)
    )


def make(_note: Callable[[str], None]) -> None:
    """Make what is missing; keys that exist are kept."""
    for key in _keys():
        if not (key.exists() and key.with_suffix(".pub").exists()):
            key.parent.mkdir(parents=True, exist_ok=True)
            key.unlink(missing_ok=True)
            key.with_suffix(".pub").unlink(missing_ok=True)
            processes.capture(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key.name, "-f", str(key)])
    for node in SPARKS:
        shutil.copyfile(OPERATOR_KEY.with_suffix(".pub"), node.state / "ssh" / "authorized_keys")
    for path, text in ((KNOWN_HOSTS, _known_hosts()), (SSH_CONFIG, ssh_config())):
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text)
        fresh.replace(path)


def ssh(node: Node, *command: str, connect_timeout: int = 5) -> list[str]:
    """Command line that runs `command` on a node."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_timeout}"]
    return ["ssh", "-F", str(SSH_CONFIG), *options, node.name, *command]
