"""Facts that the second part of the survey script gives (hosts/survey_hardware.py): RDMA devices, room, the clock."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Fact(BaseModel):
    """Base of what the survey script answers; a newer script may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Gid(Fact):
    """A filled slot of the GID table of an HCA's port: one address in one RoCE version."""

    index: int
    gid: ipaddress.IPv6Address
    """As in sysfs; an IPv4 address is mapped (::ffff:192.168.200.12)."""
    type: str
    """`IB/RoCE v1` or `RoCE v2`; empty where the kernel does not say."""

    @property
    def address(self) -> Address:
        """The address that the slot stands for."""
        return self.gid.ipv4_mapped or self.gid

    @property
    def v2(self) -> bool:
        """Whether it is of RoCE v2, which is routable (UDP)."""
        return self.type == "RoCE v2"

    @property
    def kind(self) -> str:
        """What both ends of a connection must have in common: version, and IP version, of which link-local is apart."""
        scope = " link-local" if self.address.version == 6 and self.address.is_link_local else ""
        return f"{self.type or 'unknown version'} of IPv{self.address.version}{scope}"


class Hca(Fact):
    """An RDMA device, the interfaces behind it, and its port."""

    name: str
    interfaces: tuple[str, ...]
    mtus: dict[str, int] = {}
    """MTU of each of these, also of one that is down or has no address."""
    state: str
    """Of port 1, as in sysfs, e.g. `4: ACTIVE`."""
    link_layer: str = ""
    """`Ethernet` for RoCE, or `InfiniBand`."""
    gids: tuple[Gid, ...] = ()
    """Filled slots of the table while the port is active."""

    @property
    def roce(self) -> bool:
        """Whether it speaks RoCE, and so has GIDs of IP addresses."""
        return self.link_layer != "InfiniBand"

    @property
    def active(self) -> bool:
        """Whether its port can carry traffic."""
        return "ACTIVE" in self.state


class Memory(Fact):
    """Memory of the node in bytes; a Spark's GPU has no other."""

    total: int
    available: int
    """MemAvailable: page cache that can be dropped counts as available."""


class Room(Fact):
    """Room on a file system in bytes."""

    path: str
    """What was asked for; it may not exist yet."""
    free: int
    """What a user may still write."""
    device: int | None = None
    """Number of the file system (st_dev): rooms of one number are the same room. None where it is not known."""


class Clock(Fact):
    """The node's clock when it began and when it ended its answer, in seconds since the epoch."""

    started: float
    ended: float


class Reached(Fact):
    """How the node answered: readings of one survey, never stored."""

    seconds: float
    """The ssh round trip: everything but the script's own time, a new connection's login included."""
    ahead: float
    """By how many seconds the node's clock is ahead of the operator's, half the round trip taken off."""

    @classmethod
    def between(cls, asked: float, answered: float, clock: Clock) -> Reached:
        """From the operator's clock around the survey and the node's within, as NTP does (RFC 5905, section 8)."""
        seconds = (answered - asked) - (clock.ended - clock.started)
        ahead = ((clock.started - asked) + (clock.ended - answered)) / 2
        return cls(seconds=max(seconds, 0.0), ahead=ahead)

    @property
    def least_difference(self) -> float:
        """What the clocks differ by at least: the way there and the way back may have taken unequal shares."""
        return max(0.0, abs(self.ahead) - self.seconds / 2)
