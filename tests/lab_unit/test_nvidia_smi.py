"""The stand-in answers as nvidia-smi does on a DGX Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.layout import FILES


@pytest.fixture
def smi(tmp_path: Path) -> "Smi":
    return Smi(tmp_path)


class Smi:
    def __init__(self, settings: Path) -> None:
        self.settings = settings

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, str(FILES / "nvidia_smi.py"), *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "LAB_SETTINGS": str(self.settings)},
        )
        assert done.returncode == code, done.stderr
        return done.stdout


def test_list(smi: Smi) -> None:
    line = smi("-L").strip()
    assert line.startswith("GPU 0: NVIDIA GB10 (UUID: GPU-")


def test_memory_is_not_available(smi: Smi) -> None:
    assert smi("--query-gpu=memory.total,memory.used,memory.free", "--format=csv").splitlines() == [
        "memory.total [MiB], memory.used [MiB], memory.free [MiB]",
        "[N/A], [N/A], [N/A]",
    ]


def test_units_and_header_can_be_left_out(smi: Smi) -> None:
    assert smi("--query-gpu=index,name,utilization.gpu", "--format=csv,noheader").strip() == "0, NVIDIA GB10, 0 %"
    assert smi("--query-gpu=utilization.gpu,compute_cap", "--format=csv,noheader,nounits").strip() == "0, 12.1"


def test_number_of_gpus(smi: Smi) -> None:
    (smi.settings / "gpus").write_text("2\n")
    assert len(set(smi("--query-gpu=uuid", "--format=csv,noheader").split())) == 2
    (smi.settings / "gpus").write_text("0\n")
    assert smi("-L", code=6).strip() == "No devices were found"


def test_compute_apps(smi: Smi) -> None:
    query = ("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv")
    assert smi(*query).strip() == "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    (smi.settings / "compute-apps.csv").write_text("114687, /usr/local/bin/python, 19135\n")
    row = smi(*query).splitlines()[1]
    assert row.endswith(", 114687, /usr/local/bin/python, 19135 MiB")
    assert "19135MiB" in smi()


def test_plain_table(smi: Smi) -> None:
    table = smi().splitlines()
    assert any("Not Supported" in line for line in table)
    assert any("/usr/lib/xorg/Xorg" in line and "18MiB" in line for line in table)
    assert {len(line) for line in table[1:] if line} == {91}


def test_unknown_field_and_arguments(smi: Smi) -> None:
    said = smi("--query-gpu=name,nonsense", "--format=csv", code=2)
    assert said.startswith('Field "nonsense" is not a valid field to query.')
    assert smi("--nonsense", code=1).startswith("Invalid combination of input arguments.")
