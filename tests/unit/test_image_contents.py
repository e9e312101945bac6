"""What an image holds: asked once in a container of its own, and what it lacks is told before anything is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines import vllm_image
from hosts.faults import Fault, Faults
from hosts.images import contents as image_contents
from hosts.images.contents import SCRIPT, Options
from hosts.images.plan import Plan
from hosts.ssh import Connection
from providers.image_gate import ImageGateProvider
from tests.samples import IMAGE_ID, cluster, contents, inspected, survey
from tests.unit.fake_docker import FakeDocker

LOCAL = Connection("spark-1", ())
COMMANDS = ("vllm serve", "ray start")
PROPS: dict[str, Any] = {
    "connection": LOCAL.dump(),
    "stack": "lab",
    "image": "vllm:1",
    "image_id": IMAGE_ID,
    "mounts": ["/opt/venv:/opt/venv:ro"],
    "arguments": {"vllm serve": ["--enforce-eager"], "ray start": ["--num-cpus=2"]},
    "vllm": None,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(image_contents, "CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """An image that answers; the commands that asked it."""
    asked: list[tuple[str, ...]] = []

    def run(_self: Connection, *argv: str, **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, f"INFO: a library greets\n{contents().model_dump_json()}\n", "")

    monkeypatch.setattr(Connection, "run", run)
    return asked


def gate(**changes: Any) -> dict[str, Any]:
    return {**PROPS, **changes}


def wrong(command: str, *written: str) -> str:
    """What is said of the arguments, without what they are said of; empty where nothing is."""
    found = list(vllm_image.faults("spark-1", "vllm:1", {command: written}, contents()))
    assert len(found) < 2, "one for a command"
    return found[0].cause.partition(" of image vllm:1 ")[2] if found else ""


def test_an_image_is_asked_once_in_a_container_that_is_ours_and_goes(image: list[tuple[str, ...]]) -> None:
    said: list[str] = []
    for _ in range(2):
        assert (
            image_contents.ask(LOCAL, IMAGE_ID, COMMANDS, mounts=["/a:/b:ro"], stack="lab", say=said.append)
            == contents()
        )
    assert len(image) == len(said) == 1
    assert "spark-1: asking the image which options its engine knows" in said[0]
    words = list(image[0])
    assert words[:3] == ["docker", "run", "--rm"]
    assert words[-5:] == [IMAGE_ID, "-c", SCRIPT.read_text(), "ray start", "vllm serve"]
    assert words[words.index("--entrypoint") + 1] == "python3"
    assert words[words.index("--volume") + 1] == "/a:/b:ro"
    assert "dgx-spark-cluster.stack=lab" in words


def test_ray_alone_asks_no_vllm_of_the_image(image: list[tuple[str, ...]]) -> None:
    given = vllm_image.arguments(cluster(serve=False))
    assert set(given) == {"ray start"}
    without = contents(vllm=None)
    assert not list(vllm_image.faults("spark-1", "ray:1", given, without))
    (fault,) = vllm_image.faults("spark-1", "ray:1", vllm_image.arguments(cluster()), without)
    assert "has no vLLM" in fault.cause
    for commands in (given, COMMANDS):
        image_contents.ask(LOCAL, IMAGE_ID, commands, mounts=[], stack="lab", say=print)
    assert [words[-1] for words in image] == ["ray start", "vllm serve"], "another question, asked anew"


@pytest.mark.parametrize(("image_id", "mounts"), [("sha256:" + "2e" * 32, ["/a:/b:ro"]), (IMAGE_ID, [])])
def test_another_image_or_mount_is_asked_anew(image: list[tuple[str, ...]], image_id: str, mounts: list[str]) -> None:
    image_contents.ask(LOCAL, IMAGE_ID, COMMANDS, mounts=["/a:/b:ro"], stack="lab", say=print)
    image_contents.ask(LOCAL, image_id, COMMANDS, mounts=mounts, stack="lab", say=print)
    assert len(image) == 2


def test_image_without_python_is_a_fault_and_is_asked_again(docker: FakeDocker, cache: Path) -> None:
    docker.program.write_text("#!/bin/sh\necho 'exec: \"python3\": executable file not found in $PATH' >&2; exit 127\n")
    with pytest.raises(Fault, match="no container of image sha256:1f1f1f1f1f1f answers") as caught:
        image_contents.ask(LOCAL, IMAGE_ID, COMMANDS, mounts=[], stack="lab", say=print)
    assert "executable file not found" in caught.value.evidence
    assert not list(cache.glob("*"))


def test_options_that_could_not_be_read_are_asked_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    unread = contents(options={**contents().options, "vllm serve": Options(error="Killed")})
    done = subprocess.CompletedProcess((), 0, unread.model_dump_json(), "")
    monkeypatch.setattr(Connection, "run", lambda *_, **__: done)
    assert image_contents.ask(LOCAL, IMAGE_ID, COMMANDS, mounts=[], stack="lab", say=print) == unread
    assert not list(cache.glob("*"))


def test_script_finds_versions_and_options_of_real_command_lines(tmp_path: Path) -> None:
    """A vllm that lays its help out as argparse does, where the real one is not at hand."""
    vllm = tmp_path / "vllm"
    vllm.write_text(
        f"#!{sys.executable}\nimport argparse\nparser = argparse.ArgumentParser(prog='vllm serve')\n"
        "parser.add_argument('serve')\nparser.add_argument('--help=all', action='help')\n"
        "parser.add_argument('--tensor-parallel-size', '-tp', type=int, help='as in --no-such-thing')\n"
        "parser.add_argument('--enforce-eager', action=argparse.BooleanOptionalAction)\nparser.parse_args()\n"
    )
    vllm.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.read_text(), *COMMANDS],
        capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["vllm"], found["ray"]) == (None, None)
    known = found["options"]["vllm serve"]["known"]
    assert {"--tensor-parallel-size", "-tp", "--enforce-eager", "--no-enforce-eager"} <= set(known)
    assert "--no-such-thing" not in known
    assert found["options"]["ray start"] == {"error": "ModuleNotFoundError: No module named 'ray'"}


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("vllm serve", "--max-model-len=256"),
        ("vllm serve", "--max_model_len"),
        ("vllm serve", "--enforce"),
        ("vllm serve", "--no-enable-prefix-caching"),
        ("vllm serve", "--compilation-config.level=3"),
        ("vllm serve", "-cc.mode=3"),
        ("vllm serve", "-O3"),
        ("vllm serve", "--max-model"),
        ("vllm serve", "--data-parallel-size=1"),
        ("ray start", "--num-cpus=2"),
        ("ray start", "--labels=a=b"),
    ],
)
def test_arguments_that_the_engine_takes_are_no_fault(command: str, argument: str) -> None:
    assert wrong(command, argument) == ""


@pytest.mark.parametrize("known", [("-O", "--compilation-config"), ("--optimization-level",)])
def test_level_of_optimization_is_known_by_its_letter(known: tuple[str, ...]) -> None:
    """vLLM's help need not list -O."""
    found = contents(options={**contents().options, "vllm serve": Options(known=known)})
    assert not list(vllm_image.faults("spark-1", "vllm:1", {"vllm serve": ["-O3"]}, found))


