"""Rules on one resource: what keeps them, what breaks them, what is not known yet."""

from __future__ import annotations

from typing import Any

import pytest

from policies.pack import POLICIES
from policies.registered import CONTAINER
from tests.policies.recorded import (
    ID,
    KEY,
    UNKNOWN,
    UNKNOWN_LIST,
    Recorded,
    check,
    gpu_gate,
    head,
    labels,
    node_image,
    secret,
    serve,
    worker,
)

RESOURCE_POLICIES = [
    "container-owned",
    "container-on-its-node",
    "container-confined",
    "image-pinned",
    "image-pinned-lab",
    "api-key",
    "api-key-lab",
]
NO_KEY = ["RAY_ADDRESS=192.168.200.12:6379", "VLLM_HOST_IP=192.168.200.12"]


@pytest.mark.parametrize("policy", RESOURCE_POLICIES)
def test_the_cluster_keeps_every_rule(policy: str) -> None:
    assert check(policy, head(), worker(), serve(), node_image(), gpu_gate()) == []


@pytest.mark.parametrize("policy", RESOURCE_POLICIES)
@pytest.mark.parametrize(
    "unknown",
    [
        {"labels": UNKNOWN_LIST},
        {"labels": labels({"stack": UNKNOWN, "role": UNKNOWN, "node": UNKNOWN})},
        {"labels": [UNKNOWN]},
        {"labels": [{"label": UNKNOWN, "value": "x"}]},
        {"image": UNKNOWN},
        {"envs": UNKNOWN_LIST},
        {"envs": secret(UNKNOWN_LIST)},
        {"envs": ["A=b", UNKNOWN]},
        {"command": UNKNOWN_LIST, "envs": NO_KEY},
        {"command": ["serve", "--host", UNKNOWN], "envs": NO_KEY},
        {"privileged": UNKNOWN, "pidMode": UNKNOWN, "capabilities": UNKNOWN, "volumes": UNKNOWN_LIST},
        {"capabilities": {"adds": UNKNOWN_LIST}, "volumes": [UNKNOWN], "mounts": [{"source": UNKNOWN}]},
        {"capabilities": {"adds": [UNKNOWN]}, "volumes": [{"hostPath": UNKNOWN}]},
    ],
)
def test_what_is_unknown_at_preview_breaks_no_rule(policy: str, unknown: dict[str, Any]) -> None:
    assert check(policy, serve(**unknown)) == []


@pytest.mark.parametrize("missing", ["stack", "role", "node"])
def test_a_container_without_a_label_is_refused(missing: str) -> None:
    rest = {"stack": "spark", "role": "ray-head", "node": "spark-1"}
    del rest[missing]
    (text,) = check("container-owned", head(labels=labels(rest)))
    assert f"has no label dgx-spark-cluster.{missing}" in text
    assert "spark-1-ray-head" in text
    assert "next: " in text


def test_a_container_without_any_labels_is_refused() -> None:
    assert len(check("container-owned", Recorded(CONTAINER, "stray", {"name": "stray"}))) == 3


def test_a_container_of_another_stack_is_refused() -> None:
    of_lab = labels({"stack": "lab", "role": "ray-head", "node": "spark-1"})
    (text,) = check("container-owned", head(labels=of_lab))
    assert "says lab, but the stack is spark" in text


@pytest.mark.parametrize("provider", ["default", "default_5_2_0", None])
def test_the_default_provider_is_refused(provider: str | None) -> None:
    (text,) = check("container-on-its-node", head(provider=provider))
    assert text.startswith("ray-head on spark-1 (spark-1-ray-head): is on the default Docker provider")


def test_the_default_provider_is_refused_whatever_the_labels() -> None:
    assert len(check("container-on-its-node", head(provider="default_5_2_0", labels=UNKNOWN_LIST))) == 1


