"""Rules on a whole stack: fabric addresses, and serve behind its gates."""

from __future__ import annotations

import pytest

from policies.registered import SERVE_GATE
from tests.policies.recorded import (
    FABRIC,
    HEAD,
    KEY,
    UNKNOWN,
    UNKNOWN_LIST,
    Recorded,
    check,
    cluster,
    gpu_gate,
    head,
    labels,
    secret,
    serve,
    worker,
)

MANAGEMENT = "10.1.230.180"
OWN = "--node-ip-address=192.168.200.13"


@pytest.mark.parametrize("policy", ["fabric-addresses", "serve-behind-gates"])
def test_the_cluster_keeps_every_rule(policy: str) -> None:
    assert check(policy, *cluster().values()) == []


@pytest.mark.parametrize("policy", ["fabric-addresses", "serve-behind-gates"])
def test_a_stack_without_roles_keeps_every_rule(policy: str) -> None:
    assert check(policy) == []


@pytest.mark.parametrize("policy", ["fabric-addresses", "serve-behind-gates"])
def test_a_cluster_of_ray_alone_keeps_every_rule(policy: str) -> None:
    assert check(policy, *(cluster()[name] for name in ("gate", "head", "worker"))) == []


@pytest.mark.parametrize(
    "member",
    [
        {"gate": gpu_gate(nodes=UNKNOWN_LIST)},
        {"gate": gpu_gate(nodes=[UNKNOWN])},
        {"gate": gpu_gate(nodes=[{"name": name, "address": UNKNOWN} for name in FABRIC])},
        {"gate": gpu_gate(address=UNKNOWN)},
        {"worker": worker(command=UNKNOWN_LIST, envs=UNKNOWN_LIST)},
        {"worker": worker(command=["start", f"--address={HEAD}", UNKNOWN], envs=[UNKNOWN])},
        {"worker": worker(labels=UNKNOWN_LIST)},
        {"worker": worker(labels=labels({"role": "ray-worker", "node": UNKNOWN}))},
        {"serve": serve(envs=secret(UNKNOWN_LIST))},
        {"serve": serve(labels=UNKNOWN_LIST)},
    ],
)
@pytest.mark.parametrize("policy", ["fabric-addresses", "serve-behind-gates"])
def test_what_is_unknown_at_preview_breaks_no_rule(policy: str, member: dict[str, Recorded]) -> None:
    assert check(policy, *cluster(**member).values()) == []


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (
            {"head": head(command=["start", "--head", f"--node-ip-address={MANAGEMENT}"])},
            f"--node-ip-address is {MANAGEMENT}, not 192.168.200.12",
        ),
        ({"head": head(envs=[f"VLLM_HOST_IP={MANAGEMENT}"])}, "VLLM_HOST_IP is not 192.168.200.12"),
        ({"worker": worker(command=["start", f"--address={HEAD}"])}, "--node-ip-address is not given"),
        ({"worker": worker(envs=[])}, "VLLM_HOST_IP is not 192.168.200.13"),
        ({"worker": worker(envs=None)}, "VLLM_HOST_IP is not 192.168.200.13"),
        ({"worker": worker(command=["start", f"--address={MANAGEMENT}:6379", OWN])}, f"not {HEAD}"),
        ({"worker": worker(command=["start", "--address", "192.168.200.12:6380", OWN])}, f"not {HEAD}"),
        ({"serve": serve(envs=secret([f"VLLM_HOST_IP={KEY}"]))}, "VLLM_HOST_IP is not 192.168.200.12"),
        (
            {"gate": gpu_gate(nodes=[{"name": "spark-1", "address": FABRIC["spark-1"]}])},
            "does not expect a node spark-2",
        ),
    ],
)
def test_an_address_off_the_fabric_is_refused(member: dict[str, Recorded], said: str) -> None:
    (text,) = check("fabric-addresses", *cluster(**member).values())
    assert text.startswith("urn:pulumi:spark::")
    assert said in text
    assert "next: " in text
    assert KEY not in text


def test_an_option_may_stand_apart_from_its_value() -> None:
    apart = worker(command=["start", "--address", HEAD, "--node-ip-address", "192.168.200.13"])
    assert check("fabric-addresses", *cluster(worker=apart).values()) == []


def test_without_a_gate_there_is_no_address_to_compare_with() -> None:
    assert check("fabric-addresses", head(envs=[])) == []


def test_ipv6_addresses_are_compared_whole() -> None:
    gate = gpu_gate(address="fd00::12:6379", nodes=[{"name": "spark-1", "address": "fd00::12"}])
    assert check("fabric-addresses", gate, serve(envs=["VLLM_HOST_IP=fd00::12"])) == []


def test_serve_that_skips_the_gpu_gate_is_refused() -> None:
    stack = cluster()
    stack["serve"].depends_on = [stack["head"], stack["worker"]]
    (text,) = check("serve-behind-gates", *stack.values())
    assert "serve on spark-1 (spark-1-serve): does not depend on a GpuGate" in text
    assert text.startswith(stack["serve"].urn)


def test_serve_behind_something_behind_the_gate_passes() -> None:
    stack = cluster()
    between = Recorded("command:local:Command", "between", {}, depends_on=[stack["gate"]])
    stack["serve"].depends_on = [between]
    assert check("serve-behind-gates", *stack.values(), between) == []


def test_serve_that_no_gate_verifies_is_refused() -> None:
    lone = Recorded(SERVE_GATE, "serving", {})
    stack = cluster()
    stack["verified"] = lone
    (text,) = check("serve-behind-gates", *stack.values())
    assert "no ServeGate depends on it" in text
