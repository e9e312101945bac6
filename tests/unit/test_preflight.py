"""Preflight: every fault that stands in the way, and what is ours and therefore does not."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.preflight import check
from settings import Cluster
from tests.samples import STACK, cluster, container, settings, survey, surveys

SERVE = f"dgx-spark-cluster-{STACK}-serve"
HEAD = f"dgx-spark-cluster-{STACK}-ray-head"


def faults(found: Cluster | None = None, number: int = 1, **changes: Any) -> list[Fault]:
    """What preflight says when one node's survey is changed."""
    return check(found or cluster(), STACK, {**surveys(), f"spark-{number}": survey(number, **changes)})


def only(found: list[Fault]) -> Fault:
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def docker(*containers: dict[str, Any], error: str = "") -> dict[str, Any]:
    return {"error": error, "version": "28.5.2", "containers": list(containers)}


def listener(port: int, process: str = "", pid: int | None = None, container: str = "") -> dict[str, Any]:
    return {"port": port, "address": "10.1.230.180", "process": process, "pid": pid, "container": container}


def test_good_nodes_have_no_fault() -> None:
    assert faults() == []


def test_shell_that_prints_is_a_fault_with_what_it_prints() -> None:
    fault = only(faults(noise="Welcome to DGX Spark"))
    assert fault.cause == "the login shell prints text before each command's output"
    assert (fault.evidence, ".bashrc" in fault.remedy) == ("Welcome to DGX Spark", True)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Docker is not installed", "apt-get install docker.io"),
        ("the user may not use Docker", "usermod -aG docker $USER'"),
        ("Docker does not answer: [Errno 2] No such file or directory", "systemctl start docker"),
    ],
)
def test_docker_fault_has_the_command_that_helps(error: str, remedy: str) -> None:
    fault = only(faults(number=2, docker=docker(error=error)))
    assert (fault.node, fault.cause) == ("spark-2", error)
    assert remedy in fault.remedy
    assert "ssh -t -J aurora@10.1.230.180 aurora@192.168.200.13 'sudo " in fault.remedy


@pytest.mark.parametrize(("ways", "count"), [([], 1), (["hook"], 0), (None, 0)])
def test_docker_that_cannot_grant_gpus_is_named(ways: list[str] | None, count: int) -> None:
    found = faults(docker=docker() | {"gpu_runtimes": ways})
    assert ["nvidia-ctk runtime configure" in fault.remedy for fault in found] == [True] * count


def test_missing_gpu_is_named_with_the_drivers_words() -> None:
    fault = only(faults(gpus=[], gpu_error="NVIDIA-SMI has failed because it couldn't communicate with the driver."))
    assert fault.cause == "1 GPU(s) wanted, nvidia-smi shows 0"
    assert "couldn't communicate" in fault.evidence


def occupant(**changes: Any) -> dict[str, Any]:
    return {"pid": 114687, "name": "/usr/bin/python3", "mib": 19135, "container": "", "unit": ""} | changes


@pytest.mark.parametrize(
    ("changes", "held", "stop"),
    [
        (
            {"unit": "jupyter.service"},
            "unit jupyter.service",
            "'sudo systemctl disable --now jupyter.service'; or have it stopped: add it to `stale_units` (a list",
        ),
        (
            {"container": "s" * 64, "unit": "docker.service"},
            "container grafana",
            "'docker stop grafana'; or have it removed: add it to `stale_containers` (a list",
        ),
        ({}, "(pid 114687)", "'sudo kill 114687'"),
        *[
            ({"unit": unit}, f"(pid 114687, unit {unit})", "stop it: ssh -t aurora@10.1.230.180 'sudo kill 114687'")
            for unit in ("docker.service", "ssh.service")  # by which the program reaches the node
        ],
    ],
)
def test_who_holds_the_gpu_is_named_with_the_command_or_setting_that_stops_it(
    changes: dict[str, Any], held: str, stop: str
) -> None:
    """C20."""
    strangers = docker(container("grafana", "serve", stack=None))
    (fault,) = faults(gpu_processes=[occupant(**changes)], docker=strangers)
    assert "the GPU is held by /usr/bin/python3" in fault.cause
    assert held in fault.cause
    assert fault.cause.endswith("with 19135 MiB")
    assert stop in fault.remedy


