"""The program's answers: outputs, secrets, and one clear error for each way that it cannot go on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import rpc

from hosts.faults import Fault
from tests.program.stack import CONTAINER, KEY, Outcome, Program
from tests.samples import IMAGE_ID, container, inspected, interface, settings, survey, surveys
from tests.samples.archives import oci

IMAGE = "vllm:1"
DOWN = Fault("spark-2", "192.168.200.13 does not answer", "is it switched on and connected?")


def refused(found: Outcome) -> str:
    """The one error of a run that registered nothing."""
    assert found.exit_code == 32, "the language host would add a message of its own"
    assert not found.resources
    assert len(found.errors) == 1
    assert "Traceback" not in found.errors[0]
    return found.errors[0]


def test_outputs_say_where_and_what_it_serves(program: Program) -> None:
    found = program.run().outputs
    assert found["endpoint"] == "http://10.1.230.180:30000/v1"
    assert found["model"] == "Qwen3.5-122B-A10B-FP8"
    assert found["ray"] == {"address": "192.168.200.12:6379", "version": "2.53.0"}
    assert (found["first_token_seconds"], found["tokens_per_second"]) == (0.12, 27.1)
    assert [(node["name"], node["role"], node["management"]) for node in found["nodes"]] == [
        ("spark-1", "head", "10.1.230.180"),
        ("spark-2", "worker", "192.168.200.13"),
    ]
    assert found["nodes"][0]["fabric"] == "192.168.200.12 on enp1s0f1np1 (shared by all nodes over RoCE)"
    assert "Authorization" not in found["curl"]


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:30000/v1"),  # noqa: S104 - the default
        ("::", "http://127.0.0.1:30000/v1"),
        ("192.168.200.12", "http://192.168.200.12:30000/v1"),
        ("::1", "http://[::1]:30000/v1"),
    ],
)
def test_gate_asks_where_the_api_listens(program: Program, listen: str, url: str) -> None:
    found = program.run(settings(listen=listen))
    assert found["serving"].inputs["url"] == url
    assert f"--host={listen}" in found["spark-1-serve"].inputs["command"]


def test_mistyped_key_beside_the_settings_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would believe that the API asks for it."""
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"dgx-spark-cluster:apikey": "x"}))
    first, next_step = refused(program.run()).splitlines()
    assert first == "dgx-spark-cluster:apikey: unknown setting; did you mean 'apiKey'?"
    assert next_step == "  next: correct Pulumi.test.yaml; docs/settings.md lists every setting"


def test_whatever_is_wrong_in_the_stacks_file_is_told_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"dgx-spark-cluster:apikey": "x"}))
    given: dict[str, Any] = {"key": KEY, "secrets": {"A-B": "x"}, "hub_token": "a b", "encrypted": False}
    text = refused(program.run(settings(portt=1), **given))
    assert [line.split(": ")[0].removeprefix("dgx-spark-cluster:") for line in text.splitlines()] == [
        "apikey",
        "apiKey",
        "secretEnvironment",
        "hubToken",
        "secretEnvironment.A-B",
        "hubToken",
        "cluster.portt",
        "  next",
    ]
    assert KEY not in text


def test_secret_among_the_settings_would_be_plain_in_the_state(program: Program) -> None:
    text = refused(program.run(cluster_encrypted=True))
    assert text.startswith("dgx-spark-cluster:cluster: holds a secret, which would stand in the state as plain text")
    assert "secretEnvironment.NAME" in text


def test_secrets_do_not_stand_in_the_way_of_a_destroy(program: Program) -> None:
    assert program.run(key=KEY, encrypted=False, cluster_encrypted=True, destroying=True).exit_code == 0


@pytest.mark.parametrize("key", ["", "sk-abc\r"])
def test_api_key_that_no_client_could_send_is_refused_before_anything_starts(program: Program, key: str) -> None:
    text = refused(program.run(key=key))
    assert text.startswith("dgx-spark-cluster:apiKey: must be")
    assert "sk-abc" not in text