@pytest.mark.parametrize(
    "written",
    [
        ["--max-model-len", "256"],
        ["--max-model-len", "-1"],
        ["--limit-mm-per-prompt", '{"a": 1}'],
        ["--lora-modules", "a=b", "c=d", "--enforce-eager"],
        ["-O3"],
    ],
)
def test_values_that_may_belong_to_an_option_are_no_fault(written: list[str]) -> None:
    assert wrong("vllm serve", "--seed=3", *written) == ""


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--distributed-executor=mp", "--distributed-executor-backend, which is the program's own choice: remove it"),
        ("--tensor-parallel=4", "--tensor-parallel-size, which is set from `tensor_parallel_size`: set that"),
        ("--tensor_par", "--tensor-parallel-size, which is set from `tensor_parallel_size`: set that"),
        ("--por=3", "--port, which is set from `port`: set that"),
        ("--model.a=3", "--model, which is set from `model`: set that"),
        ("-t", "-tp, which is set from `tensor_parallel_size`: set that"),
        ("--api-k=3", "--api-key, which would be seen by every user of the node: pulumi config set --secret apiKey"),
        ("--hf-to=3", "--hf-token, which would be seen by every user of the node: give it in `secretEnvironment`"),
    ],
)
def test_beginning_of_an_option_that_is_not_the_users_is_told_as_the_whole(argument: str, words: str) -> None:
    """argparse takes it for the option, and the last one wins."""
    assert wrong("vllm serve", argument) == f"takes {argument.partition('=')[0]} for {words}"