def unit(name: str, active: str = "active", enabled: str = "enabled") -> dict[str, Any]:
    return {"name": name, "active": active, "enabled": enabled}


def test_what_preparation_will_stop_is_no_fault_whatever_it_holds() -> None:
    reranker = container("reranker", "serve", stack=None)
    found = faults(
        units=[unit("vllm-proxy.service")],
        docker=docker(reranker),
        gpu_processes=[occupant(unit="vllm-proxy.service"), occupant(container=reranker["id"], unit="docker.service")],
        listeners=[
            listener(30000, "python3", 7) | {"unit": "vllm-proxy.service"},
            listener(6379, "raylet", 8, reranker["id"]),
        ],
    )
    assert found == []


def test_stale_container_is_left_where_the_settings_do_not_name_it() -> None:
    holder: dict[str, Any] = {
        "gpu_processes": [occupant(container="s" * 64)],
        "docker": docker(container("reranker", "s", stack=None)),
    }
    assert "container reranker" in only(faults(cluster(stale_containers=[]), **holder)).cause


def test_password_of_sudo_is_a_fault_with_both_ways_out() -> None:
    fault = only(faults(units=[unit("a.service"), unit("b.timer")], refused=["systemctl"], number=2))
    assert fault.cause == "sudo systemctl asks for a password: stale units cannot be stopped (a.service b.timer)"
    by_hand = "ssh -t -J aurora@10.1.230.180 aurora@192.168.200.13"
    assert f"{by_hand} 'sudo systemctl disable --now a.service b.timer'" in fault.remedy
    assert fault.remedy.endswith(
        f"{by_hand} 'echo \"$USER ALL=(root) NOPASSWD: /usr/bin/systemctl\" | sudo tee /etc/sudoers.d/spark-systemctl'"
    )


def test_commands_for_the_local_machine_are_its_shells() -> None:
    local = cluster(nodes=[{"name": "spark-1", "ssh": "local"}])
    fault = only(faults(local, docker=docker(error="the user may not use Docker")))
    assert fault.remedy == "sudo usermod -aG docker $USER, then log in anew"
    fault = only(faults(local, refused=["sysctl"]))
    assert 'the node: echo "$USER ALL=(root) NOPASSWD: /usr/sbin/sysctl" | sudo tee' in fault.remedy


def test_unit_is_quoted_for_the_shell_of_the_node() -> None:
    fault = only(faults(gpu_processes=[occupant(unit="run-a\\x2db.service")]))
    assert shlex.split(shlex.split(fault.remedy.split("; or")[0])[-1])[-1] == "run-a\\x2db.service"


def test_password_of_sudo_is_a_fault_for_the_page_cache_too() -> None:
    fault = only(faults(refused=["sysctl"]))
    assert fault.cause == "sudo sysctl asks for a password: the page cache cannot be dropped"
    assert "`drop_page_cache: false`" in fault.remedy
    assert "/usr/sbin/sysctl" in fault.remedy


def test_own_processes_and_an_idle_desktop_hold_no_gpu() -> None:
    ours = docker(container("dgx-spark-cluster-lab-serve", "serve"))
    desktop = occupant(name="/usr/lib/xorg/Xorg", mib=18)
    assert faults(gpu_processes=[occupant(container="s" * 64), desktop], docker=ours) == []


def test_model_directory_that_cannot_be_read_is_named() -> None:
    fault = only(faults(number=2, model={"error": "Permission denied: /srv", "exists": True}))
    assert fault.node == "spark-2"
    assert "/srv/models/Qwen3.5-122B-A10B-FP8: Permission denied: /srv" in fault.cause


def test_absent_mount_source_is_named() -> None:
    assert "mount source /srv/hf does not exist" in only(faults(missing=["/srv/hf"])).cause


def test_foreign_container_with_a_name_of_ours_is_a_fault() -> None:
    fault = only(faults(docker=docker(container(SERVE, "serve", stack=None, state="exited"))))
    assert "is not ours" in fault.cause
    assert f"docker rename {SERVE}" in fault.remedy


