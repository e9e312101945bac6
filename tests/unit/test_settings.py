"""Settings: what is accepted, what is refused, and how a refusal reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hosts.weights.look import locate
from settings import Cluster, SettingsError, key_faults, parse
from tests.samples import MINIMAL, cluster, settings

ROOT = Path(__file__).parents[2]
SHIPPED = [ROOT / f"Pulumi.{name}.yaml" for name in ("lab", "spark")]
"""A checkout may have a user's own beside these."""
KEY = "dgx-spark-cluster:cluster"

FULL: dict[str, Any] = {
    "nodes": [
        {
            "name": "spark-1",
            "ssh": "aurora@[fd00:1::5]:2222",
            "identity_file": "~/.ssh/spark",
            "fabric": "192.168.200.12",
            "gpus": 2,
            "environment": {"NCCL_DEBUG": "INFO"},
            "ray_arguments": ["--num-cpus=4"],
            "restart": "no",
        },
        {"name": "spark-2", "ssh": "spark-two", "jump": "spark-1", "fabric": "192.168.200.13", "gpus": 2},
    ],
    "image": "registry.lan:5000/vllm/gb10:1.2",
    "image_archive": "image.tar",
    "keep_image": False,
    "serve": True,
    "model": "/srv/models/qwen",
    "weights": {
        "revision": "v1",
        "download_to": "~/hub",
        "endpoint": "http://mirror.lan",
        "streams": 8,
        "verify": "checksum",
        "keep": False,
    },
    "served_model_name": "qwen",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "port": 8000,
    "listen": "::",
    "engine_arguments": ["--enforce-eager"],
    "environment": {"HF_HOME": "/hf"},
    "mounts": [{"source": "/srv/hf", "target": "/hf", "read_only": False}],
    "devices": ["/dev/infiniband", "/dev/nvidia-caps"],
    "ulimits": [{"name": "stack", "soft": 67108864, "hard": -1}],
    "restart": "always",
    "interface": "enp1s0f1np1",
    "hcas": ["rocep1s0f1", "roceP2p1s0f1"],
    "gid_index": 3,
    "ssh_port": 22,
    "identity_file": "~/.ssh/id_ed25519",
    "home": "/home/aurora",
    "ipc": "shared",
    "shm_size_mib": 4096,
    "labels": {"com.example.team": "lab"},
    "container_prefix": "desk",
    "stale_units": ["vllm@gpu0.service"],
    "stale_containers": ["reranker"],
    "restore_units": False,
    "drop_page_cache": True,
    "require_rdma": True,
    "ray": {"port": 6380, "dashboard": True, "object_store_bytes": 100_000_000, "arguments": ["--num-gpus=1"]},
    "deadlines": {
        "connect": 3, "survey": 20, "gpus": 60, "load": 900.5, "completion": 30, "probe": 5, "stop": 20,
    },
    "ssh_config": ".ssh/config",
}  # fmt: skip


def refusal(**changes: Any) -> str:
    """The text with which changed settings are refused."""
    with pytest.raises(SettingsError) as caught:
        parse(settings(**changes))
    return str(caught.value)


def node(**changes: Any) -> dict[str, Any]:
    return {"name": "spark-1", "ssh": "aurora@10.1.230.180", **changes}


def test_minimal_settings_give_the_field_case() -> None:
    found = cluster()
    assert (found.head.name, [worker.name for worker in found.workers]) == ("spark-1", ["spark-2"])
    assert (found.gpus, found.tensor_parallel, found.pipeline_parallel_size) == (2, 2, 1)
    assert (found.port, found.ray.port, str(found.listen)) == (30000, 6379, "0.0.0.0")  # noqa: S104 - the default
    assert found.model_name == "Qwen3.5-122B-A10B-FP8"
    assert [hop.name for hop in found.route(found.node("spark-2"))] == ["spark-1", "spark-2"]


