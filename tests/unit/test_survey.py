"""Survey: the script as it runs on a node, and what its answers are made into."""

from __future__ import annotations

import ast
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts import survey as module
from hosts.faults import Fault
from hosts.survey import Survey, dump, script, survey, survey_all
from tests.samples import IMAGE_ID, MINIMAL, cluster, spark
from tests.samples import survey as recorded
from tests.samples.models import contents, directory

QUESTION: dict[str, Any] = {
    "images": ["none:1"], "model": "/nowhere", "revision": "main", "ports": [], "paths": [], "devices": [],
    "home": None, "units": [], "sudo": [],
}  # fmt: skip


def run(tmp_path: Path, *, before: str = "", **question: Any) -> dict[str, Any]:
    """What the script prints on this machine, where Docker's socket is absent."""
    absent = f"DOCKER_SOCKET = {str(tmp_path / 'docker.sock')!r}"
    source = script(QUESTION | question).replace("\nmain(", f"\n{absent}\n{before}\nmain(")
    done = subprocess.run(
        [sys.executable, *module.PYTHON[1:]], input=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def tool(tmp_path: Path, name: str, output: str, code: int = 0) -> str:
    """A program of the node that gives a recorded output, first on PATH; returns the line that puts it there."""
    program = tmp_path / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return f"os.environ['PATH'] = {str(program.parent)!r} + ':' + os.environ['PATH']"


def test_script_runs_here_and_its_answer_is_a_survey(tmp_path: Path) -> None:
    found = Survey.model_validate(run(tmp_path, before=tool(tmp_path, "docker", "")))
    assert (found.hostname, found.architecture) == (socket.gethostname(), platform.machine())
    assert found.docker.error.startswith("Docker does not answer")
    assert (found.model.exists, found.model.error) == (False, "")


def test_node_without_docker_says_so(tmp_path: Path) -> None:
    found = Survey.model_validate(run(tmp_path, before="shutil.which = lambda _: None"))
    assert found.docker.error == "Docker is not installed"


def test_script_needs_no_newer_python_than_a_node_has() -> None:
    ast.parse(script(QUESTION), feature_version=(3, 8))


def test_model_mounts_and_devices_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = Survey.model_validate(
        run(tmp_path, model=str(tmp_path), paths=["/nowhere", "/"], devices=["/dev/null", "/dev/nowhere"])
    )
    assert (found.model.error, found.model.files) == ("", {"config.json": 2})
    assert found.missing == ("/nowhere",)
    assert found.devices == ("/dev/null",)


def test_model_that_is_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.touch()
    assert run(tmp_path, model=str(file))["model"]["error"] == f"Not a directory: {file}"


def open_to_all(path: Path) -> None:
    """Let another user reach it: pytest's folders are its own."""
    while path != Path(tempfile.gettempdir()):
        path.chmod(0o755)
        path = path.parent


@pytest.mark.parametrize("place", ["model", "inner model", "mount"])
def test_directory_that_the_user_may_not_read_is_an_answer_not_a_crash(tmp_path: Path, place: str) -> None:
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0)
    open_to_all(tmp_path)
    model = closed / "inner" if place == "inner model" else closed
    question = {"paths": [str(closed / "inner")]} if place == "mount" else {"model": str(model)}
    found = run(tmp_path, before="os.geteuid() or os.setuid(65534)  # root may read everything", **question)
    if place == "mount":
        assert found["missing"] == [str(closed / "inner")]
    else:
        assert found["model"]["error"] == f"Permission denied: {model}"


