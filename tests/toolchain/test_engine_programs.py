"""Programs, configuration, dynamic providers and policy packs under the real engine and our language host."""

import json
from collections.abc import Callable

import pytest

from tests.toolchain.stack import Stack

pytestmark = pytest.mark.toolchain
MakeStack = Callable[..., Stack]

RESOURCE = """
import pulumi
from pulumi.dynamic import CreateResult, ReadResult, Resource, ResourceProvider, UpdateResult


class Provider(ResourceProvider):
    def create(self, props):
        print("creating", int(props["size"]))
        return CreateResult("thing-1", dict(props))

    def read(self, id_, props):
        return ReadResult(id_, dict(props))

    def update(self, id_, olds, news):
        print("updating", int(olds["size"]), "to", int(news["size"]))
        return UpdateResult(dict(news))

    def delete(self, id_, props):
        print("deleting", int(props["size"]))


class Thing(Resource):
    size: pulumi.Output[int]

    def __init__(self, name, size):
        super().__init__(Provider(), name, {"size": size})


thing = Thing("thing", pulumi.Config().require_int("size"))
pulumi.export("size", thing.size)
"""

POLICY_PROJECT = """
description: A pack
runtime: python
"""


def test_a_program_that_raises_shows_where(make_stack: MakeStack) -> None:
    result = make_stack('def deploy():\n    raise ValueError("the cause")\n\n\ndeploy()\n').up()
    assert result.code != 0
    assert "ValueError: the cause" in result.output
    assert "in deploy" in result.output
    assert "non-zero exit code" not in result.output  # the message was shown: no second one


def test_a_program_that_exits_is_an_error_with_its_code(make_stack: MakeStack) -> None:
    result = make_stack('import sys\n\nprint("last words", file=sys.stderr)\nsys.exit(3)\n').up()
    assert result.code != 0
    assert "last words" in result.output
    assert "exit code: 3" in result.output


def test_a_run_error_is_its_message_and_no_traceback(make_stack: MakeStack) -> None:
    result = make_stack('import pulumi\n\nraise pulumi.RunError("spark-2 does not answer")\n').up()
    assert result.code != 0
    assert "spark-2 does not answer" in result.output
    assert "Traceback" not in result.output


def test_a_missing_virtualenv_is_named(make_stack: MakeStack) -> None:
    stack = make_stack("")
    stack.write("Pulumi.yaml", "name: project\nruntime: {name: python, options: {virtualenv: absent}}\n")
    result = stack.up()
    assert result.code != 0
    assert "virtualenv" in result.output
    assert "absent" in result.output
    assert "Traceback" not in result.output


def test_modules_beside_the_program_can_be_imported(make_stack: MakeStack) -> None:
    program = 'import pulumi\nfrom parts import NAME\n\npulumi.export("name", NAME)\n'
    stack = make_stack(program, **{"parts.py": 'NAME = "spark-1"\n'})
    assert stack.up().code == 0
    assert stack.output("name") == "spark-1"


def test_unicode_and_large_output(make_stack: MakeStack) -> None:
    program = """
import pulumi

for number in range(3000):
    print("Zeile", number, "größe 🚀")
print("x" * 300_000 + "the end")
pulumi.export("text", "größe 🚀 " * 50_000)
"""
    stack = make_stack(program)
    result = stack.up()
    assert result.code == 0
    assert "Zeile 2999 größe 🚀" in result.output
    assert "the end" in result.output
    assert stack.output("text") == "größe 🚀 " * 50_000


def test_secret_configuration_is_used_but_never_shown(make_stack: MakeStack) -> None:
    program = """
import pulumi
from pulumi_command import local

config = pulumi.Config()
token = config.require_secret("token")
assert not config.get("nothing")
step = local.Command("step", create="printf %s $TOKEN | rev", environment={"TOKEN": token})
pulumi.export("token", token)
pulumi.export("reversed", step.stdout)
"""
    stack = make_stack(program)
    assert stack.pulumi("config", "set", "--secret", "token", "hunter2-größe").code == 0
    result = stack.up("--diff")
    assert result.code == 0
    state = (stack.folder.parent / "state").rglob("*.json")
    for text in (result.output, *(path.read_text() for path in state if path.is_file())):
        assert "hunter2" not in text
        assert "2retnuh" not in text
    assert stack.output("token") == "hunter2-größe"
    assert stack.output("reversed") == "eßörg-2retnuh"


def test_a_dynamic_resource_lives_and_dies(make_stack: MakeStack) -> None:
    stack = make_stack(RESOURCE)
    stack.pulumi("config", "set", "size", "1")
    assert "creating 1" in stack.up().output
    assert stack.pulumi("refresh", "--yes", "--skip-preview").code == 0
    stack.pulumi("config", "set", "size", "2")
    assert "updating 1 to 2" in stack.up().output
    assert stack.output("size") == 2
    assert "updating 2" not in stack.up().output
    assert "deleting 2" in stack.pulumi("destroy", "--yes", "--skip-preview").output
    assert "thing" not in stack.resources()


def test_required_plugins_are_told(make_stack: MakeStack) -> None:
    about = json.loads(make_stack("").pulumi("about", "--json").output)
    assert about["runtime"]["language"] == "python"
    assert {"pulumi_docker", "pulumi-docker"} & {d["name"] for d in about["dependencies"]}


def test_install_puts_the_requirements_into_the_environment(make_stack: MakeStack) -> None:
    result = make_stack("", **{"requirements.txt": "pulumi\n"}).pulumi("install")
    assert result.code == 0
    assert "Requirement already satisfied: pulumi" in result.output


def test_a_policy_pack_judges(make_stack: MakeStack) -> None:
    pack = """
from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy


def small(args, report):
    if args.props.get("size", 0) > 1:
        report("too large")


PolicyPack(
    "pack",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[ResourceValidationPolicy(name="small", description="Small things only.", validate=small)],
)
"""
    stack = make_stack(RESOURCE, **{"policy/PulumiPolicy.yaml": POLICY_PROJECT, "policy/__main__.py": pack})
    stack.pulumi("config", "set", "size", "1")
    assert stack.up("--policy-pack", "policy").code == 0
    stack.pulumi("config", "set", "size", "2")
    result = stack.up("--policy-pack", "policy")
    assert result.code != 0
    assert "too large" in result.output
    assert stack.wait_until_all_ended() == []


@pytest.mark.parametrize("pack", ['raise SystemExit("no rules today")\n', 'raise ValueError("no rules today")\n'])
def test_a_policy_pack_that_does_not_start_ends_the_run(make_stack: MakeStack, pack: str) -> None:
    stack = make_stack(RESOURCE, **{"policy/PulumiPolicy.yaml": POLICY_PROJECT, "policy/__main__.py": pack})
    stack.pulumi("config", "set", "size", "1")
    result = stack.up("--policy-pack", "policy")
    assert result.code != 0
    assert "no rules today" in result.output
    assert "failed to start" in result.output
    assert "thing" not in stack.resources()
    assert stack.wait_until_all_ended() == []
