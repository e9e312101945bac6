import os
import signal
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2

from tests.toolchain.command_client import CommandClient, EngineLog
from toolchain import property_values
from toolchain.command_schema import INPUTS
from toolchain.property_values import UNKNOWN, as_secret

Kind = provider_pb2.PropertyDiff.Kind


def test_marks_are_those_of_the_sdk() -> None:
    marks = (property_values.UNKNOWN, property_values.SIGNATURE, property_values.SECRET)
    assert marks == (rpc.UNKNOWN, rpc._special_sig_key, rpc._special_secret_sig)


def message(error: pytest.ExceptionInfo[grpc.RpcError]) -> str:
    return str(error.value.details())


def test_create_runs_the_command(command: CommandClient) -> None:
    state = command.create(create="echo out; echo err >&2")
    assert (state["stdout"], state["stderr"]) == ("out", "err")


def test_create_without_a_command_does_nothing(command: CommandClient) -> None:
    assert command.create(delete="false")["stdout"] == ""


def test_preview_runs_nothing_and_leaves_outputs_open(command: CommandClient, tmp_path: Path) -> None:
    state = command.create(create="touch made", dir=str(tmp_path), preview=True)
    assert state["stdout"] == state["stderr"] == UNKNOWN
    assert not (tmp_path / "made").exists()


def test_directory_environment_stdin_and_interpreter(command: CommandClient, tmp_path: Path) -> None:
    state = command.create(
        create="import os, sys; print(os.getcwd(), os.environ['WHO'], sys.stdin.read())",
        dir=str(tmp_path),
        environment={"WHO": "aurora"},
        stdin="from stdin",
        interpreter=["python3", "-c"],
    )
    assert state["stdout"] == f"{tmp_path} aurora from stdin"


def test_a_command_need_not_read_its_input(command: CommandClient) -> None:
    assert command.create(create="echo done", stdin="x" * 1_000_000)["stdout"] == "done"


def test_no_input_is_an_empty_one(command: CommandClient) -> None:
    assert command.create(create="cat")["stdout"] == ""


def test_update_runs_update_with_the_previous_output(command: CommandClient) -> None:
    old = command.create(create="echo first; echo warned >&2")
    new = command.update(old, create="false", update="echo $PULUMI_COMMAND_STDOUT then $PULUMI_COMMAND_STDERR")
    assert new["stdout"] == "first then warned"


def test_update_without_update_runs_create(command: CommandClient) -> None:
    assert command.update({"create": "echo 1", "stdout": "1"}, create="echo 2")["stdout"] == "2"


def test_update_with_nothing_to_run_keeps_the_output(command: CommandClient) -> None:
    assert command.update({"stdout": "kept", "stderr": ""}, delete="true")["stdout"] == "kept"


def test_previous_output_can_be_left_out(command: CommandClient) -> None:
    new = command.update(
        {"stdout": "first"}, update="echo ${PULUMI_COMMAND_STDOUT-unset}", addPreviousOutputInEnv=False
    )
    assert new["stdout"] == "unset"


def test_previous_output_too_long_for_the_environment_is_explained(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.update({"stdout": "x" * 10_000_000}, update="true")
    assert "addPreviousOutputInEnv" in message(error)


def test_delete_runs_delete(command: CommandClient, tmp_path: Path) -> None:
    command.delete(delete="echo $PULUMI_COMMAND_STDOUT > gone", dir=str(tmp_path), stdout="made")
    assert (tmp_path / "gone").read_text() == "made\n"


def test_delete_without_a_command_does_nothing(command: CommandClient) -> None:
    command.delete(create="false")


def test_failure_tells_code_command_and_output(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="echo the cause >&2; exit 3")
    assert message(error) == "exit status 3: running 'echo the cause >&2; exit 3':\nthe cause"


def test_failure_keeps_the_end_of_a_long_output(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="seq 1000000; echo the cause; exit 1")
    assert message(error).endswith("the cause")
    assert len(message(error)) < 100_000


def test_death_by_signal_is_named(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="kill -9 $$")
    assert message(error).startswith("ended by signal 9")


def test_missing_directory_is_named(command: CommandClient, tmp_path: Path) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="true", dir=str(tmp_path / "absent"))
    assert str(tmp_path / "absent") in message(error)
    assert "'dir'" in message(error)


def test_missing_interpreter_is_named(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="true", interpreter=["/no/such/shell", "-c"])
    assert "/no/such/shell" in message(error)


def test_large_output_comes_whole(command: CommandClient) -> None:
    state = command.create(create="head -c 20000000 /dev/zero | tr '\\0' x; seq 200000 >&2", logging="none")
    assert len(state["stdout"]) == 20_000_000
    assert state["stderr"].endswith("200000")


def test_unicode_and_invalid_bytes(command: CommandClient) -> None:
    state = command.create(create="printf 'größe 🚀 \\377'")
    assert state["stdout"] == "größe 🚀 \ufffd"


@pytest.mark.parametrize(
    ("logging", "expected"),
    [
        (None, {"to stdout", "to stderr"}),
        ("stdoutAndStderr", {"to stdout", "to stderr"}),
        ("stdout", {"to stdout"}),
        ("stderr", {"to stderr"}),
        ("none", set()),
    ],
)
def test_logging(command: CommandClient, engine_log: EngineLog, logging: str | None, expected: set[str]) -> None:
    command.create(create="echo to stdout; echo to stderr >&2", logging=logging)
    assert set(engine_log.messages) == expected


