"""Settings that contradict each other: where the fault is, what is allowed, and what comes near."""

from __future__ import annotations

from typing import Any

import pytest

from settings import secret_faults, token_faults
from tests.samples import cluster
from tests.unit.test_settings import KEY, node, refusal

MOUNT = {"source": "/srv/a", "target": "/a"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"restart": "unless-stoped"}, "got \"unless-stoped\"; did you mean 'unless-stopped'?"),
        ({"restart": False}, "restart: must be one of unless-stopped, always, on-failure, no, got false"),
        ({"ulimits": [{"name": "memlok", "soft": 1, "hard": 1}]}, "did you mean 'memlock'?"),
        ({"nodes": [node(environment={"NCCL-DEBUG": "1"})]}, "did you mean 'NCCL_DEBUG'?"),
        ({"nodes": [node(ulimits=[{"nam": "core", "soft": 1, "hard": 1}])]}, "[0].nam: unknown setting; did you mean"),
        ({"nodes": [node(mounts=[{"sorce": "/a", "target": "/b"}])]}, "mounts[0].sorce: unknown setting; did you mean"),
        ({"nodes": [node(identity_fil="x")]}, "nodes[0].identity_fil: unknown setting; did you mean 'identity_file'?"),
        ({"port": 65536}, "port: must be less than or equal to 65535, got 65536"),
        ({"nodes": []}, "nodes: must have at least 1 item, got []"),
        ({"environment": {"a b\n": "x"}}, 'environment["a b\\n"]: '),
        ({"environment": {"A": 5}}, "environment.A: must be a valid string, got 5"),
        ({"labels": {"-": "x"}}, "labels.-: its name must be letters"),
        ({"labels": {"a": ""}}, 'labels.a: must be one line of text, not empty, got ""'),
        ({"environment": {"A": "\0"}}, "environment.A: must be text without NUL"),
        ({"environment": {"A B": "x"}}, 'environment["A B"]: its name must be letters'),
        ({"mounts": [MOUNT | {"target": "//"}]}, "mounts[0].target: must be an absolute path in the containers, below"),
        ({"nodes": [node(fabric="0.0.0.0")]}, "nodes[0].fabric: must be the address of one host"),  # noqa: S104
        ({"nodes": [node(fabric="::1")]}, "nodes[0].fabric: must be the address of one host"),
        ({"nodes": [node(fabric="224.0.0.1")]}, "nodes[0].fabric: must be the address of one host"),
        ({"nodes": [node(fabric="fe80::1%eth0")]}, "nodes[0].fabric: must be a plain address"),
        ({"nodes": [node(fabric="::ffff:10.0.0.1")]}, "nodes[0].fabric: must be a plain address"),
        ({"weights": {"endpoint": "https://u:p@hub"}}, "endpoint: must be an address with http:// or https://, w"),
        ({"labels": {"dgx-spark-cluster.stack": "x"}}, "labels.dgx-spark-cluster.stack: "),
        ({"interface": "a/b"}, "interface: must be the name of a network interface"),
        ({"hcas": ["a,b"]}, "hcas[0]: must be names of RDMA devices"),
        ({"gid_index": 256}, "gid_index: must be less than or equal to 255"),
        ({"identity_file": ""}, "identity_file: must be one line of text, not empty"),
        ({"stale_units": ["vllm-cluster"]}, "stale_units[0]: must be the full name of a systemd unit, such as vllm-"),
        ({"stale_containers": ["-f"]}, "stale_containers[0]: must be the name of a container"),
        ({"stale_units": ["docker.service"]}, "stale_units[0]: the program reaches the node by docker.service"),
        ({"ssh_config": "~other/config"}, "ssh_config: must be a path on this machine, or one in the home directory"),
        ({"image_archive": "~"}, "image_archive: must be a path on this machine, or one in the home directory: ~/…"),
        ({"model": "/"}, "model: must be the directory of one model"),
    ],
)  # fmt: skip
def test_value_is_refused_with_what_is_allowed(changes: dict[str, Any], wanted: str) -> None:
    assert wanted in refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"mounts": [MOUNT, MOUNT | {"target": "/a/"}]}, ".mounts: /a is given 2 times"),
        ({"mounts": [MOUNT | {"target": "/srv/models/Qwen3.5-122B-A10B-FP8"}]}, ".mounts[0].target: the model is"),
        ({"ulimits": [{"name": "core", "soft": 1, "hard": 2}] * 2}, ".ulimits: core is given 2 times"),
        ({"ulimits": [{"name": "core", "soft": 3, "hard": 2}]}, ".ulimits[0].soft: must not be above the hard limit 2"),
        ({"ulimits": [{"name": "core", "soft": -1, "hard": 2}]}, ".ulimits[0].soft: must not be above the hard limit"),
        ({"nodes": [node(ssh="local", ssh_port=22)]}, ".nodes[0].ssh_port: a local node is not reached over ssh"),
        ({"nodes": [node(ssh="local", identity_file="k")]}, "remove `identity_file`"),
        ({"nodes": [node(ssh="a@b:22", ssh_port=23)]}, ".nodes[0].ssh_port: `ssh` already says port 22"),
        ({"ipc": "host", "shm_size_mib": 1024}, ".shm_size_mib: has no effect on the host's /dev/shm"),
        ({"nodes": [node(ipc="host", shm_size_mib=1024)]}, ".nodes[0].shm_size_mib: has no effect"),
        ({"shm_size_mib": 1024}, ".shm_size_mib: 1024 MiB cannot hold ray.object_store_bytes"),
        ({"engine_arguments": ["--seed=1", "--port=1"]}, ".engine_arguments[1]: --port is set from `port`: set that"),
        ({"engine_arguments": ["--tensor_parallel_size", "2"]}, "[0]: --tensor-parallel-size is set from `tensor_par"),
        ({"engine_arguments": ["-tp", "2"]}, ".engine_arguments[0]: -tp is set from `tensor_parallel_size`"),
        ({"engine_arguments": ["--api-key=x"]}, "pulumi config set --secret apiKey"),
        ({"engine_arguments": ["--hf-token=x"]}, "give it in `secretEnvironment`"),
        ({"ray": {"arguments": ["--head"]}}, ".ray.arguments[0]: --head is the program's own choice: remove it"),
        ({"engine_arguments": ["--data-parallel-size=2"]}, "[0]: --data-parallel-size is the program's"),
        ({"engine_arguments": ["--headless"]}, "[0]: --headless is the program's own choice: remove it"),
        ({"nodes": [node(ray_arguments=["--port=1"])]}, ".nodes[0].ray_arguments[0]: --port is set from `ray.port`"),
        (
            {"stale_containers": ["a", "dgx-spark-cluster-lab-serve"]},
            ".stale_containers[1]: dgx-spark-cluster-lab-serve is a name of the program's own: remove it",
        ),
        (
            {"nodes": [node(stale_containers=["two-serve"], container_prefix="two")]},
            ".nodes[0].stale_containers[0]: two-serve is a name of the program's own",
        ),
        ({"nodes": [node(), node(name="b", ssh="b", jump="b")]}, ".nodes[1].jump: the jump hosts form a circle: b → b"),
    ],
)
def test_contradiction_is_named_by_its_path(changes: dict[str, Any], wanted: str) -> None:
    text = refusal(**changes)
    assert wanted in text
    assert all(line.startswith(KEY) for line in text.splitlines())