def test_other_containers_are_no_fault() -> None:
    assert faults(docker=docker(container("grafana", "x", stack=None), container("vllm_node", "y", stack=None))) == []


def test_container_of_ours_is_no_fault() -> None:
    assert faults(docker=docker(container(SERVE, "serve"))) == []


@pytest.mark.parametrize("state", ["running", "restarting", "paused"])
def test_second_stack_on_the_same_host_is_refused(state: str) -> None:
    fault = only(faults(docker=docker(container("dgx-spark-cluster-prod-serve", "serve", stack="prod", state=state))))
    assert "stack 'prod' already runs serve here" in fault.cause
    assert "pulumi destroy -s prod" in fault.remedy


def test_what_a_second_stack_holds_is_told_with_it_alone() -> None:
    """To stop its containers by hand would break it."""
    other = container("dgx-spark-cluster-prod-serve", "serve", stack="prod")
    process = {"pid": 7, "name": "vllm", "mib": 60000, "container": other["id"], "unit": ""}
    held = listener(30000, "vllm", 7, other["id"])
    fault = only(faults(docker=docker(other), listeners=[held], gpu_processes=[process]))
    assert "stack 'prod' already runs serve here" in fault.cause


def test_remains_of_another_stack_are_no_fault() -> None:
    other = container("dgx-spark-cluster-prod-serve", "serve", stack="prod", state="exited")
    assert faults(docker=docker(other)) == []


def test_stack_whose_name_continues_ours_is_not_taken_for_a_stranger() -> None:
    other = container(f"dgx-spark-cluster-{STACK}-two-serve", "serve", stack=f"{STACK}-two")
    assert "stack 'test-two' already runs" in only(faults(docker=docker(other))).cause


@pytest.mark.parametrize("state", ["running", "paused", "restarting"])
def test_port_of_our_own_container_is_no_fault(state: str) -> None:
    """C18: an interrupted run left serve running."""
    serve = container(SERVE, "serve", state=state)
    assert faults(docker=docker(serve), listeners=[listener(30000, "vllm", 4321, serve["id"])]) == []


def test_port_of_our_own_container_is_no_fault_without_root() -> None:
    assert faults(docker=docker(container(HEAD, "ray-head")), listeners=[listener(6379)]) == []


@pytest.mark.parametrize(("port", "setting"), [(30000, "`port`"), (6379, "`ray.port`")])
def test_foreign_process_on_a_port_is_named(port: int, setting: str) -> None:
    """C19: process, pid and node."""
    fault = only(faults(listeners=[listener(port, "python3", 4321)]))
    assert (fault.node, fault.cause) == ("spark-1", f"port {port} is taken by python3 (pid 4321) on 10.1.230.180")
    assert setting in fault.remedy


def test_docker_that_hangs_is_told_alone() -> None:
    """Its containers run on, but cannot be told from foreign processes: to stop these would end the cluster."""
    process = {"pid": 9, "name": "VLLM", "mib": 90_000, "container": "s" * 64, "unit": "docker.service"}
    fault = only(
        faults(
            docker=docker(error="Docker does not answer: timed out"),
            listeners=[listener(30000, "vllm", 9, "s" * 64)],
            gpu_processes=[process],
        )
    )
    assert "systemctl restart docker" in fault.remedy


def test_port_taken_by_another_user_is_named_as_such() -> None:
    assert "taken by a process of another user" in only(faults(listeners=[listener(30000)])).cause