def test_output_without_line_ends_is_logged(command: CommandClient, engine_log: EngineLog) -> None:
    command.create(create="head -c 1000000 /dev/zero | tr '\\0' x")
    assert sum(map(len, engine_log.messages)) == 1_000_000


def test_a_secret_input_makes_the_outputs_secret_and_the_log_silent(
    command: CommandClient, engine_log: EngineLog
) -> None:
    environment = {"TOKEN": as_secret("hunter2")}
    state = command.create(create="echo $TOKEN", environment=environment)
    assert state["stdout"] == as_secret("hunter2")
    assert state["stderr"] == as_secret("")
    assert state["environment"] == environment
    assert engine_log.messages == []


def test_a_secret_stays_secret_through_update(command: CommandClient) -> None:
    old = command.create(create=as_secret("echo hunter2"))
    new = command.update(old, create="true", update="echo $PULUMI_COMMAND_STDOUT", stdin=as_secret("hunter2"))
    assert new["stdout"] == as_secret("hunter2")


def test_what_is_made_from_a_secret_output_is_secret(command: CommandClient, engine_log: EngineLog) -> None:
    old = {"create": "true", "stdout": as_secret("hunter2"), "stderr": ""}
    new = command.update(old, create="true", update="echo $PULUMI_COMMAND_STDOUT")
    assert new["stdout"] == as_secret("hunter2")
    assert engine_log.messages == []


def test_a_secret_is_blanked_out_in_errors(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="cat; echo $0; exit 1", stdin=as_secret("line one\nline two"))
    assert "line" not in message(error)
    assert "[secret]" in message(error)


def test_a_secret_command_is_blanked_out_in_errors(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.create(create=as_secret("login --token hunter2; exit 1"))
    assert "hunter2" not in message(error)


@pytest.mark.parametrize("property_name", ["assetPaths", "archivePaths"])
def test_assets_are_refused(command: CommandClient, property_name: str) -> None:
    _, failures = command.check({"create": "true", property_name: ["*.txt"]})
    assert set(failures) == {property_name}
    assert "not supported" in failures[property_name]


def test_check_fills_in_the_default(command: CommandClient) -> None:
    inputs, failures = command.check({"create": "true"})
    assert inputs == {"create": "true", "addPreviousOutputInEnv": True}
    assert failures == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("creates", "true"),
        ("create", 1),
        ("environment", {"A": 1}),
        ("interpreter", "sh"),
        ("logging", "loud"),
        ("addPreviousOutputInEnv", "yes"),
    ],
)
def test_check_names_what_is_wrong(command: CommandClient, name: str, value: Any) -> None:
    assert set(command.check({name: value})[1]) == {name}


@pytest.mark.parametrize("name", sorted(set(INPUTS) - {"assetPaths", "archivePaths"}))
def test_check_lets_unknown_and_secret_values_pass(command: CommandClient, name: str) -> None:
    assert command.check({name: UNKNOWN})[1] == {}
    assert command.check({name: as_secret(UNKNOWN)})[1] == {}


def test_other_types_are_refused_by_name(command: CommandClient) -> None:
    with pytest.raises(grpc.RpcError) as error:
        command.check({}, urn="urn:pulumi:test::project::parent$command:remote:CopyToRemote::copy")
    assert "command:remote:CopyToRemote" in message(error)


def test_no_change_is_no_diff(command: CommandClient) -> None:
    inputs = {"create": "true", "triggers": [1, {"a": ["b"]}]}
    assert command.diff(inputs, inputs).changes == provider_pb2.DiffResponse.DIFF_NONE


@pytest.mark.parametrize(
    ("old", "new"),
    [([1], [2]), ([1], None), (None, [1]), ([1], [UNKNOWN]), ([{"a": 1}], [{"a": 2}]), (["1"], [1])],
)
def test_a_changed_trigger_replaces(command: CommandClient, old: Any, new: Any) -> None:
    olds = {"create": "true"} | ({"triggers": old} if old else {})
    news = {"create": "true"} | ({"triggers": new} if new else {})
    response = command.diff(olds, news)
    assert list(response.replaces) == ["triggers"]
    kind = Kind.ADD_REPLACE if not old else Kind.DELETE_REPLACE if not new else Kind.UPDATE_REPLACE
    assert response.detailedDiff["triggers"].kind == kind


@pytest.mark.parametrize("name", sorted(set(INPUTS) - {"triggers"}))
def test_any_other_change_updates(command: CommandClient, name: str) -> None:
    response = command.diff({name: "old"}, {name: "new"})
    assert response.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert list(response.replaces) == []
    assert response.detailedDiff[name].kind == Kind.UPDATE


def test_cancel_ends_a_running_command_and_its_children(command: CommandClient, tmp_path: Path) -> None:
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    running = command.create_in_background(create="sleep 1000 & echo $! > started; wait", dir=str(tmp_path))
    child = int(pipe.read_text())  # returns when the command has come that far
    command.cancel()
    with pytest.raises(grpc.RpcError) as error:
        running.result()
    assert message(error).startswith("cancelled")
    assert_gone(child)


def test_after_cancel_nothing_is_started(command: CommandClient) -> None:
    command.cancel()
    with pytest.raises(grpc.RpcError) as error:
        command.create(create="true")
    assert "cancelled" in message(error)


def assert_gone(pid: int) -> None:
    """Its pipes are closed, so it has ended; it may wait for init to collect it."""
    try:
        os.kill(pid, signal.SIGCONT)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return
    assert state == "Z"