def test_every_setting_can_be_given() -> None:
    found = parse(FULL)
    assert set(FULL) | {"image_build"} == set(Cluster.model_fields), "the sample leaves a setting out"
    assert (found.gpus, found.tensor_parallel, found.model_name) == (4, 2, "qwen")
    assert found.model_dump(mode="json", exclude_unset=True) == FULL


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_stack_settings_are_valid(file: Path) -> None:
    assert parse(yaml.safe_load(file.read_text())["config"][KEY]).nodes


@pytest.mark.parametrize(
    ("ssh", "user", "host", "port"),
    [
        ("aurora@10.1.230.180", "aurora", "10.1.230.180", None),
        ("aurora@10.1.230.180:2222", "aurora", "10.1.230.180", 2222),
        ("spark-one", None, "spark-one", None),
        ("spark-ab12.local:22", None, "spark-ab12.local", 22),
        ("aurora@[fd00::2]", "aurora", "fd00::2", None),
        ("[fd00::2]:2222", None, "fd00::2", 2222),
        ("_svc.user-1@host", "_svc.user-1", "host", None),
    ],
)
def test_ssh_address_is_taken_apart(ssh: str, user: str | None, host: str, port: int | None) -> None:
    found = parse(settings(nodes=[node(ssh=ssh)])).head
    assert (found.user, found.host, found.port, found.local) == (user, host, port, False)


def test_local_node_needs_no_login() -> None:
    assert parse(settings(nodes=[node(ssh="local")])).head.local


@pytest.mark.parametrize(
    "ssh",
    ["", "a b", "-oProxyCommand=x", "u@-host", "u@h:", "u@h:x", "fd00::2", "u@h;rm", "u@h:123456", "U S@h", "u@h\n"],
)
def test_malformed_ssh_address_is_refused_in_words(ssh: str) -> None:
    text = refusal(nodes=[node(ssh=ssh)])
    assert text.startswith(f"{KEY}.nodes[0].ssh: must be user@host[:port], an alias of the ssh configuration, or local")


