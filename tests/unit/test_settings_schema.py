"""Generated from the settings: the schema for editors and the reference page."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from settings import parse
from settings.__main__ import generated
from settings.schema import stack_schema
from tests.samples import MINIMAL
from tests.unit.test_settings import FULL, KEY, ROOT, SHIPPED

RAY_ALONE = {**{name: value for name, value in MINIMAL.items() if name != "model"}, "serve": False}
CHECK = jsonschema.Draft202012Validator(stack_schema())


def stack(cluster: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {"config": {KEY: cluster, **{f"dgx-spark-cluster:{name}": value for name, value in config.items()}}}


@pytest.mark.parametrize("path", generated(), ids=str)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert (ROOT / path).read_text() == generated()[path], "run: make schema"


def test_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(stack_schema())


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_stacks_are_valid_and_name_the_schema(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("# yaml-language-server: $schema=docs/stack.schema.json\n")
    CHECK.validate(yaml.safe_load(text))


@pytest.mark.parametrize("cluster", [MINIMAL, FULL, RAY_ALONE], ids=["minimal", "full", "ray alone"])
def test_what_the_program_takes_is_valid(cluster: dict[str, Any]) -> None:
    assert parse(cluster)
    CHECK.validate(stack(cluster))


def test_secrets_and_what_pulumi_writes_are_valid() -> None:
    secure = {"secure": "v1:abc"}
    file = stack(MINIMAL, apiKey=secure, secretEnvironment={"HF_TOKEN": secure})
    file["config"]["pulumi:disable-default-providers"] = ["docker"]
    CHECK.validate(file | {"encryptionsalt": "v1:x", "secretsprovider": "passphrase", "environment": ["shared"]})


@pytest.mark.parametrize(
    "change",
    [
        {"portt": 1},
        {"port": 0},
        {"port": "30000"},
        {"nodes": []},
        {"restart": "never"},
        {"environment": {"A-B": "1"}},
        {"environment": {"A": 1}},
        {"model": "models"},
        {"ray": {"dashbord": True}},
        {"serve": "no"},
        {"mounts": [{"source": "/a"}]},
    ],
)
def test_editors_show_what_the_program_refuses(change: dict[str, Any]) -> None:
    assert not CHECK.is_valid(stack({**copy.deepcopy(MINIMAL), **change}))


@pytest.mark.parametrize(
    "config",
    [{"apiKey": "plain"}, {"secretEnvironment": {"HF_TOKEN": "plain"}}, {"apikey": {"secure": "v1:x"}}],
)
def test_plain_secrets_and_unknown_configuration_are_invalid(config: dict[str, Any]) -> None:
    assert not CHECK.is_valid(stack(MINIMAL, **config))


def test_every_setting_has_a_description() -> None:
    for name, model in stack_schema()["$defs"].items():
        assert model["description"], name
        for setting, schema in model["properties"].items():
            assert schema.get("description"), f"{name}.{setting}"
