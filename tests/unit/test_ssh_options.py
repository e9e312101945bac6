"""Ssh: what OpenSSH itself makes of the options, and what reaches Pulumi's Docker provider and state."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hosts.ssh import Connection, Hop
from tests.samples import cluster

JUMP = Hop("spark-1", "10.1.230.180", "aurora", 2222)
TARGET = Hop("spark-2", "192.168.200.13", "aurora", None, "/keys/spark")


def understood(options: list[str], destination: str, *more: str) -> dict[str, str]:
    """The configuration that OpenSSH derives from options, by lower-case keyword (`ssh -G`: it connects nowhere)."""
    command = ["ssh", "-F", "/dev/null", "-G", *options, *more, destination]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def forward(command: str) -> tuple[list[str], dict[str, str]]:
    """A ProxyCommand as the shell splits it, and what OpenSSH makes of it."""
    argv = shlex.split(command)
    assert argv[:2] == ["ssh", "-T"]
    return argv, understood(argv[1:-1], argv[-1])


def expand(command: str, host: str, port: int) -> str:
    """What ssh does with the tokens of a ProxyCommand."""
    return command.replace("%%", "\0").replace("%h", host).replace("%p", str(port)).replace("\0", "%")


@pytest.fixture
def chain() -> list[Hop]:
    return [Hop("a", "10.0.0.1", "u", 2222), Hop("b", "10.0.0.2", "v"), Hop("c", "fd00::3", "w", 23)]


def test_options_without_jump() -> None:
    found = understood(Connection("spark-2", (TARGET,), connect_timeout=3).options, TARGET.destination)
    assert (found["user"], found["hostname"], found["port"]) == ("aurora", "192.168.200.13", "22")
    assert (found["batchmode"], found["connecttimeout"], found["identityfile"]) == ("yes", "3", "/keys/spark")
    assert (found["controlmaster"], found["controlpersist"]) == ("auto", "60")
    assert (found["serveraliveinterval"], found["serveralivecountmax"]) == ("5", "3")
    assert "proxycommand" not in found


def test_identity_file_may_have_blanks_on_the_node_and_on_its_jump() -> None:
    hops = (Hop("a", "10.0.0.1", identity_file="~/my keys/a"), Hop("b", "10.0.0.2", identity_file="/my keys/b"))
    found = understood(Connection("b", hops).options, "10.0.0.2")
    _, jump = forward(expand(found["proxycommand"], "10.0.0.2", 22))
    assert (jump["identityfile"], found["identityfile"]) == ("~/my keys/a", "/my keys/b")


def test_host_keys_are_checked_as_the_user_has_it() -> None:
    options = Connection("spark-2", (JUMP, TARGET)).options
    assert not [part for part in options if "StrictHostKeyChecking" in part or "UserKnownHostsFile" in part]


def test_checkouts_with_a_configuration_of_their_own_share_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their relative paths are alike, what they know of hosts is not."""
    found = set()
    for checkout in ("one", "other"):
        (tmp_path / checkout).mkdir()
        monkeypatch.chdir(tmp_path / checkout)
        Path("ssh_config").touch()
        for path in ("ssh_config", str(Path("ssh_config").absolute())):
            connection = Connection("n", (Hop("n", "10.0.0.1", "u"),), path)
            found.add(next(one for one in connection.options if one.startswith("ControlPath=")))
    assert len(found) == 2


def test_control_path_is_short_and_one_per_destination() -> None:
    paths = {
        understood(Connection("n", (hop,)).options, hop.destination)["controlpath"]
        for hop in (JUMP, TARGET, Hop("x", "10.1.230.180", "root"))
    }
    assert len(paths) == 3
    assert all(len(path) <= 104 for path in paths)