DASHBOARD = {"dashboard": True}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"port": 8265, "ray": DASHBOARD},
            ".port: port and that of Ray's dashboard are both 8265: give them different",
        ),
        ({"ray": DASHBOARD | {"port": 8265}}, ".ray.port: ray.port and that of Ray's dashboard are both 8265"),
        ({"ray": DASHBOARD | {"arguments": ["--dashboard-port=30000"]}}, ".port: port and that of Ray's dashboard are"),
        ({"ray": DASHBOARD, "nodes": [node(ray_arguments=["--dashboard-port", "6379"])]}, "dashboard are both 6379"),
        ({"ray": {"arguments": ["--node-manager-port=6379"]}}, "--node-manager-port and ray.port are both 6379"),
        ({"ray": {"arguments": ["--ray-client-server-port", "30000"]}}, "-server-port and port are both 30000"),
    ],
)
def test_ports_of_one_host_are_different(changes: dict[str, Any], wanted: str) -> None:
    assert wanted in refusal(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 8265},
        {"port": 8265, "ray": DASHBOARD, "serve": False},
        {"port": 8265, "ray": DASHBOARD | {"arguments": ["--dashboard-port=8300"]}},
    ],
)
def test_port_of_the_dashboard_is_free_where_that_is_elsewhere(changes: dict[str, Any]) -> None:
    assert cluster(**changes).port == 8265