def test_model_that_only_the_containers_root_reads_is_taken_as_it_is(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", contents())
    open_to_all(tmp_path)
    for file in model.iterdir():
        file.chmod(0)
    found = run(tmp_path, before="os.geteuid() or os.setuid(65534)  # root may read everything", model=str(model))
    assert (found["model"]["error"], found["model"]["lacks"]) == ("", {})
    assert set(found["model"]["closed"]) == set(contents())


def test_listener_is_found_with_its_process(tmp_path: Path, listener: int) -> None:
    (found,) = Survey.model_validate(run(tmp_path, ports=[listener, 1])).listeners
    assert (found.port, found.address, found.pid) == (listener, "127.0.0.1", os.getpid())


def test_no_ports_asked_no_listeners_told(tmp_path: Path, listener: int) -> None:  # noqa: ARG001 - something listens
    assert run(tmp_path)["listeners"] == []


UNIT_ONLY = "LISTEN 0      128    10.1.230.180:30000 0.0.0.0:* cgroup:/system.slice/vllm-proxy.service"
"""ss of iproute2 6.1 for another user's socket: no process, but its cgroup."""
PROXY = 'LISTEN 0      4096   0.0.0.0:30000 0.0.0.0:* users:(("docker-proxy",pid=1,fd=7)) cgroup:/'
ASK = "print(json.dumps(listeners([30000], {containers!r})))\nraise SystemExit\n"


def listening(tmp_path: Path, tools: str, *published: tuple[str, int]) -> dict[str, Any]:
    """The one listener on port 30000 beside a container with these published ports."""
    (found,) = run(tmp_path, before=tools + "\n" + ASK.format(containers=[{"id": "c" * 64, "published": published}]))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("sudo", [0, 1])
def test_unit_of_a_listener_is_told_without_root(tmp_path: Path, sudo: int) -> None:
    tools = f"{tool(tmp_path, 'ss', UNIT_ONLY)}\n{tool(tmp_path, 'sudo', UNIT_ONLY, sudo)}"
    found = listening(tmp_path, tools, ("127.0.0.1", 30000))
    assert (found["pid"], found["container"], found["unit"]) == (None, "", "vllm-proxy.service")


@pytest.mark.parametrize("line", [PROXY, PROXY.replace("0.0.0.0:30000", "[::]:30000"), PROXY.partition(" users")[0]])
def test_behind_a_published_port_is_its_container(tmp_path: Path, line: str) -> None:
    tools = f"{tool(tmp_path, 'ss', line)}\n{tool(tmp_path, 'sudo', '', 1)}"
    found = listening(tmp_path, tools, ("0.0.0.0", 30000), ("::", 30000))  # noqa: S104 - as Docker says it
    assert found["container"] == "c" * 64


def test_ss_that_knows_no_cgroups_is_asked_without(tmp_path: Path, listener: int) -> None:
    older = f'#!/bin/sh\ncase "$*" in *--cgroup*) exit 255 ;; esac\nexec {shutil.which("ss")} "$@"\n'
    before = tool(tmp_path, "ss", "")
    (tmp_path / "bin" / "ss").write_text(older)
    (found,) = run(tmp_path, before=before, ports=[listener])["listeners"]
    assert found["pid"] == os.getpid()


def test_gpus_of_a_gb10(tmp_path: Path) -> None:
    before = tool(
        tmp_path, "nvidia-smi", "WARNING: infoROM is corrupted, at gpu 000F:01:00.0, see\n0, NVIDIA GB10, GPU-8a3c"
    )
    assert run(tmp_path, before=before)["gpus"] == [{"index": 0, "name": "NVIDIA GB10", "uuid": "GPU-8a3c"}]


def test_failing_driver_is_passed_on(tmp_path: Path) -> None:
    before = tool(tmp_path, "nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the driver.", 9)
    found = run(tmp_path, before=before)
    assert (found["gpus"], "couldn't communicate" in found["gpu_error"]) == ([], True)


def test_interfaces_without_loopback_bridges_and_fe80(tmp_path: Path) -> None:
    """A cable with `link-local: [ ipv4 ]` has 169.254.x.x of scope link, and no other address."""

    def row(name: str, address: str, scope: str = "global", kind: str = "ether") -> dict[str, Any]:
        info = [
            {"family": "inet", "local": address, "prefixlen": 24, "scope": scope},
            {"family": "inet6", "local": "fe80::4ebb:47ff:fe2c:2a6", "prefixlen": 64, "scope": "link"},
        ]
        return {"ifname": name, "link_type": kind, "mtu": 9000, "addr_info": info}

    rows = [
        row("lo", "127.0.0.1", "host", "loopback"),
        row("enp1s0f1np1", "192.168.200.12"),
        row("docker0", "172.17.0.1"),
        row("br-1f2e3d4c5b6a", "172.18.0.1"),
        row("br-lan", "10.1.230.180"),
        row("veth12", "172.17.0.2"),
        row("docker_gwbridge", "172.18.0.1"),
        row("lxdbr0", "10.3.0.1"),
        row("cni0", "10.42.0.1"),
        row("enp1s0f0np0", "169.254.3.4", "link"),
        {"ifname": "enP7s7", "mtu": 1500, "addr_info": [row("", "", "")["addr_info"][1]]},
    ]
    found = run(tmp_path, before=tool(tmp_path, "ip", json.dumps(rows)))["interfaces"]
    assert [(one["name"], one["addresses"], one["mtu"]) for one in found] == [
        ("enp1s0f1np1", ["192.168.200.12/24"], 9000),
        ("br-lan", ["10.1.230.180/24"], 9000),
        ("enp1s0f0np0", ["169.254.3.4/24"], 9000),
    ]


def test_interface_without_a_cable_says_so(tmp_path: Path) -> None:
    info = [{"family": "inet", "local": "192.168.200.12", "prefixlen": 24, "scope": "global"}]
    rows = [{"ifname": "enp1s0f1np1", "link_type": "ether", "operstate": "DOWN", "mtu": 9000, "addr_info": info}]
    (found,) = Survey.model_validate(run(tmp_path, before=tool(tmp_path, "ip", json.dumps(rows)))).interfaces
    assert (found.state, found.down) == ("DOWN", True)


def test_node_whose_ip_command_knows_no_json_has_no_interfaces(tmp_path: Path) -> None:
    assert run(tmp_path, before=tool(tmp_path, "ip", 'Option "-json" is unknown, try "ip -help".', 255))[
        "interfaces"
    ] == []  # fmt: skip


UNITS = {
    "vllm-cluster.service": ("active", "enabled"),
    "vllm-proxy.service": ("inactive", "enabled"),
    "gone.service": ("inactive", ""),
    "by-hand.service": ("activating", "disabled"),
    "off.service": ("failed", "disabled"),
    "masked.service": ("inactive", "masked"),
}


def test_units_that_run_or_will_are_alive(tmp_path: Path) -> None:
    blocks = "\n\n".join(f"ActiveState={active}\nUnitFileState={enabled}" for active, enabled in UNITS.values())
    found = Survey.model_validate(run(tmp_path, before=tool(tmp_path, "systemctl", blocks), units=list(UNITS)))
    assert [(unit.name, unit.runs, unit.enabled) for unit in found.units] == [
        ("vllm-cluster.service", True, "enabled"),
        ("vllm-proxy.service", False, "enabled"),
        ("by-hand.service", True, "disabled"),
    ]


def test_node_without_systemd_has_no_units(tmp_path: Path) -> None:
    failing = tool(tmp_path, "systemctl", "", 1)
    assert run(tmp_path, before=failing, units=["vllm-cluster.service"])["units"] == []


@pytest.mark.parametrize("code", [0, 1])
def test_sudo_is_asked_only_for_what_will_be_needed(tmp_path: Path, code: int) -> None:
    before = f"{tool(tmp_path, 'sudo', '', code)}\nos.geteuid = lambda: 1000\n"
    alive = before + tool(tmp_path, "systemctl", "ActiveState=active\nUnitFileState=enabled")
    assert run(tmp_path, before=alive, units=["a.service"])["refused"] == ["systemctl"] * code
    assert run(tmp_path, before=before, sudo=["sysctl"])["refused"] == ["sysctl"] * code
    dead = before + tool(tmp_path, "systemctl", "ActiveState=inactive\nUnitFileState=disabled")
    assert run(tmp_path, before=dead, units=["a.service"])["refused"] == []


def test_unit_of_a_user_is_none_that_root_could_stop(tmp_path: Path) -> None:
    groups = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service\n"
    ask = f"Path.read_text = lambda _: {groups!r}\nprint(json.dumps(owner(cgroups(1))))\nraise SystemExit\n"
    assert run(tmp_path, before=ask) == {"container": "", "unit": ""}


def test_newer_script_may_say_more() -> None:
    assert recorded(1, kernel="6.14", docker={"version": "29", "context": "x"}).docker.version == "29"


def test_state_keeps_only_what_decides_and_stays() -> None:
    assert dump(recorded(1)) == {
        "hostname": "spark-0001",
        "architecture": "aarch64",
        "docker": "28.5.2",
        "gpus": ["NVIDIA GB10"],
    }


@pytest.fixture
def local_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A survey script of the test's own, run on the local node."""
    script = tmp_path / "script.py"
    monkeypatch.setattr(module, "SCRIPT", script)
    return script


LOCAL = [{"name": "spark-1", "ssh": "local"}]


def test_question_holds_what_the_cluster_needs(local_script: Path) -> None:
    local_script.write_text(
        "import json\ndef main(q, *_): print('login banner'); "
        f"print(json.dumps({spark(1)!r} | {{'hostname': repr(q)}}))"
    )
    found = cluster(nodes=LOCAL, mounts=[{"source": "/srv/hf", "target": "/hf"}], image="one:1", model="/srv/it's")
    told = survey(found, found.head)
    assert told.noise == "login banner"
    assert ast.literal_eval(told.hostname) == {
        "images": ["one:1"],
        "model": "/srv/it's",
        "revision": "main",
        "ports": [6379, 30000],
        "paths": ["/srv/hf"],
        "devices": ["/dev/infiniband"],
        "home": None,
        "units": ["vllm-cluster.service", "vllm-proxy.service", "vllm-embeddings.service", "vllm-reranker.service"],
        "sudo": [],
    }


@pytest.mark.parametrize(("changes", "ports"), [({}, [6379, 30000]), ({"serve": False, "port": 6379}, [6379])])
def test_only_ports_that_will_be_taken_are_asked_for(
    local_script: Path, changes: dict[str, Any], ports: list[int]
) -> None:
    local_script.write_text(
        f"import json\ndef main(q, *_): print(json.dumps({spark(1)!r} | {{'os': repr(q['ports'])}}))"
    )
    found = cluster(nodes=LOCAL, **changes)
    assert ast.literal_eval(survey(found, found.head).os) == ports
    assert sorted(found.ports) == ports


def test_script_that_fails_is_a_fault_with_its_words(local_script: Path) -> None:
    local_script.write_text("def main(q, *_): raise SystemExit('no such thing')")
    found = cluster(nodes=LOCAL)
    with pytest.raises(Fault, match="the survey failed with exit code 1") as caught:
        survey(found, found.head)
    assert "no such thing" in caught.value.evidence


def test_slow_node_is_bounded_by_its_deadline(local_script: Path) -> None:
    local_script.write_text("import time\ndef main(q, *_): time.sleep(600)")
    found = cluster(nodes=LOCAL, deadlines={"survey": 0.3})
    with pytest.raises(Fault, match="did not answer within"):
        survey(found, found.head)


def test_each_node_gives_facts_or_a_fault(local_script: Path) -> None:
    local_script.write_text(f"import json\ndef main(q, *_): print(json.dumps({spark(1)!r}))")
    dead = {"name": "spark-2", "ssh": "nobody@127.0.0.1:1"}  # tcpmux: nothing listens there
    facts, faults = survey_all(cluster(nodes=[*LOCAL, dead], ssh_config="/dev/null"))
    assert {name: one.docker.image_id for name, one in facts.items()} == {"spark-1": IMAGE_ID}
    assert [(fault.node, "refuses connections" in fault.cause) for fault in faults] == [("spark-2", True)]


def test_home_is_the_users_or_the_given_one(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    found = Survey.model_validate(run(tmp_path, home=str(tmp_path), model="~/models", paths=["~/models", "~/absent"]))
    assert (found.model.exists, found.missing) == (True, (f"{tmp_path}/absent",))
    assert (found.path("~/models"), found.path("/opt/m")) == (f"{tmp_path}/models", "/opt/m")
    assert run(tmp_path)["home"] == str(Path.home())


def test_each_node_is_asked_for_what_is_in_force_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(_self: object, *_argv: str, stdin: str, **_options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(stdin.rpartition("main(")[2].rpartition(", hardware")[0])
        return subprocess.CompletedProcess([], 0, json.dumps(spark(1)))

    monkeypatch.setattr("hosts.ssh.Connection.run", answer)
    own = {"mounts": [{"source": "/a", "target": "/b"}], "devices": ["/dev/x"], "home": "/data/aurora"}
    own |= {"stale_units": ["a.timer"], "drop_page_cache": True}
    first, second = MINIMAL["nodes"]
    found = cluster(nodes=[first, second | own])
    for node in found.nodes:
        survey(found, node)
    questions = [ast.literal_eval(text) for text in asked]
    assert [(len(one["units"]), one["sudo"]) for one in questions] == [(4, []), (1, ["sysctl"])]
    assert [(one["paths"], one["devices"], one["home"]) for one in questions] == [
        ([], ["/dev/infiniband"], None),
        (["/a"], ["/dev/x"], "/data/aurora"),
    ]