def test_unknown_setting_among_many_is_not_followed_by_all_of_them() -> None:
    assert refusal(zzz=2) == f"{KEY}.zzz: unknown setting; docs/settings.md has all"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"portt": 1}, f"{KEY}.portt: unknown setting; did you mean 'port'?"),
        ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'?"),
        ({"deadlines": {"zzz": 1}}, f"{KEY}.deadlines.zzz: unknown setting; known: connect, survey,"),
        ({"dashboard": True}, f"{KEY}.dashboard: unknown setting here; it belongs to `ray.dashboard`"),
        ({"fabric": "10.0.0.1"}, f"{KEY}.fabric: unknown setting here; it belongs to `nodes[].fabric`"),
        ({"nodes": [node(port=1)]}, f"{KEY}.nodes[0].port: unknown setting here; it belongs to `port` or `ray.port`"),
        ({"read_only": True}, "belongs to `mounts[].read_only` or `nodes[].mounts[].read_only`"),
        ({"nodes": [node(gpu=1)]}, f"{KEY}.nodes[0].gpu: unknown setting; did you mean 'gpus'?"),
        ({"ray": {"dashbord": True}}, f"{KEY}.ray.dashbord: unknown setting; did you mean 'dashboard'?"),
        ({"deadlines": {"conect": 1}}, f"{KEY}.deadlines.conect: unknown setting; did you mean 'connect'?"),
        ({"mounts": [{"source": "/a", "taget": "/b"}]}, "mounts[0].taget: unknown setting; did you mean 'target'?"),
        ({"image_build": {"contxt": "a"}}, "image_build.contxt: unknown setting; did you mean 'context'?"),
        ({"ulimits": [{"nme": "a", "soft": 1, "hard": 1}]}, "ulimits[0].nme: unknown setting; did you mean 'name'?"),
    ],
)
def test_unknown_setting_names_its_path_and_the_nearest_known(changes: dict[str, Any], wanted: str) -> None:
    assert wanted in refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"nodes": []}, ".nodes: "),
        ({"image_build": {}}, ".image_build.context: is required"),
        ({"image_build": {"context": "a"}, "image_archive": "b"}, "is another source of the same image"),
        ({"image_build": {"context": "a"}}, "cannot be pinned beforehand: give it a tag"),
        *(
            ({"image_build": {"context": "a", "dockerfile": path}}, ".dockerfile: must be a path below the directory")
            for path in ("/a/Dockerfile", "../Dockerfile", "a/../../Dockerfile", "..", "a/")
        ),
        ({"nodes": "spark-1"}, ".nodes: "),
        ({"nodes": [node(name="Spark 1")]}, ".nodes[0].name: must be lower-case letters, digits and dashes"),
        ({"nodes": [node(name="-a")]}, ".nodes[0].name: must be lower-case"),
        ({"nodes": [node(name="a" * 64)]}, "digits and dashes between them, 63 at most, got"),
        ({"nodes": [node(name=f"n{one}") for one in range(65)]}, ".nodes: must have at most 64 items, not 65, got"),
        ({"nodes": [node(ssh="u@h:\uff12\uff12")]}, ".nodes[0].ssh: must be user@host"),
        ({"nodes": [node(ssh="local", jump="spark-2")]}, "remove `jump`"),
        ({"nodes": [node(ssh="u@h:70000")]}, "ssh port 70000 is not in 1…65535"),
        ({"nodes": [node(ssh="u@h:0")]}, "ssh port 0 is not in 1…65535"),
        ({"nodes": [node(), node()]}, "two nodes are named 'spark-1'"),
        ({"nodes": [node(fabric="10.0.0.1"), node(name="b", ssh="b", fabric="10.0.0.1")]}, "address 10.0.0.1"),
        ({"nodes": [node(fabric="10.0.0.256")]}, ".nodes[0].fabric: "),
        ({"nodes": [node(gpus=0)]}, ".nodes[0].gpus: "),
        (
            {"nodes": [node(), node(name="b", ssh="b", jump="spark-9")]},
            ".nodes[1].jump: jump 'spark-9' is not a node; did you mean 'spark-1'?",
        ),
        ({"nodes": [node(jump="spark-9")]}, ".nodes[0].jump: jump 'spark-9' is not a node"),
        ({"nodes": [node(environment={"A-B": "1"})]}, ".nodes[0].environment.A-B: "),
        ({"nodes": [node(environment={"VLLM_HOST_IP": "1"})]}, "environment VLLM_HOST_IP is set by the program"),
        ({"environment": {"RAY_ADDRESS": "auto"}}, "environment RAY_ADDRESS is set by the program"),
        ({"environment": {"VLLM_API_KEY": "x"}}, "environment VLLM_API_KEY is set by the program"),
        ({"image": "two words"}, ".image: must be an image reference"),
        ({"weights": {"endpoint": "hf-mirror.com"}}, ".weights.endpoint: must be an address with http:// or https://"),
        ({"image": "-v"}, ".image: must be an image reference"),
        ({"image": "NVIDIA/vllm:26.01"}, ".image: must be an image reference, name:tag or name@sha256: and 64 hex dig"),
        ({"image": "org/vllm@sha256:ab12"}, ".image: must be an image reference"),
        ({"image": "org/vllm:26.01:py3"}, ".image: must be an image reference"),
        ({"image": "nvcr.io/nvidia/vllm:"}, ".image: must be an image reference"),
        ({"image": "https://nvcr.io/nvidia/vllm"}, ".image: must be an image reference"),
        (
            {"model": "models"},
            "model: must be an absolute path on the nodes, one in the home directory (~/…), or the hub's name ORG/",
        ),
        ({"model": "/a:b"}, ".model: must be an absolute path"),
        ({"mounts": [{"source": "a", "target": "/b"}]}, ".mounts[0].source: must be an absolute path on the nodes"),
        ({"mounts": [{"source": "/a", "target": "b"}]}, "mounts[0].target: must be an absolute path in the containers"),
        ({"port": 0}, ".port: "),
        ({"port": 65536}, ".port: "),
        ({"port": 6379}, "port and ray.port are both 6379"),
        ({"ray": {"object_store_bytes": 1}}, ".ray.object_store_bytes: "),
        ({"restart": "never"}, ".restart: "),
        ({"deadlines": {"load": 0}}, ".deadlines.load: "),
        ({"deadlines": {"stop": 601}}, ".deadlines.stop: "),
        ({"ulimits": [{"name": "memlock", "soft": -2, "hard": 1}]}, ".ulimits[0].soft: "),
        ({"ulimits": [{"name": "memlock", "soft": 1, "hard": 10**30}]}, ".ulimits[0].hard: "),
        ({"shm_size_mib": 10**30}, ".shm_size_mib: "),
        ({"listen": "everywhere"}, ".listen: "),
        ({"ray": None}, ".ray: "),
    ],
)
def test_refusal_names_path_and_cause(changes: dict[str, Any], wanted: str) -> None:
    text = refusal(**changes)
    assert wanted in text
    assert all(line.startswith(KEY) for line in text.splitlines())


