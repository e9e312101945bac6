"""Host preparation: what is stale by settings and survey, and the script that stops it and puts it back."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.page_cache import drop_on
from components.preparation import SCRIPT
from hosts.faults import Fault
from hosts.ssh import Connection
from hosts.stale import Stale
from settings import Overridable
from tests.samples import IMAGE_ID, cluster, container, survey

UNIT = {"runs": True, "enabled": "enabled"}
ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/sh
name=${0##*/}
echo "$name $*" >> @HOME@/calls
case "$name $*" in
  "sudo -n "*) shift; exec "$@" ;;
  *"@HANGS@"*) exec sleep 60 ;;
  *"@REFUSED@"*) echo "Operation refused, unit may be requested by dependency only." >&2; exit 4 ;;
  *"show"*gone.service) echo not-found ;;
  *"show"*) echo loaded ;;
  "docker ps"*) printf 'aaa\\nbbb\\nleaving\\n' ;;
  "docker rm -f leaving") echo "Error response from daemon: removal of leaving is already in progress" >&2; exit 1 ;;
esac
"""


class Node:
    """This machine with a systemctl, docker and sudo that only tell what they were asked."""

    def __init__(self, home: Path, refused: str = "NOTHING", hangs: str = "NOTHING") -> None:
        self.home = home
        self.unit_seconds = 90 if hangs == "NOTHING" else 0
        (home / "bin").mkdir()
        for name in ("systemctl", "docker", "sudo", "sysctl", "sync"):
            program = home / "bin" / name
            text = PROGRAM.replace("@HOME@", str(home)).replace("@REFUSED@", refused)
            program.write_text(text.replace("@HANGS@", hangs))
            program.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home)}
        self.kept = home / ".dgx-spark-cluster/test.json"

    def run(
        self, verb: str, *records: object, root: bool = True, whose: str = "test/spark-2"
    ) -> subprocess.CompletedProcess[str]:
        """Run the script as preparation does."""
        script = (ROOT / SCRIPT).read_text().replace("os.geteuid() == 0", str(root))
        script = script.replace("UNIT_SECONDS = 90", f"UNIT_SECONDS = {self.unit_seconds}")
        words = ["2"] if verb == "stop" else []  # seconds
        encoded = [
            base64.b64encode((record if isinstance(record, str) else json.dumps(record)).encode()).decode()
            for record in records
        ]
        return subprocess.run(
            [sys.executable, "-", whose, verb, *words, *encoded],
            input=script, capture_output=True, text=True, env=self.environment, check=False,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        file = self.home / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def record(units: dict[str, Any] | None = None, **containers: str) -> dict[str, Any]:
    return {
        "units": units or {},
        "containers": {name: {"id": id_, "image": "vllm:1"} for name, id_ in containers.items()},
    }


def test_stale_is_what_is_named_and_found() -> None:
    facts = survey(
        1,
        units=[{"name": "vllm-proxy.service", "active": "inactive", "enabled": "enabled"}],
        docker={"containers": [container("reranker", "a", stack=None, state="exited"), container("x", "b")]},
    )
    found = Stale.of(cluster(), facts)
    assert found
    assert str(found) == (
        "stops and disables unit vllm-proxy.service (inactive, enabled), removes container reranker (exited)"
    )
    assert json.loads(found.dump()) == {
        "units": {"vllm-proxy.service": {"runs": False, "enabled": "enabled"}},
        "containers": {"reranker": {"id": "a" * 64, "image": IMAGE_ID}},
    }
    assert not Stale.of(
        Overridable(stale_containers=()), survey(1, docker={"containers": [container("reranker", "a")]})
    )


def test_units_are_stopped_before_the_containers_that_they_may_have_started(node: Node) -> None:
    found = record(
        {
            "a.service": UNIT,
            "b.service": {"runs": True, "enabled": "static"},
            "c.service": {"runs": False, "enabled": "enabled-runtime"},
        },
        vllm_node="aaa",
        reranker="removed-meanwhile",
    )
    done = node.run("stop", found)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.calls == [
        "systemctl disable --now -- a.service",
        "systemctl stop -- b.service",
        "systemctl disable --now --runtime -- c.service",
        "docker ps -aq --no-trunc",
        "docker stop -t 2 aaa",
        "docker rm -f aaa",
    ]
    assert "removing container vllm_node of image vllm:1" in done.stdout


def test_container_that_a_killed_run_still_removes_is_no_error(node: Node) -> None:
    done = node.run("stop", record(vllm_node="leaving", reranker="bbb"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [call for call in node.calls if " rm " in call] == ["docker rm -f leaving", "docker rm -f bbb"]


def test_user_that_is_not_root_manages_units_by_sudo_and_containers_without(node: Node) -> None:
    assert node.run("stop", record({"a.service": UNIT}, vllm_node="aaa"), root=False).returncode == 0
    assert node.calls == [
        "sudo -n systemctl disable --now -- a.service",
        "systemctl disable --now -- a.service",
        "docker ps -aq --no-trunc",
        "docker stop -t 2 aaa",
        "docker rm -f aaa",
    ]


def test_nothing_found_nothing_done(node: Node) -> None:
    assert node.run("stop", record()).returncode == 0
    assert node.calls == []


def test_refused_stop_is_told_as_a_fault_is(tmp_path: Path) -> None:
    node = Node(tmp_path, refused="b.service")
    done = node.run("stop", record({"a.service": UNIT, "b.service": UNIT}, vllm_node="aaa"))
    assert done.returncode == 1
    assert done.stderr == (
        "spark-2: Operation refused, unit may be requested by dependency only.\n"
        "  next: correct it on the node and run pulumi up again: it goes on from here\n"
    )
    assert not [call for call in node.calls if call.startswith("docker")]


def test_unit_that_does_not_stop_is_told_with_what_to_do(tmp_path: Path) -> None:
    node = Node(tmp_path, hangs="systemctl stop -- b.service")
    done = node.run("stop", record({"b.service": {"runs": True, "enabled": "static"}}, vllm_node="aaa"))
    assert done.returncode == 1
    assert "spark-2: unit b.service does not stop: `" in done.stderr
    assert "systemctl stop -- b.service` did not end within 2 s\n  next: " in done.stderr
    assert "systemctl kill -s KILL b.service" in done.stderr
    assert "`deadlines.stop`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [call for call in node.calls if call.startswith("docker")]


def test_record_keeps_what_was_seen_first(node: Node) -> None:
    first = record({"a.service": UNIT}, vllm_node="aaa")
    second = record({"a.service": {"runs": False, "enabled": "disabled"}, "b.service": UNIT}, vllm_node="bbb")
    assert json.loads(node.run("remember", first).stdout) == first
    both = record({"a.service": UNIT, "b.service": UNIT}, vllm_node="aaa")
    assert json.loads(node.run("remember", second, first).stdout) == both
    assert json.loads(node.kept.read_text()) == {"node": "spark-2", **both}
    assert node.calls == []


def test_state_knows_what_the_node_lost(node: Node) -> None:
    first = record({"a.service": UNIT}, vllm_node="aaa")
    second = record({"a.service": {"runs": False, "enabled": "disabled"}})
    assert json.loads(node.run("remember", second, first).stdout) == first


def test_clean_node_keeps_no_record(node: Node) -> None:
    assert node.run("remember", record()).returncode == 0
    assert not node.kept.parent.exists()


def test_renamed_node_puts_nothing_back_until_it_leaves_under_its_new_name(node: Node) -> None:
    """Pulumi creates what has the new name, then deletes what had the old one."""
    before = record({"a.service": UNIT}, vllm_node="aaa")
    assert node.run("remember", before).returncode == 0
    taken = node.run("remember", record(), whose="test/spark-b")
    assert json.loads(taken.stdout) == before
    old = node.run("restore", before)
    assert (old.returncode, node.calls) == (0, [])
    assert "the node is spark-b now" in old.stdout
    assert node.run("restore", taken.stdout, whose="test/spark-b").returncode == 0
    assert node.calls[-2:] == ["systemctl enable -- a.service", "systemctl start --no-block -- a.service"]
    assert not node.kept.parent.exists()


def test_record_of_another_stack_is_none_of_ours(node: Node) -> None:
    before = record({"a.service": UNIT})
    node.run("remember", before)
    assert json.loads(node.run("remember", record(), whose="other/spark-b").stdout) == record()
    assert node.run("restore", before).returncode == 0
    assert "systemctl enable -- a.service" in node.calls


def test_units_that_are_not_to_be_put_back_are_forgotten(node: Node) -> None:
    node.run("remember", record({"a.service": UNIT}))
    assert node.run("forget", whose="test/spark-b").returncode == 0
    assert node.kept.exists(), "it is another name's"
    for _ in range(2):
        assert node.run("forget").returncode == 0
        assert not node.kept.exists()
    assert node.calls == []


def test_record_that_cannot_be_read_is_a_fault_and_no_traceback(node: Node) -> None:
    node.run("remember", record({"a.service": UNIT}))
    node.kept.write_text('{"node": "spa')
    done = node.run("restore", record({"a.service": UNIT}))
    assert done.returncode == 1
    assert done.stderr.startswith(f"spark-2: its record of what was stale, {node.kept}: Unterminated string")
    assert "next: correct it and run it again" in done.stderr
    assert node.calls == []


def test_node_without_systemctl_says_so(node: Node) -> None:
    node.environment["PATH"] = "/nowhere"
    done = node.run("stop", record({"a.service": UNIT}))
    assert done.stderr.startswith("spark-2: systemctl: No such file or directory")


def test_record_is_read_behind_what_a_login_shell_prints(node: Node) -> None:
    """PULUMI_COMMAND_STDOUT is all of the session's output."""
    before = record({"a.service": UNIT}, vllm_node="aaa")
    noisy = f"Welcome to spark-2!\n{{}}\n{json.dumps(before)}\n"
    assert json.loads(node.run("remember", record(), noisy).stdout) == before
    assert node.run("restore", noisy).returncode == 0
    assert "systemctl enable -- a.service" in node.calls


def test_units_are_put_back_as_they_were_without_waiting_for_them(node: Node) -> None:
    before = record(
        {
            "a.service": UNIT,
            "b.service": {"runs": True, "enabled": "static"},
            "c.service": {"runs": False, "enabled": "enabled-runtime"},
            "gone.service": UNIT,
        },
        vllm_node="aaa",
    )
    done = node.run("restore", before)
    assert (done.returncode, done.stderr) == (0, "")
    assert [call for call in node.calls if " show " not in call] == [
        "systemctl enable -- a.service",
        "systemctl start --no-block -- a.service",
        "systemctl start --no-block -- b.service",
        "systemctl enable --runtime -- c.service",
    ]


def test_unit_that_is_refused_does_not_keep_the_others_from_being_put_back(tmp_path: Path) -> None:
    node = Node(tmp_path, refused="enable -- a.service")
    done = node.run("restore", record({"a.service": UNIT, "b.service": UNIT}))
    assert done.returncode == 1
    assert done.stderr.startswith("spark-2: not all units could be put back: unit a.service: Operation refused")
    assert "next: correct it and run pulumi destroy again" in done.stderr
    assert "systemctl start --no-block -- b.service" in node.calls


def test_state_that_has_no_record_puts_nothing_back(node: Node) -> None:
    assert node.run("restore").returncode == 0


def test_page_cache_is_dropped_after_a_sync(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", node.environment["PATH"])
    drop_on(Connection("spark-1", ()))
    assert node.calls[0] == "sync "
    assert node.calls[-1] == "sysctl -q vm.drop_caches=3"


def test_refused_drop_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", Node(tmp_path, refused="drop_caches").environment["PATH"])
    with pytest.raises(Fault, match="failed with exit code 4") as caught:
        drop_on(Connection("spark-1", ()))
    assert caught.value.node == "spark-1"
    assert "Operation refused" in caught.value.evidence
