"""Stale units and containers on a node: named, stopped, remembered, stopped again, put back.

The program and its settings are the lab's; the engine is told to touch nothing but the nodes, without roles, and the
image's gate, so that no cluster has to be loaded for it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import Stack, connect, lab_settings, on, refused

NODE = "spark-2"
TARGETS = ("Cluster", "Cluster$**:Node", "Cluster$**:Preparation", "Cluster$**:Command")
NEEDED = ("Host", "NodeImage", "ModelWeights", "ImageGate")
"""What must be there before something is stopped."""
ONLY = [f"--target=**index:{types}::**" for types in TARGETS] + [f"--target=**spark:{type_}::**" for type_ in NEEDED]
SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n{more}\n[Install]\nWantedBy=multi-user.target\n"
OCCUPANTS = "/etc/lab/compute-apps.csv"
CLUSTER, PROXY, STUBBORN = "vllm-cluster.service", "vllm-proxy.service", "vllm-reranker.service"
KEPT = ".dgx-spark-cluster/lab.json"
"""The node's own record, in the home of the ssh user."""
EMPTY = "test-preparation:1"
RUN_CONTAINER = f"""set -e
docker image inspect {EMPTY} >/dev/null 2>&1 || tar -cf - -T /dev/null | docker import - {EMPTY} >/dev/null
name=$1; shift
docker run --detach --name "$name" "$@" --restart always --network none --stop-signal KILL \
  -v /usr:/usr:ro -v /bin:/bin:ro -v /lib:/lib:ro -v /lib64:/lib64:ro {EMPTY} /bin/sleep infinity >/dev/null
docker inspect --format '{{{{.State.Pid}}}}' "$name"
"""
"""An image without any content, and the node's own programs in it."""


def sudo(*argv: str, check: bool = True) -> str:
    return on(NODE, "sudo", *argv, check=check)


def write(path: str, text: str) -> None:
    connect(NODE).run("sudo", "tee", path, stdin=text, check=True)


def install(name: str, *, enabled: bool, more: str = "") -> None:
    write(f"/etc/systemd/system/{name}", SERVICE.format(more=more))
    sudo("systemctl", "daemon-reload")
    sudo("systemctl", *(("enable", "--now") if enabled else ("start",)), name)


def state(name: str) -> tuple[str, str]:
    """Whether a unit is active, and whether it is enabled, in systemctl's words."""
    return on(NODE, "systemctl", "is-active", name, check=False).strip(), on(
        NODE, "systemctl", "is-enabled", name, check=False
    ).strip()