def test_contradictions_are_named_at_once() -> None:
    nodes = [node(), node(ssh="other"), node(name="c", ssh="c", jump="nobody")]
    lines = refusal(nodes=nodes, port=6379, tensor_parallel_size=7).splitlines()
    assert [line.removeprefix(KEY).split(":")[0] for line in lines] == [
        ".nodes[1].name", ".nodes[2].jump", ".port", ".tensor_parallel_size",
    ]  # fmt: skip


def test_only_the_nodes_of_a_circle_are_blamed() -> None:
    nodes = [{"name": name, "ssh": name, "jump": jump} for name, jump in (("a", "b"), ("b", "c"), ("c", "b"))]
    assert [line.split(":")[1] for line in refusal(nodes=nodes).splitlines()] == [
        "cluster.nodes[1].jump",
        "cluster.nodes[2].jump",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "hf_abc") for name in ("HF_TOKEN", "HF_TOKEN_2", "AWS_SECRET_ACCESS_KEY", "wandb_api_key")),
        *((name, "hf_abc") for name in ("DB_PASSWORD", "DB_PASS", "GITHUB_PAT")),
        ("HTTPS_PROXY", "http://user:hf_abc@proxy:3128"),
        ("MIRROR", "https://:hf_abc@mirror/simple"),
    ],
)
def test_secret_in_the_environment_is_refused_with_the_way_to_give_it(name: str, value: str) -> None:
    for changes in {"environment": {name: value}}, {"nodes": [node(environment={name: value})]}:
        text = refusal(**changes)
        assert f"environment.{name}: environment {name} looks like a secret" in text
        assert f"pulumi config set --secret --path 'dgx-spark-cluster:secretEnvironment.{name}'" in text
        assert "hf_abc" not in text


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "VLLM_MAX_TOKENS", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG"])
def test_variable_that_only_sounds_like_a_secret_is_accepted(name: str) -> None:
    assert cluster(environment={name: "x"}).environment == {name: "x"}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("hf_abc", "dgx-spark-cluster:secretEnvironment: must be"),
        ({"A-B": "hf_abc"}, "dgx-spark-cluster:secretEnvironment.A-B: must be"),
        ({"A": ["hf_abc"]}, "dgx-spark-cluster:secretEnvironment.A: must be"),
        ({"VLLM_API_KEY": "hf_abc"}, "secretEnvironment.VLLM_API_KEY: environment VLLM_API_KEY is set by the program"),
    ],
)
def test_wrong_secrets_are_refused_without_showing_them(value: object, wanted: str) -> None:
    text = "\n".join(secret_faults(value))
    assert wanted in text
    assert "hf_abc" not in text


@pytest.mark.parametrize("name", ["apiKey", "hubToken"])
@pytest.mark.parametrize("token", ["hf_abc\n", "hf_abc\r", "hf_abc def", "", "hf_ä"])
def test_token_that_no_client_could_send_is_refused_without_showing_it(name: str, token: str) -> None:
    (text,) = token_faults(name, token)
    assert text.startswith(f"dgx-spark-cluster:{name}: must be")
    assert f"pulumi config set --secret {name}" in text
    assert not token or token.strip() not in text


def test_token_of_any_signs_that_http_carries_is_taken() -> None:
    assert list(token_faults("apiKey", "hf_aBc-1.x/y+z==!#")) == []
