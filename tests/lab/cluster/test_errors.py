"""Faults of settings and hosts: one clear error that names the node and the next step, nothing else damaged.

The cluster serves throughout: a fault found by the survey must leave it alone.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster.checks import assert_one_clear_error, containers
from tests.lab.conftest import ROOT, Stack, lab_settings, on, refused

Change = Callable[[dict[str, Any], Path], None]


def _unreachable(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["nodes"][1]["ssh"] = "aurora@192.168.200.99"


def _unknown_key(cluster: dict[str, Any], folder: Path) -> None:
    config = (ROOT / ".build/lab/ssh_config").read_text()
    known = ROOT / ".build/lab/known_hosts"
    lines = [line for line in known.read_text().splitlines() if "192.168.200.13" not in line]
    (folder / "known_hosts").write_text("\n".join(lines) + "\n")
    (folder / "ssh_config").write_text(config.replace(str(known), str(folder / "known_hosts")))
    cluster["ssh_config"] = str(folder / "ssh_config")


def _refused_login(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["nodes"][1]["ssh"] = "stranger@192.168.200.13"


def _no_model(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["model"] = "/opt/models/absent"


def _port(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["prot"] = 30000


def _sizes(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["tensor_parallel_size"] = 3


def _no_nodes(cluster: dict[str, Any], _folder: Path) -> None:
    del cluster["nodes"]


def _gpus(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["nodes"][1]["gpus"] = 2


def _flag(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["engine_arguments"].append("--no-such-flag")


def _mount(cluster: dict[str, Any], _folder: Path) -> None:
    cluster["mounts"][0]["source"] = "/opt/absent"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        pytest.param(_unreachable, ["spark-2: ", "192.168.200.99"], id="unreachable host"),
        pytest.param(_unknown_key, ["spark-2: the host key of 192.168.200.13 is not known"], id="unknown host key"),
        pytest.param(_refused_login, ["spark-2: 192.168.200.13 refuses the login of stranger@"], id="refused login"),
        pytest.param(
            _no_model, ["spark-1: model directory /opt/models/absent", "spark-2: model directory"], id="no model"
        ),
        pytest.param(_gpus, ["spark-2: 2 GPU(s) wanted, nvidia-smi shows 1"], id="fewer GPUs than asked"),
        pytest.param(
            _flag,
            ["spark-1: `vllm serve` of image dgx-spark-lab/vllm:1 does not know --no-such-flag"],
            id="unknown engine flag",
        ),
        pytest.param(_mount, ["spark-1: mount source /opt/absent does not exist"], id="no mount source"),
    ],
)
def test_a_fault_of_a_host_is_one_clear_error(
    serving: Stack, tmp_path: Path, change: Change, wanted: list[str]
) -> None:
    before = containers()
    cluster = copy.deepcopy(lab_settings())
    change(cluster, tmp_path)
    done = serving.up(*serving.configured(cluster))
    assert done.code != 0
    assert_one_clear_error(done.output, *wanted)
    assert containers() == before


def test_a_value_that_the_engine_does_not_take_stops_nothing(serving: Stack) -> None:
    before = containers()
    given = [*lab_settings()["engine_arguments"], "--max-num-seqs=many"]
    done = serving.up(*serving.configured(lab_settings() | {"engine_arguments": given}))
    refused(done, "`vllm serve` of image dgx-spark-lab/vllm:1 refuses its arguments: argument --max-num-seqs: invalid ")
    assert containers() == before


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        pytest.param(_port, "cluster.prot: unknown setting; did you mean 'port'?", id="mistyped"),
        pytest.param(_sizes, "sizes that fit (tensor × pipeline): 2 × 1, 1 × 2", id="sizes"),
        pytest.param(_no_nodes, "dgx-spark-cluster:cluster.nodes: is required", id="missing"),
    ],
)
def test_wrong_settings_are_named_by_their_path(serving: Stack, tmp_path: Path, change: Change, wanted: str) -> None:
    before = containers()
    cluster = copy.deepcopy(lab_settings())
    change(cluster, tmp_path)
    refused(serving.up(*serving.configured(cluster)), wanted)
    assert containers() == before


def test_the_field_case_previews_to_one_error_for_each_unreachable_host(serving: Stack, tmp_path: Path) -> None:
    # 10.1.230.180 is the lab's spark-1 here, which the field's ssh configuration does not know.
    field = shutil.copy(ROOT / "Pulumi.spark.yaml", tmp_path)  # Pulumi writes to the file it is given
    config = ["--config-file", str(field)]
    done = serving.pulumi("preview", "--stack", "lab", *config)
    assert done.code != 0
    assert_one_clear_error(done.output, "spark-1: ", "spark-2: ", "ssh aurora@10.1.230.180")


def test_a_process_that_holds_the_gpu_is_named_with_its_unit(serving: Stack) -> None:
    """C20."""
    before = containers()
    pid = on("spark-2", "systemctl", "show", "--property", "MainPID", "--value", "ssh").strip()
    occupants = "/etc/lab/compute-apps.csv"
    on("spark-2", "sudo", "sh", "-c", f"mkdir -p /etc/lab; echo '{pid}, /usr/bin/python3, 19135' > {occupants}")
    try:
        done = serving.up()
    finally:
        on("spark-2", "sudo", "rm", occupants)
    assert done.code != 0
    assert_one_clear_error(
        done.output, f"spark-2: the GPU is held by /usr/bin/python3 (pid {pid}, unit ssh.service) with 19135 MiB"
    )
    assert containers() == before


@contextmanager
def docker_stopped(node: str) -> Iterator[None]:
    """Docker down on a node, containers and all."""
    on(node, "sudo", "systemctl", "stop", "docker.socket", "docker")
    try:
        yield
    finally:
        on(node, "sudo", "systemctl", "start", "docker.socket", "docker")


def test_docker_down_on_a_node_then_up_converges(serving: Stack) -> None:
    before = containers()
    with docker_stopped("spark-2"):
        done = serving.up()
        assert done.code != 0
        assert_one_clear_error(done.output, "spark-2: Docker does not answer", "systemctl start docker")
    # Docker's restart policy brings the worker back, serve follows: up waits for them and replaces nothing.
    done = serving.up()
    assert done.code == 0, done.output
    assert containers() == before