@pytest.mark.parametrize(
    ("changes", "who", "stop"),
    [
        ({"unit": "jupyter.service"}, "a process of another user (unit jupyter.service)", "disable --now jupyter.serv"),
        ({"container": "s" * 64}, "a process of another user (container grafana)", "docker stop grafana"),
        (
            {"process": "docker-proxy", "pid": 7, "container": "s" * 64, "unit": "docker.service"},
            "docker-proxy (pid 7, container grafana)",
            "docker stop grafana",
        ),
        ({}, "a process of another user", "'sudo ss -ltnp \"sport = :30000\"' shows it"),
        (
            {"unit": "docker.service"},
            "a process of another user (unit docker.service)",
            "'sudo ss -ltnp \"sport = :30000\"' shows it",
        ),
        ({"process": "nc", "pid": 7, "unit": "ssh.service"}, "nc (pid 7, unit ssh.service)", "'sudo kill 7'; or"),
        ({"process": "sshd", "pid": 7, "unit": "ssh.service"}, "sshd (pid 7, unit ssh.service)", "choose another"),
    ],
)
def test_who_takes_a_port_is_named_with_what_stops_it(changes: dict[str, Any], who: str, stop: str) -> None:
    fault = only(faults(docker=docker(container("grafana", "s", stack=None)), listeners=[listener(30000) | changes]))
    assert fault.cause == f"port 30000 is taken by {who} on 10.1.230.180"
    assert stop in fault.remedy
    assert ("stop it" in fault.remedy) == ("sshd" not in who)


def test_process_on_one_port_of_both_protocols_is_named_once() -> None:
    both = [listener(30000, "python3", 7) | {"address": address} for address in ("0.0.0.0", "::")]  # noqa: S104
    assert only(faults(listeners=both)).cause == "port 30000 is taken by python3 (pid 7) on 0.0.0.0"


def test_port_of_what_preparation_will_stop_is_no_fault_without_root() -> None:
    """The field case: vllm-proxy.service of root on the port of serve, and a user whose sudo allows systemctl only."""
    reranker = container("reranker", "serve", stack=None)
    found = faults(
        units=[unit("vllm-proxy.service")],
        docker=docker(reranker),
        listeners=[listener(30000) | {"unit": "vllm-proxy.service"}, listener(6379, container=reranker["id"])],
    )
    assert found == []


def test_unit_on_our_port_is_foreign_while_our_container_lives_without_root() -> None:
    serve = docker(container(SERVE, "serve"))
    fault = only(faults(docker=serve, listeners=[listener(30000) | {"unit": "jupyter.service"}]))
    assert "unit jupyter.service" in fault.cause
    assert faults(docker=serve, listeners=[listener(30000) | {"unit": "docker.service"}]) == []


def test_port_in_another_container_than_ours_is_a_fault() -> None:
    serve = container(SERVE, "serve")
    assert "port 30000 is taken by" in only(
        faults(docker=docker(serve), listeners=[listener(30000, "nginx", 99, "f" * 64)])
    ).cause  # fmt: skip


def test_port_held_while_our_container_is_stopped_is_a_fault() -> None:
    stopped = container(SERVE, "serve", state="exited")
    assert "port 30000" in only(faults(docker=docker(stopped), listeners=[listener(30000)])).cause


def test_port_of_the_other_role_is_no_excuse() -> None:
    head = container(HEAD, "ray-head")
    assert "port 30000" in only(faults(docker=docker(head), listeners=[listener(30000)])).cause


def test_process_outside_containers_is_foreign_while_our_container_crash_loops_on_its_port() -> None:
    """C19 in a crash loop: serve is `running` for the moment between two refusals of the port."""
    serve = container(SERVE, "serve")
    assert "python3 (pid 4321)" in only(
        faults(docker=docker(serve), listeners=[listener(30000, "python3", 4321)])
    ).cause  # fmt: skip


def test_ports_of_workers_are_theirs() -> None:
    assert faults(number=2, listeners=[listener(30000, "nginx", 5)]) == []


def test_all_faults_of_all_nodes_are_found_at_once_in_their_order() -> None:
    found = check(
        cluster(),
        STACK,
        {
            "spark-1": survey(1, gpus=[], missing=["/a"], listeners=[listener(30000)]),
            "spark-2": survey(2, docker=docker(error="Docker is not installed"), missing=["/b"]),
        },
    )
    assert [fault.node for fault in found] == ["spark-1"] * 3 + ["spark-2"] * 2


def test_node_that_could_not_be_asked_is_left_to_its_own_fault() -> None:
    assert check(cluster(), STACK, {"spark-1": survey(1)}) == []


def test_changed_ports_are_those_that_are_checked() -> None:
    found = Cluster.model_validate(settings(port=8000, ray={"port": 6380}))
    assert "`ray.port`" in only(faults(found, listeners=[listener(6380)])).remedy