@pytest.mark.parametrize("key", ["nodes", "image"])
def test_required_setting_is_named(key: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{KEY}\.{key}: is required$"):
        parse({name: value for name, value in MINIMAL.items() if name != key})


def test_model_that_is_missing_is_told_beside_other_faults() -> None:
    without = {"nodes": MINIMAL["nodes"], "port": "x"}
    lines = [r"\.image: is required", r"\.model: is required to serve; .*", r"\.port: .*"]
    with pytest.raises(SettingsError, match="^" + r"\n".join(KEY + line for line in lines) + "$"):
        parse(without)


def test_model_is_required_to_serve() -> None:
    without = {name: value for name, value in MINIMAL.items() if name != "model"}
    with pytest.raises(SettingsError, match=rf"^{KEY}\.model: is required to serve; .* set `serve: false`$"):
        parse(without)
    found = parse({**without, "serve": False})
    assert (found.model, found.model_name, found.hub_name, found.model_path, found.model_root) == (
        None,
        "",
        None,
        "",
        "",
    )


@pytest.mark.parametrize(("entry", "name"), [("models--gpt2", "gpt2"), ("models--org--a--b", "a--b")])
@pytest.mark.parametrize("below", ["", "/", "/snapshots/abc"])
def test_entry_of_the_hub_cache_is_mounted_whole_as_the_look_at_it_has_it(entry: str, name: str, below: str) -> None:
    path = f"/srv/hub/{entry}{below}"
    found = parse({**MINIMAL, "model": path})
    assert (found.model_root, found.model_name) == (f"/srv/hub/{entry}", name)
    assert locate(path, "main")[0] == found.model_root


@pytest.mark.parametrize("changes", [{"port": 6379}, {"tensor_parallel_size": 3}])
def test_what_only_serve_would_miss_is_no_fault_of_ray_alone(changes: dict[str, Any]) -> None:
    assert refusal(**changes)
    assert parse({**MINIMAL, **changes, "serve": False})


def test_all_faults_are_named_at_once() -> None:
    lines = refusal(nodes=[{"name": "X"}], port=0, colour="red").splitlines()
    assert len(lines) == 4, lines


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"port": "30000"},
        {"engine_arguments": ["--seed", 1]},
        {"deadlines": {"connect": 0}},
        {"environment": {"bad name": "x"}},
        {"image": None},
        {"mounts": [{"source": "/a", "target": "/b", "readonly": False}]},
        {"mounts": [{"source": "a", "target": "/b"}]},
        {"ulimits": [{"name": "x", "soft": 1, "hard": 2}]},
        {"ulimits": [{"name": "core", "soft": "1", "hard": 2}]},
        {"ulimits": [{"name": "core", "soft": 3, "hard": 2}]},
        {"image_build": {"context": ""}},
        {"image_build": {}},
    ],
)
def test_contradictions_are_told_beside_values_that_are_wrong_by_themselves(changes: dict[str, Any]) -> None:
    head, worker = MINIMAL["nodes"]
    both = {"ssh": "local", "ssh_port": 22, "gpu": 1}
    lines = refusal(nodes=[head, worker | {"jump": "spark-7"}, {"name": "spark-1"} | both], **changes).splitlines()
    told = [line.removeprefix("dgx-spark-cluster:cluster.").partition(":")[0] for line in lines]
    assert len(told) == 5, lines
    assert {"nodes[2].gpu", "nodes[2].ssh_port", "nodes[2].name", "nodes[1].jump"} < set(told)