def test_jump_keeps_its_own_options_port_and_multiplexing() -> None:
    found = understood(Connection("spark-2", (JUMP, TARGET)).options, TARGET.destination)
    argv, jump = forward(expand(found["proxycommand"], "192.168.200.13", 22))
    assert argv[-1] == "aurora@10.1.230.180"
    assert argv[argv.index("-W") + 1] == "[192.168.200.13]:22"
    assert (jump["port"], jump["batchmode"], jump["controlmaster"]) == ("2222", "yes", "auto")
    direct = understood([*Connection("spark-1", (JUMP,)).options, "-p", "2222"], JUMP.destination)
    assert jump["controlpath"] == direct["controlpath"], "both must share one connection"


def test_identity_of_the_node_is_not_offered_to_the_jump() -> None:
    found = understood(Connection("spark-2", (JUMP, TARGET)).options, TARGET.destination)
    assert "/keys/spark" not in found["proxycommand"]


def test_ipv6_target_through_a_jump() -> None:
    target = Hop("spark-2", "fd00::13", "aurora", 2200)
    command = Connection("spark-2", (JUMP, target)).command("true")
    found = understood(command[2 : command.index("--") - 1], command[command.index("--") - 1])
    assert (found["hostname"], found["port"]) == ("fd00::13", "2200")
    argv, _ = forward(expand(found["proxycommand"], "fd00::13", 2200))
    assert argv[argv.index("-W") + 1] == "[fd00::13]:2200"


def test_first_jump_of_three_hops_is_reached_with_its_own_options(chain: list[Hop]) -> None:
    found = understood(Connection("c", tuple(chain)).options, "w@fd00::3")
    argv, middle = forward(expand(found["proxycommand"], "fd00::3", 23))
    assert argv[-1] == "v@10.0.0.2"
    first, outer = forward(expand(middle["proxycommand"], "10.0.0.2", 22))
    assert first[-1] == "u@10.0.0.1"
    assert outer["port"] == "2222"
    assert (
        outer["controlpath"] == understood(Connection("a", (chain[0],)).options, "u@10.0.0.1", "-p2222")["controlpath"]
    )


def test_first_jump_of_three_hops_forwards_to_the_second(chain: list[Hop]) -> None:
    found = understood(Connection("c", tuple(chain)).options, "w@fd00::3")
    _, middle = forward(expand(found["proxycommand"], "fd00::3", 23))
    first, _ = forward(expand(middle["proxycommand"], "10.0.0.2", 22))
    assert first[first.index("-W") + 1] == "[10.0.0.2]:22"


def test_configuration_file_serves_every_hop() -> None:
    command = Connection("spark-2", (JUMP, TARGET), "/etc/my ssh/config").command("true")
    assert command[command.index("-F") + 1] == "/etc/my ssh/config"
    proxy = next(part for part in command if part.startswith("ProxyCommand="))
    assert "-F '/etc/my ssh/config'" in proxy