def test_api_key_is_secret_wherever_it_goes(program: Program) -> None:
    found = program.run(key=KEY)
    assert rpc.is_rpc_secret(found["spark-1-serve"].inputs["envs"])
    assert found["spark-1-serve"].environment["VLLM_API_KEY"] == KEY
    for one in found.resources:
        plain = {name: value for name, value in one.inputs.items() if not rpc.is_rpc_secret(value)}
        assert KEY not in json.dumps(plain, default=str), one.urn
    assert KEY not in json.dumps(found.outputs)
    assert '"Authorization: Bearer $API_KEY"' in found.outputs["curl"]


def test_only_serve_has_the_key(program: Program) -> None:
    found = program.run(key=KEY)
    assert [one.name for one in found.of(CONTAINER) if "VLLM_API_KEY" in one.environment] == ["spark-1-serve"]


def test_without_a_key_nothing_is_secret(program: Program) -> None:
    found = program.run()
    assert not [one.urn for one in found.resources if any(rpc.is_rpc_secret(v) for v in one.inputs.values())]


@pytest.mark.parametrize("name", ["qwen3.5-122b", "it's"])
def test_curl_can_be_pasted_whatever_the_model_is_called(program: Program, name: str) -> None:
    *_, option, body = shlex.split(program.run(settings(served_model_name=name)).outputs["curl"])
    assert (option, json.loads(body)["model"]) == ("-d", name)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"portt": 1}, "dgx-spark-cluster:cluster.portt: unknown setting; did you mean 'port'?"),
        ({"nodes": []}, "dgx-spark-cluster:cluster.nodes: "),
        ({"tensor_parallel_size": 3}, "sizes that fit (tensor × pipeline): 2 × 1, 1 × 2"),
    ],
)
def test_wrong_settings_end_in_one_error_before_any_node_is_asked(
    program: Program, changes: dict[str, Any], text: str
) -> None:
    assert text in refused(program.run(settings(**changes)))


@pytest.mark.parametrize("value", ["[]", "5", "spark", "{"])
def test_setting_that_is_no_mapping_is_one_error(program: Program, value: str) -> None:
    assert "dgx-spark-cluster:cluster" in refused(program.run(value))


def test_dead_node_is_one_error(program: Program) -> None:
    assert refused(program.run(facts=surveys(1), faults=(DOWN,))) == str(DOWN)


def test_arguments_that_the_image_does_not_take_are_told_beside_a_node_that_does_not_answer(program: Program) -> None:
    text = refused(program.run(settings(engine_arguments=["--no-such-flag"]), facts=surveys(1), faults=(DOWN,)))
    assert text.startswith(str(DOWN))
    assert "`vllm serve` of image" in text
    assert "--no-such-flag" in text


def test_faults_of_survey_and_preflight_come_together(program: Program) -> None:
    text = refused(program.run(facts={"spark-1": survey(1, gpus=[], missing=["/a"])}, faults=(DOWN,)))
    assert text.count("\n  next: ") == 3
    assert text.startswith("spark-2: 192.168.200.13 does not answer")


def test_taken_port_and_held_gpu_do_not_hide_an_argument_that_the_engine_does_not_know(program: Program) -> None:
    listener = {"port": 30000, "address": "::", "process": "nginx", "pid": 7, "container": ""}
    occupant = {"pid": 8, "name": "python3", "mib": 19135, "container": "", "unit": ""}
    facts = {"spark-1": survey(1, listeners=[listener]), "spark-2": survey(2, gpu_processes=[occupant])}
    text = refused(program.run(settings(engine_arguments=["--seeed=1"]), facts=facts))
    assert "port 30000 is taken by nginx" in text
    assert "the GPU is held by python3" in text
    assert "does not know --seeed (did you mean --seed?)" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": [], "gpu_error": "NVIDIA-SMI has failed"},
        {"missing": ["/srv/hf"]},
        {"docker": {"version": "28", "image": inspected(), "containers": [], "gpu_runtimes": []}},
    ],
)
def test_image_is_not_asked_where_no_container_would_start(program: Program, changes: dict[str, Any]) -> None:
    """Docker would make the absent directory."""
    facts = {name: survey(index + 1, **changes) for index, name in enumerate(surveys())}
    text = refused(program.run(settings(engine_arguments=["--seeed=1"]), facts=facts))
    assert "--seeed" not in text


