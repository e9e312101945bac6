"""Ssh: what OpenSSH's own words mean to the user."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from hosts.faults import Fault
from hosts.ssh import Connection, Hop, Unreached

HEAD = Connection("spark-1", (Hop("spark-1", "10.1.230.180", "aurora"),))
WORKER = Connection("spark-2", (*HEAD.hops, Hop("spark-2", "192.168.200.13", "aurora")))

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Add correct host key in /home/a b/hosts to get rid of this message.
Offending ED25519 key in /home/a b/hosts:3
Host key for 10.1.230.180 has changed and you have requested strict checking.
Host key verification failed.
"""
UNKNOWN_KEY = (
    "No ED25519 host key is known for 10.1.230.180 and you have requested strict checking.\n"
    "Host key verification failed.\n"
)


@pytest.mark.parametrize(
    ("stderr", "cause", "remedy"),
    [
        (CHANGED, "the host key of 10.1.230.180 has changed", "ssh-keygen -R 10.1.230.180 -f '/home/a b/hosts'"),
        (UNKNOWN_KEY, "the host key of 10.1.230.180 is not known", "ssh aurora@10.1.230.180"),
        (
            "aurora@10.1.230.180: Permission denied (publickey,password).",
            "10.1.230.180 refuses the login of aurora@10.1.230.180",
            "ssh-copy-id aurora@10.1.230.180",
        ),
        (
            "Received disconnect from 10.1.230.180 port 22:2: Too many authentication failures",
            "too many keys offered",
            "set identity_file for spark-1",
        ),
        ("ssh: connect to host 10.1.230.180 port 22: No route to host", "no route to host 10.1.230.180", "switched on"),
        ("ssh: connect to host 10.1.230.180 port 22: Connection refused", "refuses connections", "start sshd"),
        ("ssh: connect to host 10.1.230.180 port 22: Connection timed out", "10.1.230.180 does not answer", "switched"),
        ("Connection timed out during banner exchange", "10.1.230.180 does not answer", "switched on"),
        (
            "ssh: Could not resolve hostname 10.1.230.180: Name or service not known",
            "the name 10.1.230.180 cannot be resolved",
            "correct `ssh` of node spark-1",
        ),
        ("something new", "ssh to aurora@10.1.230.180 failed", "try it by hand: ssh aurora@10.1.230.180"),
    ],
)
def test_complaint_of_ssh_has_its_cause_and_remedy(stderr: str, cause: str, remedy: str) -> None:
    fault = HEAD.unreachable(stderr)
    assert fault.node == "spark-1"
    assert cause in fault.cause
    assert remedy in fault.remedy
    assert fault.evidence == stderr


ENDED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535\n"


HUNG = "Connection timed out during banner exchange\nConnection to UNKNOWN port 65535 timed out\n"


@pytest.fixture
def ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An ssh that ends on the way to the worker as `HUNG` tells; the file's content is what it says of the head."""
    said = tmp_path / "head"
    said.touch()
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/bash\n"
        f"case \" $* \" in *' aurora@192.168.200.13 '*) printf %s '{HUNG}' >&2; exit 255;; esac\n"
        f"[ ! -s {said} ] || {{ cat {said} >&2; exit 255; }}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return said


def test_node_that_hangs_behind_a_sound_jump_is_blamed_itself(ssh: Path) -> None:
    assert not ssh.read_text()
    with pytest.raises(Fault) as caught:
        WORKER.run("true")
    assert (caught.value.node, caught.value.cause) == ("spark-2", "192.168.200.13 does not answer")
    assert "ssh -J aurora@10.1.230.180 aurora@192.168.200.13" in caught.value.remedy


def test_jump_that_is_at_fault_is_blamed_in_its_own_words(ssh: Path) -> None:
    ssh.write_text("ssh: connect to host 10.1.230.180 port 22: No route to host\n")
    with pytest.raises(Fault) as caught:
        WORKER.run("true")
    assert caught.value.node == "spark-2"
    assert caught.value.cause == "not reached through spark-1: no route to host 10.1.230.180"
    assert caught.value.remedy == "see to spark-1 first: ssh aurora@10.1.230.180"
    assert caught.value.evidence == ssh.read_text()


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("No route to host", "no route to host 192.168.200.13"),
        ("Connection refused", "192.168.200.13 refuses connections"),
        ("Connection timed out", "192.168.200.13 does not answer"),
    ],
)
def test_jump_that_cannot_connect_further_blames_the_node(why: str, cause: str) -> None:
    words = f"channel 0: open failed: connect failed: {why}\nstdio forwarding failed\n"
    fault = WORKER.unreachable(words + ENDED)
    assert fault.node == "spark-2"
    assert cause in fault.cause


def test_refused_dial_ends_in_a_fault_with_the_words_of_ssh() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = unused.getsockname()[1]
        connection = Connection("spark-1", (Hop("spark-1", "127.0.0.1", "nobody", port),), "/dev/null")
        with pytest.raises(Fault, match=r"127\.0\.0\.1 refuses connections: sshd is not running") as caught:
            connection.run("true")
    assert f"port {port}: Connection refused" in caught.value.evidence


