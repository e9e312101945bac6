"""Which operation of the engine this is: real process trees with an engine that is named `pulumi`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "from hosts.operation import destroying, previewing; print(destroying(), previewing())"
ENGINE = f"""
import subprocess, sys
host = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
subprocess.run([{sys.executable!r}, "-c", host, {ASK!r}], check=True)
"""


def run_engine(tmp_path: Path, script: str, *words: str, name: str = "pulumi") -> list[str]:
    """Words printed below an engine with this name and command line."""
    program = tmp_path / name
    program.symlink_to(Path(sys.executable).resolve())
    # Python takes its first word for a script: the engine's operation is the name of the script.
    (tmp_path / words[0]).write_text(script)
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def seen_under(tmp_path: Path, *words: str, name: str = "pulumi") -> str:
    """What a program says below an engine, with a language host in between."""
    destroying, previewing = run_engine(tmp_path, ENGINE, *words, name=name)
    return {("True", "False"): "destroy", ("False", "True"): "preview", ("False", "False"): "another"}[
        destroying, previewing
    ]


@pytest.mark.parametrize("words", [("destroy",), ("destroy", "--yes", "--stack", "lab"), ("down", "-y"), ("dn",)])
def test_destroy_is_seen_under_each_of_its_names(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert seen_under(tmp_path, *words) == "destroy"


@pytest.mark.parametrize("words", [("preview",), ("pre", "--diff")])
def test_preview_is_seen_under_each_of_its_names(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert seen_under(tmp_path, *words) == "preview"


@pytest.mark.parametrize("words", [("up", "--yes"), ("refresh",), ("up", "--message", "destroy nothing")])
def test_other_operations_are_neither(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert seen_under(tmp_path, *words) == "another"


def test_program_without_an_engine_destroys_nothing(tmp_path: Path) -> None:
    assert seen_under(tmp_path, "destroy", name="terraform") == "another"


@pytest.mark.parametrize("words", [("up", "--stack", "down"), ("up", "-m", "destroy")])
def test_value_of_an_option_is_no_operation(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert seen_under(tmp_path, *words) == "another"


def test_destroy_is_seen_behind_the_option_that_names_the_stack(tmp_path: Path) -> None:
    program = tmp_path / "pulumi"
    program.symlink_to("/bin/bash")  # which reads what to do from its input with -s, as an engine does not
    done = subprocess.run(
        [program, "-s", "lab", "destroy"],
        input=f"{shlex.join([sys.executable, '-c', ASK])}\n:\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True False\n"