def test_jump_host_that_is_no_node_is_told_beside_an_address_that_is_none() -> None:
    head, worker = MINIMAL["nodes"]
    told = refusal(nodes=[head | {"ssh": "?"}, worker | {"jump": "nobody"}])
    assert "nodes[1].jump: jump 'nobody' is not a node" in told


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": 2, "tensor_parallel_size": 4},
        {"port": "6379", "ray": {"port": 30000}},
        {"ray": {"object_store_bytes": "a", "port": 30001}, "shm_size_mib": 64, "ipc": "shared"},
        {"nodes": [{"nmae": "spark-1", "ssh": "a1"}, {"name": "spark-2", "ssh": "b1", "jump": "spark-1"}]},
        {"nodes": [{"name": "A_b", "ssh": "a1"}, {"name": "node-0", "ssh": "b 1"}, {"name": "s", "ssh": "host-1"}]},
        {"serve": "no", "model": None},
        {"nodes": [{"name": "spark-1", "ssh": "aurora@10.1.230.180"}, "spark-2"]},
        {"nodes": {}},
        {"nodes": [{}]},
    ],
)
def test_a_default_in_the_place_of_a_wrong_value_contradicts_nothing(changes: dict[str, Any]) -> None:
    told = refusal(**changes)
    for claim in ("but the nodes", "both", "two nodes are named", "too: one host", "is not a node", "cannot hold"):
        assert claim not in told


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"port": 6379, "ray": {"port": 6379}}, "port and ray.port are both 6379"),
        ({"environment": {"VLLM_HOST_IP": "a"}, "ray": {"port": 30000}}, "port and ray.port are both 30000"),
        ({"tensor_parallel_size": 3}, "but the nodes have 2 GPUs"),
        ({"shm_size_mib": 100}, "cannot hold ray.object_store_bytes"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size is 3, but the nodes have 2 GPUs; sizes that fit"),
    ],
)
def test_what_no_wrong_value_bears_on_is_told_beside_it(changes: dict[str, Any], wanted: str) -> None:
    lines = refusal(**changes, restart="foo", served_model_nam="x").splitlines()
    assert [line for line in lines if wanted in line], lines
    assert len(lines) >= 3


def test_text_that_cannot_be_encoded_and_nesting_that_cannot_be_read_are_refused() -> None:
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    for value in ("\ud800", nested):
        refusal(served_model_name=value).encode()


@pytest.mark.parametrize("name", ["apiKey", "hubToken", "secretEnvironment"])
def test_secret_among_the_settings_is_told_where_it_belongs(name: str) -> None:
    line = refusal(**{name: "x"})
    assert "pulumi config set --secret" in line
    assert "did you mean" not in line


def test_invalid_nodes_are_not_reported_as_too_few_as_well() -> None:
    assert refusal(nodes=[{"name": "X", "ssh": "u@h"}]).count("\n") == 0


def test_long_value_is_shown_shortened() -> None:
    assert len(refusal(model="x" * 5000)) < 250


@pytest.mark.parametrize("value", [None, "text", 5, [], [1], True])
def test_anything_but_a_mapping_is_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="must be a mapping"):
        parse(value)


