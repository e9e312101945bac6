"""The ssh configuration of the lab never dials outside it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lab import access

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="needs OpenSSH")
PRESENT, ABSENT = "lo", "no-such-bridge"
JUMP = ("-o", "ProxyJump=aurora@10.1.230.180", "aurora@192.168.200.13")


def configuration(folder: Path, device: str) -> Path:
    path = folder / "ssh_config"
    path.write_text(access.ssh_config(device=device, key=folder / "key", known_hosts=folder / "known_hosts"))
    return path


def settings(config: Path, *target: str) -> dict[str, str]:
    shown = subprocess.run(["ssh", "-G", "-F", str(config), *target], check=True, capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line)


@pytest.mark.parametrize(
    "target", [("spark-1",), ("spark-2",), ("aurora@10.1.230.180",), ("192.168.200.13",), JUMP, ("example.org",)]
)
def test_no_bridge_no_dialling(tmp_path: Path, target: tuple[str, ...]) -> None:
    config = configuration(tmp_path, ABSENT)
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", *target, "true"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 255
    assert refused.stderr.splitlines()[0].startswith(f"the lab is down (no device {ABSENT}): not dialling")


@pytest.mark.parametrize("target", ["192.0.2.1", "example.org", "root@10.1.2.3"])
def test_only_addresses_of_the_lab(tmp_path: Path, target: str) -> None:
    config = configuration(tmp_path, PRESENT)
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", target, "true"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 255
    assert "is no address of the lab: not dialling it" in refused.stderr.splitlines()[0]


def test_nodes_are_dialled_while_the_bridge_is_there(tmp_path: Path) -> None:
    config = configuration(tmp_path, PRESENT)
    for target in ("spark-1", "aurora@10.1.230.180"):
        shown = settings(config, target)
        assert (shown["hostname"], shown["user"]) == ("10.1.230.180", "aurora")
        assert "proxycommand" not in shown
        assert "proxyjump" not in shown
    for through_head, address in ((("spark-2",), "13"), (JUMP, "13"), (("spark-8",), "19")):
        shown = settings(config, *through_head)
        assert shown["hostname"] == f"192.168.200.{address}"
        assert shown["proxyjump"].replace("[", "").replace("]", "") == "aurora@10.1.230.180"
        assert shown["stricthostkeychecking"] in {"true", "yes"}
        assert shown["userknownhostsfile"] == str(tmp_path / "known_hosts")