def becomes(read: Callable[[], object], wanted: object) -> None:
    """Units are put back without waiting for their start."""
    deadline = time.monotonic() + 20
    while (found := read()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def container() -> str:
    return on(NODE, "docker", "ps", "-aq", "--filter", "name=^vllm_node$").strip()


def run_container(name: str = "vllm_node", *labels: str) -> str:
    """Start a container, by default the stale one; its process."""
    options = [option for label in labels for option in ("--label", label)]
    return on(NODE, "sh", "-c", RUN_CONTAINER, "sh", name, *options).strip()


def clean() -> None:
    for name in (CLUSTER, PROXY, STUBBORN):
        sudo("systemctl", "disable", name, check=False)
        sudo("rm", "-f", f"/etc/systemd/system/{name}")
    sudo("systemctl", "daemon-reload")  # the stubborn one lets itself be stopped then
    sudo("systemctl", "stop", CLUSTER, PROXY, STUBBORN, check=False)
    sudo("rm", "-f", OCCUPANTS)
    on(NODE, "rm", "-f", KEPT)
    on(NODE, "docker", "rm", "-f", "vllm_node", check=False)
    on(NODE, "docker", "image", "rm", EMPTY, check=False)


@pytest.fixture(autouse=True)
def node(lab: None) -> Iterator[None]:  # noqa: ARG001 - the nodes are up
    """The node without anything stale, before and after."""
    clean()
    yield
    clean()


@pytest.fixture
def own(lab: None, tmp_path: Path) -> Iterator[Stack]:  # noqa: ARG001 - the nodes are up
    """A stack of the test's own, destroyed at the end."""
    made = Stack(tmp_path)
    yield made
    gone = made.destroy()
    assert gone.code == 0, gone.output


def changes(stack: Stack, *more: str) -> dict[str, str]:
    """What a preview would do to preparation."""
    return {name: op for name, op in stack.preview(*ONLY, *more).items() if name.startswith("Command")}


def record(stack: Stack, name: str = NODE) -> Mapping[str, Any]:
    """What Pulumi's state remembers of the node, by its name in the settings."""
    exported = json.loads(stack.pulumi("stack", "export", "--stack", "lab").output)["deployment"]["resources"]
    (found,) = (one for one in exported if one["urn"].endswith(f"::{name}-found"))
    remembered: dict[str, Any] = json.loads(found["outputs"]["stdout"])
    return remembered


def test_stale_things_are_named_stopped_stopped_again_and_put_back(own: Stack) -> None:
    """C20 where the holder is declared stale."""
    install(CLUSTER, enabled=True)
    install(PROXY, enabled=False)
    pid = run_container()
    main = on(NODE, "systemctl", "show", "--property=MainPID", "--value", CLUSTER).strip()
    sudo("mkdir", "-p", "/etc/lab")
    write(OCCUPANTS, f"{main}, /usr/bin/python3, 19135\n{pid}, VLLM::Worker, 40000\n")

    # A preview says it and does nothing.
    seen = own.pulumi("preview", "--stack", "lab", *ONLY)
    assert seen.code == 0, seen.output
    for part in (
        f"{NODE}: preparation stops and disables unit {CLUSTER} (active, enabled)",
        f"stops and disables unit {PROXY} (active, disabled)",
        "removes container vllm_node (running)",
    ):
        assert part in seen.output, seen.output
    assert (state(CLUSTER), state(PROXY), bool(container())) == (("active", "enabled"), ("active", "disabled"), True)

    done = own.up(*ONLY)
    assert done.code == 0, done.output
    assert "removing container vllm_node" in done.output, done.output
    assert (state(CLUSTER), state(PROXY), container()) == (("inactive", "disabled"), ("inactive", "disabled"), "")
    assert record(own)["units"] == {
        CLUSTER: {"runs": True, "enabled": "enabled"},
        PROXY: {"runs": True, "enabled": "disabled"},
    }
    assert set(record(own)["containers"]) == {"vllm_node"}
    sudo("rm", OCCUPANTS)

    # Nothing is alive any more: nothing to do, now and the next time.
    for _ in range(2):
        done = own.up(*ONLY, "--expect-no-changes")
        assert done.code == 0, done.output

    # Alive again: first enabled only, then running, with the container, then just the same once more.
    alive_again: list[Callable[[], object]] = [
        lambda: sudo("systemctl", "enable", CLUSTER),
        lambda: (sudo("systemctl", "start", CLUSTER), run_container()),
        lambda: sudo("systemctl", "start", CLUSTER),
    ]
    for again in alive_again:
        again()
        plan = changes(own)
        assert plan[f"Command {NODE}-stopped"] == "update"
        assert not any("spark-1" in name for name in plan)
        done = own.up(*ONLY)
        assert done.code == 0, done.output
        assert (state(CLUSTER), container()) == (("inactive", "disabled"), "")
        assert changes(own) == {}
    assert record(own)["units"][CLUSTER] == {"runs": True, "enabled": "enabled"}

    # Another way to the node while a stopped unit runs on purpose, and another is gone.
    sudo("systemctl", "start", CLUSTER)
    sudo("rm", f"/etc/systemd/system/{PROXY}")
    sudo("systemctl", "daemon-reload")
    settings = copy.deepcopy(lab_settings())
    settings |= {"stale_units": [STUBBORN], "deadlines": settings.get("deadlines", {}) | {"connect": 17}}
    done = own.up(*ONLY, *own.configured(settings))
    assert done.code == 0, done.output
    assert state(CLUSTER) == ("active", "disabled")
    assert set(record(own)["units"]) == {CLUSTER, PROXY}
    install(PROXY, enabled=False)
    sudo("systemctl", "stop", CLUSTER, PROXY)

    gone = own.destroy()
    assert gone.code == 0, gone.output
    becomes(lambda: (state(CLUSTER), state(PROXY)), (("active", "enabled"), ("active", "disabled")))
    assert container() == ""


def test_renamed_node_puts_units_back_when_it_leaves_and_not_when_its_old_name_does(own: Stack) -> None:
    install(CLUSTER, enabled=True)
    done = own.up(*ONLY)
    assert done.code == 0, done.output
    settings = copy.deepcopy(lab_settings())
    assert settings["nodes"][1]["name"] == NODE
    settings["nodes"][1]["name"] = "spark-b"
    renamed = [
        "--target=**index:Cluster$**pulumi:providers:docker::**",
        *own.configured(settings),
    ]  # the old one's goes
    done = own.up(*ONLY, *renamed)
    assert done.code == 0, done.output
    assert state(CLUSTER) == ("inactive", "disabled"), "it would run beside the cluster"
    assert record(own, "spark-b")["units"] == {CLUSTER: {"runs": True, "enabled": "enabled"}}
    done = own.up(*ONLY, *renamed, "--expect-no-changes")
    assert done.code == 0, done.output
    gone = own.destroy()
    assert gone.code == 0, gone.output
    becomes(lambda: state(CLUSTER), ("active", "enabled"))
    on(NODE, "test", "!", "-e", KEPT)


def test_units_stay_stopped_where_the_settings_say_so(own: Stack) -> None:
    install(CLUSTER, enabled=True)
    settings = copy.deepcopy(lab_settings()) | {"restore_units": False}
    done = own.up(*ONLY, *own.configured(settings))
    assert done.code == 0, done.output
    gone = own.destroy()
    assert gone.code == 0, gone.output
    assert state(CLUSTER) == ("inactive", "disabled")


def test_nothing_is_stopped_for_an_image_that_does_not_come(own: Stack) -> None:
    """A live service of earlier days must not end for it."""
    install(CLUSTER, enabled=True)
    settings = copy.deepcopy(lab_settings()) | {"image": "localhost:5/absent/vllm:1", "image_archive": None}
    refused(own.up(*ONLY, *own.configured(settings)), "image localhost:5/absent/vllm:1 is on no node")
    assert state(CLUSTER) == ("active", "enabled")
    gone = own.destroy()
    assert gone.code == 0, gone.output
    assert state(CLUSTER) == ("active", "enabled")


def test_what_was_stopped_before_a_refusal_is_put_back_too(own: Stack) -> None:
    """The state knows what was found before the first unit is stopped."""
    install(CLUSTER, enabled=True)
    install(STUBBORN, enabled=False, more="[Unit]\nRefuseManualStop=yes")
    refused(own.up(*ONLY), f"{NODE}: ", "Operation refused, unit", "next: correct it on the node")
    assert state(CLUSTER) == ("inactive", "disabled")
    gone = own.destroy()
    assert gone.code == 0, gone.output
    becomes(lambda: state(CLUSTER), ("active", "enabled"))


def test_units_are_put_back_when_all_that_is_ours_has_left_the_node(own: Stack) -> None:
    seen = "/run/test-preparation"
    ours = ("--filter", "label=dgx-spark-cluster.stack=lab")
    install(CLUSTER, enabled=False, more=f"ExecStartPre=/bin/sh -c 'docker ps -aq {' '.join(ours)} > {seen}'")
    done = own.up(*ONLY)
    assert done.code == 0, done.output
    run_container("ours", "dgx-spark-cluster.stack=lab", f"dgx-spark-cluster.node={NODE}")
    assert on(NODE, "docker", "ps", "-q", *ours).strip()
    gone = own.destroy()
    assert gone.code == 0, gone.output
    becomes(lambda: state(CLUSTER), ("active", "disabled"))
    assert sudo("cat", seen) == "", "our container was there when the unit was started"
    sudo("rm", seen)


def test_holder_that_no_setting_names_is_an_error_and_is_left_alone(own: Stack) -> None:
    install(CLUSTER, enabled=True)
    main = on(NODE, "systemctl", "show", "--property=MainPID", "--value", CLUSTER).strip()
    sudo("mkdir", "-p", "/etc/lab")
    write(OCCUPANTS, f"{main}, /usr/bin/python3, 19135\n")
    settings = copy.deepcopy(lab_settings()) | {"stale_units": [PROXY]}
    refused(
        own.up(*ONLY, *own.configured(settings)),
        f"{NODE}: the GPU is held by /usr/bin/python3 (pid {main}, unit {CLUSTER}) with 19135 MiB",
        "add it to `stale_units`",
    )
    assert state(CLUSTER) == ("active", "enabled")