@pytest.mark.parametrize(
    ("gpus", "tensor", "pipeline", "fits"),
    [
        ([1, 1], 4, 1, "2 × 1, 1 × 2"),
        ([1, 1], None, 3, "2 × 1, 1 × 2"),
        ([1, 1, 1], None, 2, "3 × 1, 1 × 3"),
        ([2, 4], 4, 1, "6 × 1, 3 × 2, 2 × 3, 1 × 6"),
    ],
)
def test_sizes_that_do_not_fit_are_answered_with_those_that_do(
    gpus: list[int], tensor: int | None, pipeline: int, fits: str
) -> None:
    nodes = [{"name": f"n{i}", "ssh": f"host-{i}", "gpus": count} for i, count in enumerate(gpus)]
    text = refusal(nodes=nodes, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    assert text.endswith(f"sizes that fit (tensor × pipeline): {fits}")


@pytest.mark.parametrize("jumps", [("a",), ("b", "a"), ("b", "c", "b"), ("b", "c", "a")])
def test_jump_hosts_in_a_circle_are_refused(jumps: tuple[str, ...]) -> None:
    nodes = [{"name": name, "ssh": f"host-{name}", "jump": jump} for name, jump in zip("abc", jumps, strict=False)]
    assert "form a circle" in refusal(nodes=nodes)


def test_chain_of_jump_hosts_is_a_route() -> None:
    nodes = [{"name": "c", "ssh": "c", "jump": "b"}, {"name": "b", "ssh": "b", "jump": "a"}, {"name": "a", "ssh": "a"}]
    found = cluster(nodes=nodes)
    assert [hop.name for hop in found.route(found.head)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "changes",
    [{"port": "30000"}, {"port": True}, {"pipeline_parallel_size": 1.0}, {"ray": {"dashboard": "yes"}}],
)
def test_numbers_and_booleans_are_never_taken_from_other_types(changes: dict[str, Any]) -> None:
    assert refusal(**changes)


@pytest.mark.parametrize("value", [5, True, 3232286733])
def test_addresses_are_never_taken_from_numbers(value: object) -> None:
    assert ".fabric: " in refusal(nodes=[node(fabric=value)])


def test_jump_through_the_local_machine_is_refused() -> None:
    assert "remove `jump`" in refusal(nodes=[node(ssh="local"), node(name="b", ssh="u@b", jump="spark-1")])


@pytest.mark.parametrize("ssh", ["aurora@10.1.230.180", "root@10.1.230.180", "10.1.230.180:22"])
def test_two_nodes_on_one_host_are_refused(ssh: str) -> None:
    assert "nodes[1].ssh: node spark-1 is on 10.1.230.180 too" in refusal(nodes=[node(), node(name="spark-2", ssh=ssh)])


def test_two_nodes_on_one_host_behind_one_jump_host_are_refused() -> None:
    nodes = [node(), *(node(name=name, ssh="u@10.0.0.2", jump="spark-1") for name in ("spark-2", "spark-3"))]
    assert "nodes[2].ssh: node spark-2 is on 10.0.0.2 too" in refusal(nodes=nodes)


def test_one_address_behind_two_jump_hosts_is_two_hosts() -> None:
    heads = [node(), node(name="spark-2", ssh="10.1.230.181")]
    behind = [node(name=f"behind-{jump}", ssh="u@10.0.0.2", jump=jump) for jump in ("spark-1", "spark-2")]
    assert len(parse({**MINIMAL, "nodes": heads + behind}).nodes) == 4


def test_two_ports_of_one_address_are_two_hosts() -> None:
    nodes = [node(ssh_port=2201), node(name="spark-2", ssh="aurora@10.1.230.180:2202")]
    assert len(parse({**MINIMAL, "nodes": nodes}).nodes) == 2


def test_mistyped_key_beside_the_settings_is_refused() -> None:
    known = ["dgx-spark-cluster:cluster", "dgx-spark-cluster:apiKey", "pulumi:disable-default-providers", "aws:region"]
    assert list(key_faults(known)) == []
    assert list(key_faults([*known, "dgx-spark-cluster:apikey", "dgx-spark-cluster:x"])) == [
        "dgx-spark-cluster:apikey: unknown setting; did you mean 'apiKey'?",
        "dgx-spark-cluster:x: unknown setting; known: cluster, apiKey, secretEnvironment, hubToken",
    ]


def test_faults_beside_the_settings_are_told_with_those_in_them() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(settings(port=0), ["dgx-spark-cluster:apikey: unknown setting"])
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["apikey", "cluster.port"]
    with pytest.raises(SettingsError, match=r"^dgx-spark-cluster:apikey: unknown setting$"):
        parse(settings(), ["dgx-spark-cluster:apikey: unknown setting"])
