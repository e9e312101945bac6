"""RDMA: the GID that NCCL takes by itself, and when it must be told another."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from hosts.facts import Hca
from hosts.rdma import chosen_by_nccl, gid_index, of_address
from tests.samples import gids, hca

FABRIC = ipaddress.ip_address("192.168.200.12")


def device(*addresses: str, name: str = "rocep1s0f1", netdev: str = "enp1s0f1np1") -> Hca:
    return Hca.model_validate(hca(name, netdev, gids=gids(*addresses)))


def twin(*addresses: str) -> Hca:
    return device(*addresses, name="roceP2p1s0f1", netdev="enP2p1s0f1np1")


def shuffled(*slots: tuple[int, str, str]) -> Hca:
    """A device whose table has these slots: index, GID, type."""
    table: list[dict[str, Any]] = [{"index": i, "gid": gid, "type": kind} for i, gid, kind in slots]
    return Hca.model_validate(hca("rocep1s0f1", "enp1s0f1np1", gids=table))


@pytest.mark.parametrize(
    ("addresses", "version", "index"),
    [
        (("192.168.200.12",), 4, 3),
        (("fd00::12", "192.168.200.12"), 4, 5),
        (("fd00::12", "192.168.200.12"), 6, 3),
        (("169.254.7.7", "192.168.200.12"), 4, 3),  # NCCL takes IPv4's link-local for a good one
        ((), 4, 0),
    ],
)
def test_nccl_takes_the_first_routable_v2_address_of_the_ip_version(
    addresses: tuple[str, ...], version: int, index: int
) -> None:
    taken = chosen_by_nccl(device(*addresses), version)
    assert taken
    assert taken.index == index


def test_order_of_the_table_does_not_matter_to_nccl() -> None:
    """A link event leaves holes and puts v2 before v1."""
    found = shuffled(
        (1, "fe80::1", "RoCE v2"), (4, "::ffff:192.168.200.12", "RoCE v2"), (7, "::ffff:192.168.200.12", "IB/RoCE v1")
    )
    taken = chosen_by_nccl(found, 4)
    assert taken
    assert (taken.index, str(taken.address), taken.v2) == (4, "192.168.200.12", True)


def test_v1_is_better_than_another_ip_version() -> None:
    found = shuffled((0, "fe80::1", "RoCE v2"), (2, "::ffff:192.168.200.12", "IB/RoCE v1"))
    taken = chosen_by_nccl(found, 4)
    assert taken
    assert taken.index == 2
    assert of_address(found, FABRIC) is None


def test_unknown_table_is_no_choice() -> None:
    assert chosen_by_nccl(Hca(name="rocep1s0f1", interfaces=("enp1s0f1np1",), state="4: ACTIVE"), 4) is None


@pytest.mark.parametrize(
    ("hcas", "index"),
    [
        pytest.param([device("192.168.200.12"), twin("192.168.201.12")], None, id="NCCL finds it"),
        pytest.param([device("169.254.7.7", "192.168.200.12")], 5, id="another address first"),
        pytest.param(
            [device("10.0.0.5", "192.168.200.12"), twin("10.0.1.5", "192.168.201.12")], 5, id="same slot on the twin"
        ),
        pytest.param(
            [device("10.0.0.5", "192.168.200.12"), twin("192.168.201.12")], None, id="slot is not filled on the twin"
        ),
        pytest.param(
            [device("10.0.0.5", "192.168.200.12"), twin("10.0.1.5", "fd00::5")], None, id="slot is IPv6 on the twin"
        ),
        pytest.param([device("10.0.0.5")], None, id="no GID of the address"),
        pytest.param([twin("192.168.200.12")], None, id="not behind the fabric's interface"),
        pytest.param([], None, id="no devices"),
    ],
)
def test_index_is_given_only_where_nccl_would_take_another_address(hcas: list[Hca], index: int | None) -> None:
    assert gid_index(hcas, "enp1s0f1np1", FABRIC) == index