def test_ambiguous_fabric_is_one_error(program: Program) -> None:
    facts = {name: survey(index + 1, hcas=[], interfaces=[]) for index, name in enumerate(surveys())}
    found = program.run(facts=facts)
    assert "no subnet is shared by all nodes" in found.errors[0]
    assert not found.of(CONTAINER)


def test_different_images_of_one_name_are_one_error(program: Program) -> None:
    """C06."""
    docker = {"version": "28", "image": inspected("sha256:" + "2e" * 32), "containers": []}
    found = program.run(facts={"spark-1": survey(1), "spark-2": survey(2, docker=docker)})
    assert "is a different one on each node" in found.errors[0]
    assert IMAGE_ID in found.errors[0]
    assert not found.of(CONTAINER)


def test_image_of_one_node_is_wanted_on_all(program: Program) -> None:
    docker: dict[str, Any] = {"version": "28", "image": None, "containers": []}
    found = program.run(facts={"spark-1": survey(1), "spark-2": survey(2, docker=docker)})
    assert found["NodeImage spark-2"].inputs["image_id"] == IMAGE_ID


def test_same_image_in_another_kind_of_store_is_no_difference(program: Program) -> None:
    """C06, second half."""
    other = {**inspected(IMAGE_ID), "Id": "sha256:" + "3d" * 32}
    docker = {"version": "28", "driver": "overlayfs", "containerd": True, "image": other, "containers": []}
    found = program.run(facts={"spark-1": survey(1), "spark-2": survey(2, docker=docker)})
    assert not found.errors
    assert {one.name: one.inputs["image_id"] for one in found.of(":NodeImage")} == {
        "spark-1": IMAGE_ID,
        "spark-2": other["Id"],
    }
    assert len({one.inputs["identity"] for one in found.of(":NodeImage")}) == 1
    images = {one.name: one.inputs["image"] for one in found.of(CONTAINER)}
    assert images["spark-1-serve"] == IMAGE_ID
    assert images["spark-2-ray-worker"] == other["Id"]


def test_nodes_copy_from_the_one_that_has_the_image(program: Program) -> None:
    docker: dict[str, Any] = {"version": "28", "image": None, "containers": []}
    found = program.run(facts={"spark-1": survey(1, docker=docker), "spark-2": survey(2)})
    head, worker = found["NodeImage spark-1"], found["NodeImage spark-2"]
    assert head.inputs["source"]["address"] == "192.168.200.13"
    assert head.inputs["source"]["connection"]["node"] == "spark-2"
    assert not worker.inputs.get("source")
    assert found.reaches(head, worker)


def test_without_the_image_anywhere_the_head_pulls_and_the_others_copy(program: Program) -> None:
    docker: dict[str, Any] = {"version": "28", "image": None, "containers": []}
    found = program.run(facts={name: survey(i + 1, docker=docker) for i, name in enumerate(surveys())})
    head, worker = found["NodeImage spark-1"], found["NodeImage spark-2"]
    assert not head.inputs.get("identity")
    assert not head.inputs.get("source")
    assert worker.inputs["identity"] == "1f" * 32, "what the head's turned out to be"
    assert worker.inputs["source"]["address"] == "192.168.200.12"


