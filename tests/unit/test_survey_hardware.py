"""The second part of the survey script: RDMA devices from sysfs, and what varies from run to run."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from hosts.survey import Survey
from tests.unit.test_survey import run


def sysfs(
    tmp_path: Path, name: str, netdev: str, state: str, table: dict[int, tuple[str, str]], *, upper: str = ""
) -> str:
    """An HCA as the kernel shows it; the line that makes the script look there. Free slots are zero, without a type."""
    root = tmp_path / "infiniband"
    port = root / name / "ports/1"
    (root / name / "device/net" / netdev).mkdir(parents=True)
    (root / name / "device/net" / netdev / "mtu").write_text("9000\n")
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text("Ethernet\n")
    for slot in range(256):
        gid, kind = table.get(slot, ("0000:0000:0000:0000:0000:0000:0000:0000", ""))
        (port / f"gids/{slot}").write_text(f"{gid}\n")
        if kind:
            (port / f"gid_attrs/types/{slot}").write_text(f"{kind}\n")
            (port / f"gid_attrs/ndevs/{slot}").write_text(f"{upper or netdev}\n")
    return f"INFINIBAND = Path({str(root)!r})"


TABLE = {
    0: ("fe80:0000:0000:0000:4ebb:47ff:fe2c:02a6", "IB/RoCE v1"),
    1: ("fe80:0000:0000:0000:4ebb:47ff:fe2c:02a6", "RoCE v2"),
    2: ("0000:0000:0000:0000:0000:ffff:c0a8:c80c", "IB/RoCE v1"),
    11: ("0000:0000:0000:0000:0000:ffff:c0a8:c80c", "RoCE v2"),
}


def answer(tmp_path: Path, before: str = "", **question: Any) -> Survey:
    return Survey.model_validate(run(tmp_path, before=before, **question))


def test_gid_table_is_read_with_its_holes(tmp_path: Path) -> None:
    before = sysfs(tmp_path, "rocep1s0f1", "enp1s0f1np1", "4: ACTIVE", TABLE)
    (found,) = answer(tmp_path, before).hcas
    assert (found.name, found.interfaces, found.state) == ("rocep1s0f1", ("enp1s0f1np1",), "4: ACTIVE")
    assert (found.link_layer, found.active, found.mtus) == ("Ethernet", True, {"enp1s0f1np1": 9000})
    assert [(gid.index, gid.v2) for gid in found.gids] == [(0, False), (1, True), (2, False), (11, True)]
    assert str(found.gids[3].address) == "192.168.200.12"
    assert found.gids[0].address.version == 6


@pytest.mark.parametrize("upper", ["enp1s0f1np1.100", "bond0"])
def test_vlan_and_bond_on_an_interface_are_known_by_their_gids(tmp_path: Path, upper: str) -> None:
    before = sysfs(tmp_path, "rocep1s0f1", "enp1s0f1np1", "4: ACTIVE", TABLE, upper=upper)
    (found,) = answer(tmp_path, before).hcas
    assert set(found.interfaces) == {"enp1s0f1np1", upper}
    assert found.mtus == {"enp1s0f1np1": 9000}


def test_port_that_is_down_is_not_read_any_further(tmp_path: Path) -> None:
    before = sysfs(tmp_path, "rocep1s0f0", "enp1s0f0np0", "1: DOWN", TABLE)
    (found,) = answer(tmp_path, before).hcas
    assert (found.active, found.gids) == (False, ())


def test_device_whose_interface_gives_no_mtu_has_none(tmp_path: Path) -> None:
    before = sysfs(tmp_path, "rocep1s0f1", "enp1s0f1np1", "4: ACTIVE", TABLE)
    (tmp_path / "infiniband/rocep1s0f1/device/net/enp1s0f1np1/mtu").unlink()
    (found,) = answer(tmp_path, before).hcas
    assert (found.interfaces, found.mtus) == (("enp1s0f1np1",), {})


def test_machine_without_rdma_has_no_devices(tmp_path: Path) -> None:
    assert answer(tmp_path, f"INFINIBAND = Path({str(tmp_path / 'absent')!r})").hcas == ()


def test_system_memory_and_clock_are_this_machines(tmp_path: Path) -> None:
    before = time.time()
    found = answer(tmp_path)
    after = time.time()
    assert found.kernel == platform.release()
    assert found.os == platform.freedesktop_os_release()["PRETTY_NAME"]
    assert found.memory
    assert found.memory.total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < found.memory.available < found.memory.total
    assert found.clock
    assert before <= found.clock.started <= found.clock.ended <= after


def test_room_is_that_of_the_nearest_parent_that_exists(tmp_path: Path) -> None:
    found = answer(tmp_path, model=str(tmp_path / "not/yet/there"))
    assert found.model_room
    assert found.model_room.path == str(tmp_path / "not/yet/there")
    assert 0 < found.model_room.free <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert found.model_room.device == tmp_path.stat().st_dev
    assert found.image_room is None, "no Docker, no directory"


def test_model_whose_name_is_no_utf8_is_listed_as_well_as_it_can_be(tmp_path: Path) -> None:
    for name in (b"Qwen3\xe9", b"Qwen3"):
        entry = Path(os.fsdecode(os.fsencode(tmp_path) + b"/models/" + name))
        entry.mkdir(parents=True)
        (entry / "config.json").touch()
    assert answer(tmp_path, model=f"{tmp_path}/models/Qwen3").models == ("Qwen3", "Qwen3?")


def test_models_beside_the_wanted_one_are_listed(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").touch()
    (tmp_path / "models" / "half").mkdir()
    assert answer(tmp_path, model=str(tmp_path / "models/wanted")).models == ("a", "b")


def ways(tmp_path: Path, info: dict[str, Any]) -> list[str]:
    before = (
        f"shutil.which = lambda *_, **__: None\nfound = gpu_runtimes({info!r})\nhardware = lambda *_: {{'w': found}}"
    )
    found: list[str] = run(tmp_path, before=before)["w"]
    return found


def test_ways_to_grant_gpus_are_those_of_docker_info(tmp_path: Path) -> None:
    device = {"Source": "cdi", "ID": "nvidia.com/gpu=all"}
    assert ways(tmp_path, {"Runtimes": {"nvidia": {}, "runc": {}}}) == ["runtime"]
    assert ways(tmp_path, {"Runtimes": {"runc": {}}, "DiscoveredDevices": [device]}) == ["CDI"]
    assert ways(tmp_path, {"Runtimes": {"runc": {}}, "DiscoveredDevices": None}) == []


def test_directory_of_the_images_is_dockers(tmp_path: Path) -> None:
    info = {"DockerRootDir": "/data/docker", "DriverStatus": [["Backing Filesystem", "extfs"]]}
    before = f"hardware = lambda *_: {{'r': image_root({info!r})}}"
    assert run(tmp_path, before=before)["r"] == "/data/docker"