def test_configuration_file_in_the_home_directory_is_found_by_ssh_and_by_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only a shell expands ~, and only where it is not quoted."""
    monkeypatch.setenv("HOME", str(tmp_path))
    connection = Connection("spark-1", (JUMP,), "~/my config")
    for command in (connection.command("true"), shlex.split(connection.by_hand())):
        assert command[command.index("-F") + 1] == f"{tmp_path}/my config"
    assert connection.dump()["config_file"] == "~/my config"


def test_command_is_quoted_for_the_remote_shell() -> None:
    command = Connection("spark-1", (JUMP,)).command("sh", "-c", 'echo "$1"', "sh", "a b;c")
    assert command[-3:-1] == ["aurora@10.1.230.180", "--"]
    assert shlex.split(command[-1]) == ["sh", "-c", 'echo "$1"', "sh", "a b;c"]


def test_local_node_runs_commands_as_they_are() -> None:
    local = Connection("spark-1", ())
    assert local.command("echo", "a b") == ["echo", "a b"]
    assert (local.options, local.docker_host) == ([], "unix:///var/run/docker.sock")
    assert local.by_hand() == "on this machine"
    assert local.run("sh", "-c", 'cat; echo "$1" >&2; exit 3', "sh", "x y", stdin="in").stdout == "in"


@pytest.mark.parametrize(
    ("hop", "host"),
    [
        (Hop("n", "10.0.0.1", "aurora"), "ssh://aurora@10.0.0.1"),
        (Hop("n", "10.0.0.1", "aurora", 2222), "ssh://aurora@10.0.0.1:2222"),
        (Hop("n", "fd00::1", "aurora", 2222), "ssh://aurora@[fd00::1]:2222"),
    ],
)
def test_docker_host(hop: Hop, host: str) -> None:
    assert Connection("n", (JUMP, hop)).docker_host == host


def test_docker_leaves_the_user_of_an_alias_to_ssh() -> None:
    assert Connection("n", (Hop("n", "spark-one"),)).docker_host == "ssh://spark-one"


@pytest.mark.parametrize(
    ("hops", "config", "command"),
    [
        ((JUMP,), None, "ssh -p 2222 aurora@10.1.230.180"),
        ((JUMP, TARGET), None, "ssh -J aurora@10.1.230.180:2222 -i /keys/spark aurora@192.168.200.13"),
        ((Hop("n", "alias"),), "my config", "ssh -F 'my config' alias"),
        (
            (Hop("a", "fd00::1", "u", 22), JUMP, TARGET),
            None,
            "ssh -J 'u@[fd00::1]:22,aurora@10.1.230.180:2222' -i /keys/spark aurora@192.168.200.13",
        ),
    ],
)
def test_command_by_hand_can_be_pasted(hops: tuple[Hop, ...], config: str | None, command: str) -> None:
    text = Connection("n", hops, config).by_hand()
    assert text == command
    argv = shlex.split(text)
    options = [part for part in argv[1:-1] if part not in ("-F", "my config")]
    assert understood(options, argv[-1])["hostname"] == hops[-1].host


def test_pasted_command_is_expanded_by_the_shell_of_the_node_and_has_a_terminal_for_sudo() -> None:
    command = 'echo "$USER ALL=(root)" | sudo tee /x'
    text = Connection("n", (JUMP, TARGET)).by_hand(command)
    *words, last = shlex.split(text)
    assert (words[:2], words[-1], last) == (["ssh", "-t"], TARGET.destination, command)
    assert understood(words[1:-1], words[-1])["requesttty"] == "true"
    assert Connection("n", ()).by_hand(command) == command


@pytest.mark.parametrize("hops", [(), (JUMP,), (JUMP, TARGET)])
def test_dump_and_load_round_trip_also_with_floats(hops: tuple[Hop, ...]) -> None:
    connection = Connection("spark-2", hops, "config", 2.5)
    assert Connection.load(connection.dump()) == connection

    def as_pulumi(value: Any) -> Any:
        """Numbers come back from Pulumi's state as floats."""
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    stored = json.loads(json.dumps(connection.dump()), parse_int=lambda text: as_pulumi(int(text)))
    assert Connection.load(stored) == connection


def test_settings_become_a_connection_with_all_hops() -> None:
    found = cluster(ssh_config="config", deadlines={"connect": 2})
    connection = Connection.of(found, found.node("spark-2"))
    assert [hop.destination for hop in connection.hops] == ["aurora@10.1.230.180", "aurora@192.168.200.13"]
    assert (connection.node, connection.config_file, connection.connect_timeout) == ("spark-2", "config", 2)


def test_connect_deadline_below_half_a_second_is_still_one() -> None:
    found = understood(Connection("n", (JUMP,), connect_timeout=0.4).options, JUMP.destination)
    assert found["connecttimeout"] == "1"


def test_given_identity_is_the_only_one_offered() -> None:
    assert understood(Connection("n", (TARGET,)).options, TARGET.destination)["identitiesonly"] == "yes"


def test_key_is_installed_through_the_jump_host() -> None:
    fault = Connection("spark-2", (JUMP, TARGET), "cfg").unreachable("u@h: Permission denied (publickey).")
    way = "-o ProxyJump=aurora@10.1.230.180:2222 -i /keys/spark aurora@192.168.200.13"
    assert f"ssh-copy-id -F cfg {way}," in fault.remedy
