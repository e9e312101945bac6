"""Which GID NCCL takes on each HCA, and whether it must be told another one.

Since 2.21 NCCL looks through the GID table of every HCA by itself (NCCL's user guide, NCCL_IB_GID_INDEX,
NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM; NVIDIA/nccl src/transport/net_ib/connect.cc, ncclIbGetGidIndex). An
index given from outside holds for all HCAs of the process and goes stale when a link event reorders a table (3 became
4 within half an hour on a Spark: tonyd2wild#38), so it is given only where NCCL's own choice is not the fabric's
address.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosts.facts import Address, Gid, Hca


def chosen_by_nccl(hca: Hca, version: int) -> Gid | None:
    """The GID that NCCL takes on an HCA, None where its table is not known.

    The first of RoCE v2 with an address of the wanted IP version that is not link-local; else the first of that IP
    version; else slot 0. NCCL holds only IPv6's fe80:: for link-local: an IPv4 address of 169.254.0.0/16 counts.

    Args:
        hca: the device.
        version: 4 or 6, of the IP version that NCCL_IB_ADDR_FAMILY says.
    """
    family = [gid for gid in hca.gids if gid.address.version == version and not _fe80(gid)]
    ordered = [gid for gid in family if gid.v2] + family + list(hca.gids)
    return ordered[0] if ordered else None


def of_address(hca: Hca, address: Address) -> Gid | None:
    """The GID of RoCE v2 that stands for an address on an HCA."""
    return next((gid for gid in hca.gids if gid.v2 and gid.address == address), None)


def gid_index(hcas: Sequence[Hca], interface: str, address: Address) -> int | None:
    """NCCL_IB_GID_INDEX for a node, None where NCCL finds the fabric's address itself or no one index would do.

    Args:
        hcas: the devices that NCCL uses.
        interface: of the fabric.
        address: on that interface.
    """
    own = next((hca for hca in hcas if interface in hca.interfaces), None)
    wanted = of_address(own, address) if own else None
    if own is None or wanted is None or chosen_by_nccl(own, address.version) == wanted:
        return None
    others = [hca for hca in hcas if hca is not own and hca.gids]
    fits = all(usable(hca, wanted.index, address.version) for hca in others)
    return wanted.index if fits else None


def usable(hca: Hca, index: int, version: int) -> bool:
    """Whether a slot of an HCA is as good as the one that NCCL would take there."""
    taken = next((gid for gid in hca.gids if gid.index == index), None)
    return taken is not None and taken.v2 and taken.address.version == version and not _fe80(taken)


def _fe80(gid: Gid) -> bool:
    return gid.address.version == 6 and gid.address.is_link_local
