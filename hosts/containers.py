"""Containers of a node as the docker client there shows them: state, log, a probe inside, removal."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hosts import ownership
from hosts.faults import Fault
from hosts.ssh import Connection

LOG_LINES = 60
EVER = "1970-01-01T00:00:00Z"
"""For the log of all starts."""


@dataclass(frozen=True)
class State:
    """What `docker inspect` says of a container, with the end of its log."""

    status: str
    """created, running, restarting, exited, paused, dead, or missing."""
    exit_code: int
    restarts: int
    started: str
    """Time of the last start, RFC 3339; it changes with every restart."""
    error: str
    """Docker's own complaint, e.g. that the command is not in the image."""
    log: str
    """End of the log since the last start."""
    policy: str = ""
    """Docker's restart policy; with `no` it does not start again what has ended."""

    @property
    def since(self) -> float:
        """The last start in seconds since the epoch, by the node's clock; 0 where it never started."""
        try:
            return datetime.fromisoformat(self.started).timestamp()
        except ValueError:
            return 0


MISSING = State("missing", 0, 0, "", "", "")

FORMAT = '{{.State.StartedAt}} {{.RestartCount}} {{or .HostConfig.RestartPolicy.Name "no"}} {{json .State}}'
INSPECT = """
state=$(docker inspect --type container --format "$3" "$1") || exit 3
echo "$state"
[ "$2" = 0 ] || docker logs --since "${4:-${state%% *}}" --tail "$2" "$1" 2>&1
"""


def look(connection: Connection, container: str, log_lines: int = LOG_LINES, *, since: str = "") -> State:
    """State and log's end of a container; raises Fault when the node cannot be asked.

    Args:
        connection: to its node.
        container: Docker's id.
        log_lines: how much of the log.
        since: RFC 3339 time that the log begins at, that of the last start by default: what an earlier one died of
            must not count against a recovery.
    """
    done = connection.run("sh", "-c", INSPECT, "sh", container, str(log_lines), FORMAT, since, timeout=30)
    if done.returncode == 3 and "No such container" in done.stderr:
        return MISSING
    first, _, log = done.stdout.partition("\n")
    try:
        started, restarts, policy, state = first.split(" ", 3)
        facts: dict[str, Any] = json.loads(state)
        error = facts.get("Error") or ""
        return State(facts["Status"], facts["ExitCode"], int(restarts), started, error, log, policy)
    except (ValueError, KeyError):
        raise Fault(
            connection.node, f"docker inspect {container} failed", "is Docker running there?", done.stderr or first
        ) from None


def exec_probe(connection: Connection, container: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python script inside a running container; it streams lines and must end when its input closes."""
    return connection.start("docker", "exec", "-i", container, "python3", "-u", "-c", script, *arguments)


ENDED = """
ended() {
  for _ in $(seq 120); do
    said=$(docker "$@" 2>&1 >/dev/null) && return
    said=$(echo "$said" | grep -v 'No such container') || return 0
    if echo "$said" | grep -qv 'already in progress'; then break; fi
    sleep 0.5
  done
  echo "$said" >&2
  return 1
}
"""
"""Stops or removes containers, by docker's own words. Some may be on their way out: the removal that a killed run began
goes on without it."""


def claim(connection: Connection, name: str, stack: str) -> bool:
    """Make a container name free before it is created: what an interrupted run of this stack left goes.

    Pulumi creates only what its state lacks, so a container of ours that exists by then belongs to no state.

    Returns:
        Whether there was one.

    Raises:
        Fault: the name belongs to a container that is not of this stack; nothing is removed.
    """
    owner = f'{{{{index .Config.Labels "{ownership.PREFIX}.stack"}}}}'
    done = connection.run("docker", "inspect", "--type", "container", "--format", owner, name)
    if done.returncode:  # none of that name, the usual case; a silent Docker is found by the creation itself
        return False
    if done.stdout.strip() != stack:
        raise Fault(
            connection.node,
            f"container {name} is not of stack {stack!r}",
            f"remove or rename it yourself: docker rename {name} OTHER",
        )
    done = connection.run("sh", "-c", f'{ENDED}ended rm -f "$1"', "sh", name, timeout=120)
    if done.returncode:
        remedy = f"see what Docker says: {connection.by_hand(f'docker rm -f {name}')}"
        raise Fault(connection.node, f"container {name} of an earlier run cannot be removed", remedy, done.stderr)
    return True


REMOVE = f"""{ENDED}
ours="--filter $1 --filter $2"
ids=$(docker ps -aq $ours) || exit 1
if [ -n "$ids" ]; then
  for kind in serve ray-worker ray-head; do
    some=$(docker ps -q $ours --filter "label=$4.role=$kind") || exit 1
    [ -z "$some" ] || ended stop -t "$3" $some || exit 1
  done
  ended rm -f $ids || exit 1
fi
ids=$(docker volume ls -q $ours) || exit 1
[ -z "$ids" ] || docker volume rm -f $ids >/dev/null || exit 1
"""


def remove_all(connection: Connection, stack: str, grace: int, *, node: str | None = None) -> None:
    """Stop (serve first, the head last) and remove every container and volume of a stack on a node.

    Args:
        connection: to the node.
        stack: whose they are.
        grace: seconds from SIGTERM to SIGKILL.
        node: only what was made under this name of the node: what has since been made under another one stays.

    Raises:
        Fault: the node cannot be reached, or Docker refuses.
    """
    of_stack = ownership.stack_filter(stack)
    of_node = f"label={ownership.PREFIX}.node={node}" if node else of_stack
    arguments = (of_stack, of_node, str(grace), ownership.PREFIX)
    done = connection.run("sh", "-c", REMOVE, "sh", *arguments, timeout=120 + 3 * grace)
    if done.returncode:
        raise Fault(
            connection.node,
            "could not remove all that is ours",
            "correct what Docker says and run destroy again",
            done.stderr,
        )


def others_mounting(connection: Connection, path: str) -> list[str]:
    """Names of the containers, running or not, that have a directory of the node mounted and do not go with it.

    Those that were made under this name of the node go with its Host. Raises Fault if Docker fails.
    """
    shown = f'{{{{.Names}}}} {{{{.Label "{ownership.PREFIX}.node"}}}}'
    done = connection.run("docker", "ps", "-a", "--filter", f"volume={path}", "--format", shown, check=True)
    found = [line.partition(" ") for line in done.stdout.splitlines()]
    return [name for name, _, node in found if node != connection.node]
