"""The one transport: the system's OpenSSH, for commands, probes, copies and Docker alike.

Host keys are checked as the user's ssh does, nothing ever asks (BatchMode), and connections are multiplexed, so that
a run holds one connection per node however many commands it sends (sshd's MaxStartups is 10, its MaxSessions 10).
"""

from __future__ import annotations

import hashlib
import queue
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from hosts import ssh_words
from hosts.faults import Fault
from settings import Cluster, Node

ByHand = Callable[[str], str]
"""Makes a shell's command on a node one that a user can paste: :meth:`Connection.by_hand`."""
CONTROL_DIRECTORY = "~/.cache/dgx-spark"
"""Directory of the control sockets. Short: a socket's path has at most 104 bytes, of which its name takes 49."""

UNREACHABLE = 255
"""Exit code of ssh itself, as opposed to the remote command's."""

DOUBT_SECONDS = 1
"""After this time without an answer, an open connection is compared with a new login: a survey takes a third of it."""
POLL_SECONDS = 0.25
"""Within this time the outcome of that is noticed."""
DOUBTS = threading.BoundedSemaphore(4)
"""So many comparisons at once: each may log in at a jump host twice, and sshd refuses more than ten at a time."""


class Unreached(Fault):
    """No way leads to the node, nor to what is behind it."""


@dataclass(frozen=True)
class Hop:
    """One ssh login on the way to a node."""

    node: str
    host: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None

    @property
    def destination(self) -> str:
        """`user@host` as ssh takes it."""
        return f"{self.user}@{self.host}" if self.user else self.host