def test_directory_is_built_from_on_the_head_and_copied_to_the_others(program: Program, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM vllm:1\n")
    found = program.run(settings(image="ours:1", image_build={"context": str(tmp_path)}))
    assert found["NodeImage spark-1"].inputs["build"]["dockerfile"] == "Dockerfile"
    assert found["NodeImage spark-2"].inputs["source"]["connection"]["node"] == "spark-1"
    assert found.reaches(found["NodeImage spark-2"], found["NodeImage spark-1"])


def test_paths_of_this_machine_may_be_in_the_home_directory(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    archive = oci(tmp_path / "image.tar", IMAGE, [b"base", b"top"])
    found = program.run(settings(image=IMAGE, image_archive="~/image.tar"))
    assert {one.inputs["image_id"] for one in found.of(":NodeImage")} == {archive.id}
    (tmp_path / "build").mkdir()
    (tmp_path / "build/Dockerfile").write_text("FROM vllm:1\n")
    absent: dict[str, Any] = {"version": "28", "image": None, "containers": []}
    facts = {
        name: survey(i + 1, docker=absent, image_room={"path": "/var/lib/docker", "free": 10**12})
        for i, name in enumerate(surveys())
    }
    found = program.run(settings(image="ours:1", image_build={"context": "~/build"}), facts=facts)
    assert found["NodeImage spark-1"].inputs["build"]["context"] == "~/build"


def test_archive_decides_which_image_is_meant(program: Program, tmp_path: Path) -> None:
    archive = oci(tmp_path / "image.tar", IMAGE, [b"base", b"top"])
    found = program.run(settings(image=IMAGE, image_archive=str(archive.path)))
    assert {one.inputs["image_id"] for one in found.of(":NodeImage")} == {archive.id}
    assert not found["NodeImage spark-1"].inputs.get("source")


def test_absent_archive_is_one_error(program: Program) -> None:
    found = program.run(settings(image=IMAGE, image_archive="/nowhere/image.tar"))
    assert "image archive /nowhere/image.tar" in found.errors[0]


def test_destroy_registers_nothing_and_is_not_stopped_by_preflight(program: Program) -> None:
    taken = survey(1, gpus=[], missing=["/a"], model={"error": "gone"})
    found = program.run(facts={"spark-1": taken, "spark-2": survey(2)}, destroying=True)
    assert (found.exit_code, found.errors, found.resources) == (0, [], [])


def test_destroy_with_a_dead_node_says_how_to_clean_the_others(program: Program) -> None:
    text = refused(program.run(facts=surveys(1), faults=(DOWN,), destroying=True))
    assert text.startswith(str(DOWN))
    assert "pulumi destroy --run-program=false --refresh=false --continue-on-error" in text


def test_second_stack_on_the_same_hosts_is_one_error(program: Program) -> None:
    docker = {"version": "28", "containers": [container("dgx-spark-cluster-prod-serve", "serve", stack="prod")]}
    assert "stack 'prod' already runs serve here" in refused(
        program.run(facts={"spark-1": survey(1, docker=docker), "spark-2": survey(2)})
    )


def test_readings_are_shown_and_enter_no_resource(program: Program) -> None:
    """What varies from run to run: a no-op stays one."""
    known = {
        name: survey(i + 1, memory={"total": 2**37, "available": 98765432100}, reached={"seconds": 0.321, "ahead": 1.5})
        for i, name in enumerate(surveys())
    }
    found = program.run(facts=known)
    assert [line.split("; ")[0] for line in found.lines] == [f"{name}: answered in 0.32 s" for name in known]
    assert not found.warnings
    stored = json.dumps([one.inputs for one in found.resources] + [found.outputs], default=str)
    for reading in ("98765432100", "0.321", "1.5"):
        assert reading not in stored
    again = program.run(facts=surveys())
    assert {one.urn: one.inputs for one in again.resources} == {one.urn: one.inputs for one in found.resources}


def test_warnings_stop_nothing(program: Program) -> None:
    """C21 and C23."""
    ends = [interface("enp1s0f1np1", "192.168.200.13/24", mtu=9000)]
    found = program.run(facts={"spark-1": survey(1), "spark-2": survey(2, interfaces=ends, devices=[])})
    assert (found.exit_code, found.errors) == (0, [])
    assert ["the MTU of the fabric differs" in text for text in found.warnings] == [True, False]
    assert "falls back to sockets (NET/Socket)" in found.warnings[1]
    assert found.of(CONTAINER)


def test_required_rdma_that_is_missing_is_an_error(program: Program) -> None:
    """C21."""
    found = program.run(settings(require_rdma=True), facts={"spark-1": survey(1), "spark-2": survey(2, devices=[])})
    assert "spark-2: NCCL cannot use RDMA here" in refused(found)