def test_a_container_on_another_nodes_provider_is_refused() -> None:
    (text,) = check("container-on-its-node", head(provider="spark-2"))
    assert "labelled for node spark-1, but on the Docker provider of spark-2" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privileged": True}, "is privileged"),
        ({"pidMode": "host"}, "pid_mode host"),
        ({"capabilities": {"adds": ["CAP_SYS_ADMIN"]}}, "SYS_ADMIN"),
        ({"capabilities": {"adds": ["sys_admin"]}}, "SYS_ADMIN"),
        ({"capabilities": {"adds": ["ALL"]}}, "ALL"),
        ({"volumes": [{"hostPath": "/var/run/docker.sock", "containerPath": "/s"}]}, "mounts /var/run/docker.sock"),
        ({"volumes": [{"hostPath": "//run/./docker.sock", "containerPath": "/s"}]}, "mounts /run/docker.sock"),
        ({"volumes": [{"hostPath": "/run", "containerPath": "/s"}]}, "mounts /run,"),
        ({"mounts": [{"type": "bind", "source": "/", "target": "/node"}]}, "mounts /,"),
    ],
)
def test_a_container_that_controls_its_node_is_refused(changes: dict[str, Any], said: str) -> None:
    (text,) = check("container-confined", worker(**changes))
    assert text.startswith("ray-worker on spark-2 (spark-2-ray-worker): ")
    assert said in text


def test_harmless_capabilities_and_mounts_pass() -> None:
    harmless = {
        "privileged": False,
        "pidMode": None,
        "capabilities": {"adds": ["CAP_IPC_LOCK"], "drops": ["ALL"]},
        "mounts": [{"type": "volume", "source": "cache", "target": "/root/.cache"}],
    }
    assert check("container-confined", worker(**harmless)) == []


@pytest.mark.parametrize("image", ["vllm:latest", "vllm", "vllm@sha256:abc", "sha256:abc", f"{ID}-dirty"])
@pytest.mark.parametrize(("policy", "stack"), [("image-pinned", "spark"), ("image-pinned-lab", "lab")])
def test_an_image_that_is_not_pinned_is_reported(image: str, policy: str, stack: str) -> None:
    (on_container,) = check(policy, head(image=image, stack=stack))
    (on_node,) = check(policy, node_image(image, stack=stack))
    assert f"image {image} is not pinned" in on_container
    assert on_node.startswith(f"spark-1: image {image} is not pinned")
    assert "next: set `image`" in on_node


@pytest.mark.parametrize("image", [ID, f"vllm@{ID}", f"host:5000/x/vllm:1@{ID}"])
def test_a_digest_or_an_id_pins_an_image(image: str) -> None:
    assert check("image-pinned", head(image=image), node_image(image)) == []


def test_an_image_that_is_built_is_pinned_by_its_directory() -> None:
    assert check("image-pinned", node_image("ours:1", build={"context": "image", "digest": "d1"})) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"envs": NO_KEY},
        {"envs": secret([*NO_KEY, "VLLM_API_KEY="])},
        {"envs": NO_KEY, "command": ["serve", "m"]},
        {"envs": NO_KEY, "command": ["serve", "m", "--host", "10.1.230.180"]},
        {"envs": NO_KEY, "command": ["serve", "m", "--host=127.0.0.1", "--host=::"]},
    ],
)
@pytest.mark.parametrize(("policy", "stack"), [("api-key", "spark"), ("api-key-lab", "lab")])
def test_an_open_api_without_a_key_is_reported(changes: dict[str, Any], policy: str, stack: str) -> None:
    (text,) = check(policy, serve(**changes, stack=stack))
    assert "without a key" in text
    assert "pulumi config set --secret dgx-spark-cluster:apiKey" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_the_loopback_needs_no_key(host: str) -> None:
    assert check("api-key", serve(envs=NO_KEY, command=["serve", "m", f"--host={host}"])) == []


def test_the_key_is_asked_of_serve_only() -> None:
    assert check("api-key", head(), worker()) == []


@pytest.mark.parametrize("policy", ["image-pinned", "api-key"])
def test_the_lab_is_judged_by_its_own_policy_only(policy: str) -> None:
    changes: dict[str, Any] = {"image": "vllm:1", "envs": NO_KEY}
    assert check(policy, serve(**changes, stack="lab")) == []
    assert check(f"{policy}-lab", serve(**changes)) == []


def test_no_violation_shows_a_value_of_the_environment() -> None:
    broken = serve(
        envs=secret([f"VLLM_HOST_IP={KEY}", f"VLLM_API_KEY={KEY}", f"={KEY}", KEY]),
        labels=labels({"role": "serve"}),
        privileged=True,
        image="vllm:1",
    )
    texts = [text for policy in POLICIES for text in check(policy.name, broken, gpu_gate())]
    assert len(texts) >= 4
    assert KEY not in "".join(texts)