def test_beginning_of_several_options_is_ambiguous_unless_it_is_one_itself() -> None:
    assert wrong("vllm serve", "--m=5") == (
        "finds --m ambiguous (--mamba-backend, --mamba-block-size, --mamba-cache-dtype, --mamba-cache-mode, …)"
    )
    assert wrong("vllm serve", "-p", "2") == "finds -p ambiguous (-pcp, -pp)"
    assert wrong("vllm serve", "--no-enable-d") == ""
    assert wrong("vllm serve", "--no-enable-ep") == (
        "finds --no-enable-ep ambiguous (--no-enable-ep-weight-filter, --no-enable-eplb)"
    )
    for whole in ("--data-parallel-size", "--max_loras", "-dp", "-q"):  # others begin with it
        assert wrong("vllm serve", f"{whole}=2") == ""


@pytest.mark.parametrize("command", ["vllm serve", "ray start"])
@pytest.mark.parametrize("before", [[], ["--labels=a=b"], ["--labels=a=b", "2"]])
def test_value_without_an_option_is_told_where_it_is_certain(command: str, before: list[str]) -> None:
    if command == "vllm serve":
        before = [entry.replace("--labels", "--lora-modules") for entry in before]
    named = "max-model-len (did you mean --max-model-len?)" if command == "vllm serve" else "max-model-len"
    found = wrong(command, *before, "max-model-len=5", *before)
    assert found.startswith("takes no value without an option: ")
    assert named in found


def test_all_that_is_wrong_with_a_commands_arguments_is_told_at_once() -> None:
    assert wrong("vllm serve", "256", "--see", "1", "--zzz=3", "--por=3", "-p") == (
        "does not know --zzz; takes no value without an option: 256; "
        "takes --por for --port, which is set from `port`: set that; finds -p ambiguous (-pcp, -pp)"
    )
    assert wrong("ray start", "2", "--num-cpu=2") == (
        "does not know --num-cpu (did you mean --num-cpus?); takes no value without an option: 2"
    )


@pytest.mark.parametrize(
    ("command", "argument", "words"),
    [
        ("vllm serve", "--max-model-length=256", "--max-model-length (did you mean --max-model-len?)"),
        ("vllm serve", "--enforce-eager=", None),
        ("vllm serve", "--language-model-only-please", "--language-model-only-please"),
        ("vllm serve", "--max-model-len 256", "(an option and its value are two entries of the list, or one with =)"),
        ("ray start", "--num_cpus=2", "--num_cpus (did you mean --num-cpus?)"),
        ("ray start", "--num-cpu=2", "--num-cpu (did you mean --num-cpus?)"),
    ],
)
def test_unknown_argument_is_named_with_the_nearest_known_one(command: str, argument: str, words: str | None) -> None:
    """C24."""
    found = list(vllm_image.faults("spark-1", "vllm:1", {command: [argument]}, contents()))
    if words is None:
        assert not found
        return
    assert len(found) == 1
    assert f"`{command}` of image vllm:1 does not know {argument.partition('=')[0]}"[:40] in found[0].cause
    assert words in found[0].cause
    assert "vLLM 0.32.0+cpu, Ray 2.53.0" in found[0].evidence
    assert ("engine_arguments" if command == "vllm serve" else "ray_arguments") in found[0].remedy


def test_image_without_ray_is_told_with_its_vllm_and_two_ways_out() -> None:
    """C04."""
    without = contents(ray=None, options={**contents().options, "ray start": Options(error="No module named 'ray'")})
    (fault,) = vllm_image.faults("spark-1", "vllm:1", {"ray start": ["--num-cpus=2"]}, without)
    assert "image vllm:1 has no Ray (vLLM 0.32.0+cpu, Ray absent" in fault.cause
    assert "pip install 'ray[default]'" in fault.remedy
    assert "choose an image that has it" in fault.remedy


def test_gate_opens_on_a_good_image_and_says_its_vllm(image: list[tuple[str, ...]]) -> None:
    found = ImageGateProvider().create(gate())
    assert found.outs
    assert (found.id, found.outs["vllm"]) == (IMAGE_ID, "0.32.0+cpu")
    asked = list(image)
    assert [argv[-3:] for argv in asked[1:]] == [("serve", "--enforce-eager", "--help")]
    assert ImageGateProvider().read(IMAGE_ID, found.outs).outs == found.outs
    ImageGateProvider().create(gate())
    assert image == asked, "once for each image and arguments"