def test_refused_dial_of_the_jump_blames_the_way_not_the_node() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        jump = Hop("spark-1", "127.0.0.1", "nobody", unused.getsockname()[1])
        connection = Connection("spark-2", (jump, Hop("spark-2", "192.0.2.1", "nobody")), "/dev/null")
        with pytest.raises(Fault) as caught:
            connection.run("true")
    assert caught.value.node == "spark-2"
    assert caught.value.cause == "not reached through spark-1: 127.0.0.1 refuses connections: sshd is not running"
    assert "Connection refused" in caught.value.evidence, "the jump's own words"


def test_words_of_a_proxy_command_are_the_cause_also_on_the_way_to_the_head(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  ProxyCommand sh -c 'echo the lab is down >&2; exit 1'\n")
    with pytest.raises(Fault) as caught:
        Connection("spark-1", (Hop("spark-1", "10.1.230.180", "aurora"),), str(config)).run("true")
    assert caught.value.cause == "the lab is down"


def test_absent_configuration_file_is_named() -> None:
    connection = Connection("spark-1", (Hop("spark-1", "127.0.0.1"),), "/nowhere/ssh_config")
    with pytest.raises(Fault, match="the ssh configuration of the settings does not exist"):
        connection.run("true")


def test_command_that_does_not_end_is_bounded() -> None:
    with pytest.raises(Fault, match="`sleep` did not answer within 0 s"):
        Connection("spark-1", ()).run("sleep", "600", timeout=0.05)


def test_failed_command_is_a_fault_when_asked_for() -> None:
    local = Connection("spark-1", ())
    with pytest.raises(Fault, match="failed with exit code 7") as caught:
        local.run("sh", "-c", "echo why >&2; exit 7", check=True)
    assert caught.value.evidence == "why\n"
    assert local.run("sh", "-c", "exit 7").returncode == 7


def test_exit_code_of_ssh_means_nothing_on_the_local_machine() -> None:
    assert Connection("spark-1", ()).run("sh", "-c", "exit 255").returncode == 255


def test_machine_without_ssh_client_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fault, match="no ssh on this machine"):
        HEAD.run("true")


def test_program_missing_on_the_local_machine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fault, match="docker"):
        Connection("spark-1", ()).run("docker", "ps")


def test_remedy_for_a_changed_key_works_on_another_port(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    known.write_text("[10.0.0.1]:2222 " + key.with_suffix(".pub").read_text())
    fault = Connection("n", (Hop("n", "10.0.0.1", "u", 2222),)).unreachable(CHANGED)
    command = fault.remedy.partition(": ")[2].partition(", then")[0]
    subprocess.run([*shlex.split(command), "-f", known], check=False, capture_output=True)
    assert not known.read_text().strip()


def test_streaming_command_has_both_outputs_and_ends_with_its_input() -> None:
    process = Connection("spark-1", ()).start("sh", "-c", "echo out; echo err >&2; cat >/dev/null; echo end")
    with process:
        assert process.stdin
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["out\n", "err\n"]
        process.stdin.close()
        assert process.stdout.read() == "end\n"
    assert process.returncode == 0


SILENT = "ssh: connect to host 10.1.230.180 port 22: Connection timed out\n"
OPEN = """\
#!/bin/bash
line="$*"
if [[ $line == *ControlPath=* ]]; then sleep @SECONDS@; echo late; exit; fi
echo "${line##*aurora@}" >> @HOME@/logins
[ -s @HOME@/said ] || exit 0
cat @HOME@/said >&2
exit 255
"""
"""An ssh whose open connection answers after some seconds, and whose new logins fail with the words of a file.

A child of it keeps the pipes open when it is killed, as the process does that holds the open connection.
"""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home with an open connection to each node; what the stand-in answers is the tests' to say."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "said").touch()
    for way in (HEAD, WORKER):
        _ = way.options  # makes the directory
        Path(way._control_path(way.hops).replace("%C", "0" * 40)).expanduser().touch()
    return tmp_path


def answers_after(home: Path, seconds: float) -> None:
    program = home / "ssh"
    program.write_text(OPEN.replace("@HOME@", str(home)).replace("@SECONDS@", str(seconds)))
    program.chmod(0o755)


def test_open_connection_to_a_host_that_went_silent_is_not_waited_for(opened: Path) -> None:
    answers_after(opened, 20)
    (opened / "said").write_text(SILENT)
    with pytest.raises(Unreached) as caught:
        HEAD.run("true", timeout=15)
    assert caught.value.cause == "10.1.230.180 does not answer"
    assert caught.value.evidence == SILENT


def test_silent_jump_is_blamed_for_what_is_behind_it(opened: Path) -> None:
    answers_after(opened, 20)
    (opened / "said").write_text(SILENT)
    with pytest.raises(Unreached) as caught:
        WORKER.run("true", timeout=15)
    assert (caught.value.node, caught.value.cause) == (
        "spark-2",
        "not reached through spark-1: 10.1.230.180 does not answer",
    )


@pytest.mark.parametrize("said", ["", "aurora@10.1.230.180: Permission denied (publickey).\n"])
def test_slow_answer_is_waited_for_where_the_host_is_there(opened: Path, said: str) -> None:
    answers_after(opened, 2)
    (opened / "said").write_text(said)
    assert HEAD.run("true").stdout == "late\n"
    assert (opened / "logins").read_text().split() == ["10.1.230.180", "--", "true"], "compared with one new login"


def test_quick_answer_over_an_open_connection_costs_no_login(opened: Path) -> None:
    answers_after(opened, 0)
    assert HEAD.run("true").stdout == "late\n"
    assert not (opened / "logins").exists()