@dataclass(frozen=True)
class Connection:
    """How to reach one node: the hops, the last of which is the node; no hops for the local machine."""

    node: str
    hops: tuple[Hop, ...]
    config_file: str | None = None
    connect_timeout: float = 4
    transfer_timeout: float = 21600
    """For what brings an image or a model to the node."""

    @classmethod
    def of(cls, cluster: Cluster, node: Node) -> Self:
        """The connection that the settings describe."""
        ways = () if node.local else tuple((via, cluster.of(via)) for via in cluster.route(node))
        hops = tuple(
            Hop(via.name, via.host, via.user, via.port or own.ssh_port, own.identity_file) for via, own in ways
        )
        return cls(node.name, hops, cluster.ssh_config, cluster.deadlines.connect, cluster.deadlines.transfer)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """The connection that :meth:`dump` wrote; Pulumi's state has numbers as floats."""
        hops = tuple(Hop(**{**hop, "port": int(hop["port"]) if hop.get("port") else None}) for hop in data["hops"])
        return cls(**{**data, "hops": hops})

    def dump(self) -> dict[str, Any]:
        """The connection as plain data for Pulumi's state."""
        return {**asdict(self), "hops": [asdict(hop) for hop in self.hops]}

    @property
    def docker_host(self) -> str:
        """Address of the node's Docker engine for pulumi_docker.Provider."""
        if not self.hops:
            return "unix:///var/run/docker.sock"
        return f"ssh://{_place(self.hops[-1])}"

    @property
    def options(self) -> list[str]:
        """Options of ssh without destination: for pulumi_docker.Provider.ssh_opts and for commands."""
        return self._options(self.hops) if self.hops else []

    def _options(self, hops: Sequence[Hop], *, multiplexed: bool = True) -> list[str]:
        Path(CONTROL_DIRECTORY).expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
        named = {
            "BatchMode": "yes",
            "ConnectTimeout": str(max(1, round(self.connect_timeout))),  # 0 would be no limit at all
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
        }
        if multiplexed:
            named |= {"ControlMaster": "auto", "ControlPath": self._control_path(hops), "ControlPersist": "60"}
        if hops[-1].identity_file:
            # Without IdentitiesOnly the agent's keys come first, and sshd counts each as a failure.
            named |= {"IdentityFile": f'"{hops[-1].identity_file}"', "IdentitiesOnly": "yes"}
        options = self._configuration
        for name, value in named.items():
            options += ["-o", f"{name}={value}"]
        if len(hops) > 1:
            # Not ProxyJump: it would drop these options, and with them multiplexing, on the jump's own connection.
            *via, destination = (part.replace("%", "%%") for part in self._ssh(hops[:-1], multiplexed=multiplexed))
            options += ["-o", f"ProxyCommand={shlex.join([*via, '-W', '[%h]:%p', destination])}"]
        return options

    @property
    def _configuration(self) -> list[str]:
        """Option of the configuration file; ssh leaves `~` to the shell."""
        return ["-F", str(Path(self.config_file).expanduser())] if self.config_file else []

    def _control_path(self, hops: Sequence[Hop]) -> str:
        """One socket for what is configured alike: a login proven under one configuration must not serve another.

        A relative path is another file in another checkout.
        """
        configured = [str(Path(one).absolute()) for one in self._configuration[1:]]
        trust = hashlib.sha256(repr((configured, hops)).encode()).hexdigest()[:8]
        return f"{CONTROL_DIRECTORY}/{trust}-%C"

    def _ssh(self, hops: Sequence[Hop], *, multiplexed: bool = True) -> list[str]:
        port = ["-p", str(hops[-1].port)] if hops[-1].port else []
        return ["ssh", "-T", *self._options(hops, multiplexed=multiplexed), *port, hops[-1].destination]

    def command(self, *argv: str) -> list[str]:
        """The local argument list that runs `argv` on the node."""
        return [*self._ssh(self.hops), "--", shlex.join(argv)] if self.hops else list(argv)

    @property
    def is_open(self) -> bool:
        """Whether commands find a connection to ride on, by its control socket: ssh removes that at the end."""
        socket = Path(self._control_path(self.hops).replace("%C", "?" * 40)).expanduser()
        return any(socket.parent.glob(socket.name))

    def run(
        self, *argv: str, stdin: str | None = None, timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node.

        Raises:
            Fault: the node cannot be reached, did not answer within `timeout` seconds, or, with `check`, the command
                failed.
        """
        try:
            done = self._done(argv, stdin, timeout)
        except subprocess.TimeoutExpired as slow:
            raise Fault(
                self.node,
                f"`{argv[0]}` did not answer within {timeout:.0f} s",
                f"look at the node: {self.by_hand()}",
                _text(slow.stderr),
            ) from None
        except FileNotFoundError as missing:
            raise self._not_installed(str(missing.filename)) from None
        if done.returncode == UNREACHABLE and self.hops:
            raise self.failed(done.stderr)
        if check and done.returncode:
            raise Fault(
                self.node,
                f"`{shlex.join(argv)[:120]}` failed with exit code {done.returncode}",
                f"look at the node: {self.by_hand()}",
                done.stderr or done.stdout,
            )
        return done

    def _done(self, argv: Sequence[str], stdin: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command. Over an open connection it would wait 15 s for a host that went silent: that is doubted."""
        open_already = bool(self.hops) and self.is_open
        silent: list[Unreached] = []
        with subprocess.Popen(
            self.command(*argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:

            def doubt() -> None:
                with DOUBTS:
                    if process.poll() is None and (fault := self._silence()):
                        silent.append(fault)

            doubts = threading.Timer(DOUBT_SECONDS, doubt)
            doubts.daemon = True
            if open_already:
                doubts.start()
            end = time.monotonic() + timeout
            try:
                while True:
                    try:
                        stdout, stderr = process.communicate(stdin, min(POLL_SECONDS, timeout))
                        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
                    except subprocess.TimeoutExpired:
                        stdin = None  # is being sent
                        # Not by an end of the command: its open connection holds the other ends of the pipes.
                        if silent:
                            raise silent[0] from None
                        if time.monotonic() > end:
                            raise
            finally:
                doubts.cancel()
                process.kill()

    def _silence(self) -> Unreached | None:
        """Log in anew to each host of the way, all at once: the first one that does not answer, if any."""
        ways = [replace(self, node=hop.node, hops=self.hops[:place]) for place, hop in enumerate(self.hops, start=1)]
        with ThreadPoolExecutor(len(ways)) as pool:
            words = list(pool.map(Connection._words_of_the_way, ways))
        fault = None
        for way, said in zip(ways, words, strict=True):
            if fault:
                fault = way.behind(fault)
            elif any(sign in said for sign in ssh_words.SILENCE):
                fault = way.unreachable(said)
        return fault

    def _not_installed(self, program: str) -> Fault:
        return Fault(self.node, f"no {program} on this machine", f"install {program} and run again")

    @property
    def _jump(self) -> Connection:
        """The way to the last jump host."""
        return replace(self, node=self.hops[-2].node, hops=self.hops[:-1])

    def behind(self, fault: Fault) -> Unreached:
        """This node is not reached, as its jump host has that fault."""
        cause = f"not reached through {self._jump.node}: {fault.cause}"
        return Unreached(self.node, cause, f"see to {self._jump.node} first: {self._jump.by_hand()}", fault.evidence)

    def failed(self, stderr: str) -> Unreached:
        """Why ssh ended with :data:`UNREACHABLE`. What lies before the node, its words do not tell of: ask that."""
        if ssh_words.END_OF_THE_WAY in stderr:
            if len(self.hops) > 1:
                try:
                    self._jump.run("true", timeout=2 * self.connect_timeout)
                except Fault as fault:
                    return self.behind(fault)
            if "timed out" not in stderr:
                stderr += self._words_of_the_way()
        return self.unreachable(stderr)

    def _words_of_the_way(self) -> str:
        """What ssh, a jump host or ProxyCommand say of a new login that fails; ssh drops these with ControlPersist."""
        plain = [*self._ssh(self.hops, multiplexed=False), "--", "true"]
        bound = 3 * self.connect_timeout
        try:
            done = subprocess.run(
                plain, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=bound, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as slow:
            return f"{_text(slow.stderr)}the login timed out after {bound:.0f} s\n"
        return done.stderr if done.returncode == UNREACHABLE else ""

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command on the node that streams lines; it should end by itself when its input closes."""
        command = self.command(*argv)
        if shutil.which(command[0]) is None:
            raise self._not_installed(command[0])
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C is for the one who waits: it closes the input in good order.
            start_new_session=True,
        )

    def by_hand(self, command: str = "") -> str:
        """What a user can paste to log in, or to run a shell's command on the node.

        The node's own shell expands the command, and sudo can ask there for a password (-t).
        """
        if not self.hops:
            return command or "on this machine"
        if not command:
            return self._typed("ssh", "-J", "{}")
        return f"{self._typed('ssh', '-J', '{}', '-t')} {shlex.quote(command)}"

    def _copy_id(self) -> str:
        """A command that installs the user's key; ssh-copy-id has no -J."""
        return self._typed("ssh-copy-id", "-o", "ProxyJump={}")

    def _typed(self, program: str, jump_option: str, jump_value: str, *options: str) -> str:
        """A command line of ssh or its like to the node; the jump hosts stand in `jump_value` for {}."""
        last = self.hops[-1]
        parts = [program, *options]
        parts += self._configuration
        if len(self.hops) > 1:
            parts += [jump_option, jump_value.format(",".join(_place(hop) for hop in self.hops[:-1]))]
        parts += ["-i", last.identity_file] if last.identity_file else []
        parts += ["-p", str(last.port)] if last.port else []
        return shlex.join([*parts, last.destination])

    def unreachable(self, stderr: str) -> Unreached:
        """What ssh's complaint means."""
        last = self.hops[-1]
        ssh = self.by_hand()
        known = ssh_words.meaning(
            stderr,
            host=last.host,
            port=last.port,
            login=last.destination,
            ssh=ssh,
            node=self.node,
            copy_id=self._copy_id(),
        )
        cause, remedy = known or (f"ssh to {last.destination} failed", f"try it by hand: {ssh}")
        return Unreached(self.node, cause, remedy, stderr)


def lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The lines of a started command as they come, then None; a queue can be waited on with a bound, a pipe cannot."""
    found: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        assert process.stdout  # noqa: S101 - opened as a pipe
        for line in process.stdout:
            found.put(line)
        found.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return found


def _place(hop: Hop) -> str:
    """`user@host:port` as ssh's -J and an ssh:// address have it, IPv6 in brackets."""
    host = f"[{hop.host}]" if ":" in hop.host else hop.host
    return (f"{hop.user}@" if hop.user else "") + host + (f":{hop.port}" if hop.port else "")


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
