"""What OpenSSH's own words mean: its wording (ssh.c, sshconnect.c) is unchanged since 7.x."""

from __future__ import annotations

import re
import shlex

SILENCE = ("timed out", "No route to host")
"""What ssh says of a host that does not answer at all. A login that is refused says nothing of an open connection."""
END_OF_THE_WAY = "UNKNOWN port 65535"
"""What ssh calls its other end where that is a jump host's forwarding, or another ProxyCommand."""
OFFENDING = re.compile(r"^Offending \S+ key in (.+):\d+", re.MULTILINE)
"""Where ssh has the key that is another one now: not in ~/.ssh where a configuration names another file."""
ACCEPT = "{ssh} -o StrictHostKeyChecking=ask"
"""The configuration may say `yes`, which never asks."""
SIGNS: tuple[tuple[str, str, str], ...] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host key of {host} has changed (reinstalled, or another machine answers)",
        f"if you expected that: ssh-keygen -R {{known_as}}, then {ACCEPT}",
    ),
    ("Host key verification failed", "the host key of {host} is not known", f"check and accept it once: {ACCEPT}"),
    ("Permission denied", "{host} refuses the login of {login}", "install your key: {copy_id}, then {ssh}"),
    (
        "Too many authentication failures",
        "{host} refuses the login: too many keys offered",
        "set identity_file for {node}",
    ),
    ("No route to host", "no route to host {host}", "is it switched on and cabled? {ssh}"),
    ("Connection refused", "{host} refuses connections: sshd is not running", "start sshd on it, then {ssh}"),
    (
        "Could not resolve hostname",
        "the name {host} cannot be resolved",
        "correct `ssh` of node {node}, or use an address",
    ),
    ("timed out", "{host} does not answer", "is it switched on and connected? {ssh}"),
    ("the lab is down", "the lab is down", "start it: python -m lab up"),
    (
        "Can't open user config file",
        "the ssh configuration of the settings does not exist",
        "correct `ssh_config`; the lab's is made by: python -m lab up",
    ),
)
"""Sign in ssh's output, cause, remedy."""


def meaning(
    stderr: str, *, host: str, port: int | None, login: str, ssh: str, node: str, copy_id: str
) -> tuple[str, str] | None:
    """Cause and remedy of a login that failed; None for words that are not known.

    Args:
        stderr: what ssh said.
        host: address or name that was dialled.
        port: the settings' own, None where ssh chooses.
        login: `user@host`.
        ssh: command that logs in.
        node: name of the node.
        copy_id: command that installs the user's key.
    """
    known_as = f"'[{host}]:{port}'" if port not in (None, 22) else host
    if offending := OFFENDING.search(stderr):
        known_as += f" -f {shlex.quote(offending[1])}"
    facts = {"host": host, "known_as": known_as, "login": login, "ssh": ssh, "node": node, "copy_id": copy_id}
    for sign, cause, remedy in SIGNS:
        if sign.lower() in stderr.lower():
            return cause.format(**facts), remedy.format(**facts)
    return None
