"""`command:local:Command` under the real engine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.toolchain.stack import Stack
from toolchain.versions import ROOT

pytestmark = pytest.mark.toolchain
MakeStack = Callable[..., Stack]

PROGRAM = """
import pulumi
from pulumi_command import local

config = pulumi.Config()
journal = config.require("journal")
local.Command(
    "step",
    create=f"echo create {config.require('text')} >> {journal}; echo made",
    update=f"echo update {config.require('text')} after $PULUMI_COMMAND_STDOUT >> {journal}; echo changed",
    delete=f"echo delete after $PULUMI_COMMAND_STDOUT >> {journal}",
    triggers=[config.require("trigger")],
)
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_create_update_replace_delete(make_stack: MakeStack, journal: Path) -> None:
    stack = make_stack(PROGRAM)

    def up(text: str, trigger: str) -> list[str]:
        for name, value in {"journal": str(journal), "text": text, "trigger": trigger}.items():
            stack.pulumi("config", "set", name, value)
        journal.write_text("")
        assert stack.up().code == 0
        return journal.read_text().splitlines()

    assert up("one", "a") == ["create one"]
    assert up("one", "a") == []
    assert up("two", "a") == ["update two after made"]
    assert up("two", "b") == ["create two", "delete after changed"]  # create before delete, as the official plugin
    journal.write_text("")
    assert stack.pulumi("destroy", "--yes", "--skip-preview").code == 0
    assert journal.read_text().splitlines() == ["delete after made"]


def test_preview_runs_nothing(make_stack: MakeStack, journal: Path) -> None:
    stack = make_stack(PROGRAM)
    for name, value in {"journal": str(journal), "text": "one", "trigger": "a"}.items():
        stack.pulumi("config", "set", name, value)
    assert stack.pulumi("preview").code == 0
    assert not journal.exists()


def test_a_failed_command_is_not_in_the_state(make_stack: MakeStack) -> None:
    program = 'from pulumi_command import local\n\nlocal.Command("step", create="echo the cause >&2; exit 3")\n'
    stack = make_stack(program)
    result = stack.up()
    assert result.code != 0
    assert "exit status 3" in result.output
    assert "the cause" in result.output
    assert "step" not in stack.resources()


def test_the_failure_is_told_and_no_end_of_the_program_beside_it(make_stack: MakeStack) -> None:
    program = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
import pulumi
from components import monitor
from pulumi_command import local

monitor.mend()
first = local.Command("first", create="echo the cause >&2; exit 3")
local.Command("second", create="true", opts=pulumi.ResourceOptions(depends_on=[first]))
"""
    done = make_stack(program).up()
    assert done.code != 0
    assert "the cause" in done.output
    assert "error: update failed" in done.output  # the engine's own words
    for word in ("has terminated", "Traceback", "exited with"):
        assert word not in done.output


def test_refused_assets_name_the_property(make_stack: MakeStack) -> None:
    program = 'from pulumi_command import local\n\nlocal.Command("step", create="true", asset_paths=["*.txt"])\n'
    result = make_stack(program).up()
    assert result.code != 0
    assert "assetPaths" in result.output
    assert "not supported by this command plugin" in result.output


def test_remote_commands_are_refused_by_name(make_stack: MakeStack) -> None:
    program = """
from pulumi_command import remote

remote.Command("step", create="true", connection=remote.ConnectionArgs(host="spark-1"))
"""
    result = make_stack(program).up()
    assert result.code != 0
    assert "command:remote:Command is not served" in result.output