USAGE = "usage: vllm serve [model_tag] [options]\nvllm serve: error: "
BANANA = "argument --max-model-len: invalid human_readable_int_or_auto value: 'banana'"


def answering(monkeypatch: pytest.MonkeyPatch, code: int, error: str) -> list[tuple[str, ...]]:
    """An image whose `vllm serve ... --help` ends so; the commands that asked it for that."""
    asked: list[tuple[str, ...]] = []

    def run(_self: Connection, *argv: str, **_: Any) -> subprocess.CompletedProcess[str]:
        if argv[argv.index("--entrypoint") + 1] == "python3":
            return subprocess.CompletedProcess(argv, 0, contents().model_dump_json(), "")
        asked.append(argv)
        return subprocess.CompletedProcess(argv, code, "", error)

    monkeypatch.setattr(Connection, "run", run)
    return asked


def test_gate_refuses_a_value_that_the_engine_does_not_take_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, 2, f"{USAGE}{BANANA}\n")
    given = gate(arguments={"vllm serve": ["--max-model-len=banana"], "ray start": []})
    for _ in range(2):
        with pytest.raises(Fault) as caught:
            ImageGateProvider().update(IMAGE_ID, gate(), given)
        assert caught.value.cause == f"`vllm serve` of image vllm:1 refuses its arguments: {BANANA}"
        assert caught.value.remedy.startswith("correct `engine_arguments`")
    assert len(asked) == 2


@pytest.mark.parametrize(("code", "error"), [(1, "Traceback …\nRuntimeError: no device"), (2, "exec: vllm: not found")])
def test_values_that_nothing_reads_are_told_and_no_fault(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int, error: str
) -> None:
    asked = answering(monkeypatch, code, error)
    ImageGateProvider().create(gate())
    told = capfd.readouterr().out
    assert f"spark-1: values of `vllm serve` go unchecked: exit code {code}: {error}" in told
    ImageGateProvider().create(gate())
    assert len(asked) == 2, "it may be an error of that moment"


def test_without_engine_arguments_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, 2, USAGE)
    ImageGateProvider().create(gate(arguments={"vllm serve": []}))
    ImageGateProvider().create(gate(arguments={"ray start": ["--num-cpus=2"]}))
    assert not asked


def test_gate_refuses_what_the_image_does_not_know(image: list[tuple[str, ...]]) -> None:  # noqa: ARG001
    with pytest.raises(Faults, match="does not know --no-such-flag"):
        ImageGateProvider().update(IMAGE_ID, gate(), gate(arguments={"vllm serve": ["--no-such-flag"]}))


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, False),
        ({"image": "vllm:2"}, False),
        ({"image_id": "sha256:" + "2e" * 32}, True),
        ({"mounts": []}, True),
        ({"arguments": {"vllm serve": []}}, True),
    ],
)
def test_gate_asks_anew_for_what_matters(changes: dict[str, Any], changed: bool) -> None:
    assert ImageGateProvider().diff(IMAGE_ID, gate(), gate(**changes)).changes is changed


def test_an_image_that_is_not_there_yet_is_left_to_the_gate(image: list[tuple[str, ...]]) -> None:
    docker: dict[str, Any] = {"version": "28.5.2", "driver": "overlay2", "image": None, "containers": []}
    absent = {name: survey(number, docker=docker) for number, name in ((1, "spark-1"), (2, "spark-2"))}
    assert (
        vllm_image.check(cluster(engine_arguments=["--no-such-flag"]), "test", absent, Plan("spark-1", None), print)
        == []
    )
    assert not image


def test_the_node_that_has_the_image_is_asked(image: list[tuple[str, ...]]) -> None:
    bare: dict[str, Any] = {"version": "28.5.2", "driver": "overlay2", "image": None, "containers": []}
    having = {**bare, "image": inspected()}
    facts = {"spark-1": survey(1, docker=bare), "spark-2": survey(2, docker=having)}
    plan = Plan("spark-2", facts["spark-2"].docker.image)
    found = vllm_image.check(cluster(engine_arguments=["--no-such-flag"]), "test", facts, plan, print)
    assert [fault.node for fault in found] == ["spark-2"]
    assert len(image) == 1
