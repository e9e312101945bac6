"""The pack in the real engine, which previews the program's own Cluster; a preview dials no host.

Each case changes one thing of a cluster that keeps every rule: in the settings, or behind their back by a transform.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.policies.recorded import ID, KEY, labels

pytestmark = pytest.mark.toolchain

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys

sys.path.insert(0, {root!r})

import pulumi

from components.cluster import Cluster, ClusterArgs
from hosts.findings import look
from hosts.survey import Survey
from settings import parse


def survey(address):
    return Survey.model_validate(
        dict(
            hostname="spark", architecture="aarch64", gpus=[], gpu_error="", gpu_processes=[], hcas=[],
            listeners=[], missing=[], devices=["/dev/infiniband"],
            docker=dict(image={image_id!r} and dict(Id={image_id!r})),
            interfaces=[dict(name="enp1s0f1np1", addresses=[address], mtu=9000, speed=200000)],
            model=dict(files={{"config.json": 2}}),
        )
    )


def change(args):
    if args.name in {changes!r}:
        return pulumi.ResourceTransformResult(props=dict(args.props) | {changes!r}[args.name], opts=args.opts)
    return None


pulumi.runtime.register_resource_transform(change)
settings = parse(
    dict(
        nodes=[dict(name="spark-1", ssh="aurora@192.0.2.1"), dict(name="spark-2", ssh="aurora@192.0.2.2")],
        image={image!r}, model="/opt/models/m",
    )
)
surveys = {{"spark-1": survey("192.168.200.12/24"), "spark-2": survey("192.168.200.13/24")}}
key = pulumi.Output.secret({key!r}) if {key!r} else None
found = look(settings, pulumi.get_stack(), surveys)
Cluster(ClusterArgs(pulumi.get_stack(), settings, surveys, found.fabric, found.image, found.weights, key))
"""
WORKER = "spark-2-ray-worker"
SECOND_SERVE = {
    "labels": labels({"stack": "spark", "role": "serve", "node": "spark-2"}),
    "command": ["serve", "/opt/models/m", "--host=127.0.0.1"],
    "envs": ["VLLM_HOST_IP=192.168.200.12"],
}
"""In the worker's place: serve that Ray's gate itself waits for."""


@dataclass
class Case:
    """What the program does differently."""

    image: str = f"example.invalid/vllm@{ID}"
    image_id: str | None = ID
    key: str | None = KEY
    changes: dict[str, dict[str, object]] = field(default_factory=dict)

    def preview(self, folder: Path, stack: str = "spark") -> subprocess.CompletedProcess[str]:
        """`pulumi preview` of a new stack with the pack; standard error is part of the output."""
        (folder / "state").mkdir()
        runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
        (folder / "Pulumi.yaml").write_text(json.dumps({"name": "checked", "runtime": runtime}))
        (folder / "__main__.py").write_text(PROGRAM.format(root=str(ROOT), **vars(self)))
        own = {"PULUMI_BACKEND_URL": f"file://{folder}/state", "PULUMI_CONFIG_PASSPHRASE": "x"}
        script = (
            'here=$PWD; cd "$1" && . ./env.sh && cd "$here" && pulumi stack init "$2" >/dev/null && '
            'exec pulumi preview --non-interactive --stack "$2" --policy-pack "$1/policies" 2>&1'
        )
        return subprocess.run(
            ["bash", "-c", script, "preview", str(ROOT), stack],
            cwd=folder,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.parametrize("case", [Case(), Case(image_id=None)], ids=["image present", "image unknown until pulled"])
def test_the_cluster_keeps_every_policy(tmp_path: Path, case: Case) -> None:
    done = case.preview(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "to create" in done.stdout
    assert "[mandatory]" not in done.stdout
    assert "[advisory]" not in done.stdout


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        (Case(changes={"spark-1-ray-head": {"labels": []}}), "container-owned"),
        (
            Case(changes={WORKER: {"labels": labels({"stack": "spark", "role": "ray-worker", "node": "spark-1"})}}),
            "container-on-its-node",
        ),
        (Case(changes={"spark-1-serve": {"privileged": True}}), "container-confined"),
        (Case(image="example.invalid/vllm:latest"), "image-pinned"),
        (Case(key=None), "api-key"),
        (Case(changes={WORKER: {"envs": ["VLLM_HOST_IP=192.0.2.2"]}}), "fabric-addresses"),
        (Case(changes={WORKER: SECOND_SERVE}), "serve-behind-gates"),
    ],
    ids=lambda value: value if isinstance(value, str) else "cluster",
)
def test_a_violation_stops_the_preview_and_names_its_policy(tmp_path: Path, case: Case, policy: str) -> None:
    done = case.preview(tmp_path)
    assert done.returncode != 0, done.stdout
    assert f"[mandatory]  {policy} " in done.stdout, done.stdout
    assert "next: " in done.stdout
    assert KEY not in done.stdout


def test_on_the_lab_a_tag_and_an_open_api_are_only_remarked(tmp_path: Path) -> None:
    done = Case(image="dgx-spark-lab/vllm:1", key=None).preview(tmp_path, "lab")
    assert done.returncode == 0, done.stdout
    assert "[advisory]  image-pinned-lab " in done.stdout, done.stdout
    assert "[advisory]  api-key-lab " in done.stdout
    assert "[mandatory]" not in done.stdout
