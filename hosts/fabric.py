"""Which address, interface and HCAs each node uses on the fabric: found from facts, never from a fixed name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hosts import rdma
from hosts.facts import Hca
from hosts.faults import Fault, Faults
from hosts.survey import Interface, Survey
from settings import Cluster, Node, Overridable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
End = tuple[Interface, ipaddress.IPv4Interface | ipaddress.IPv6Interface]
"""An interface with one of its addresses."""
PLACE = re.compile(r"p\d+s")
"""Bus and slot on PCI in a name that udev gave (systemd.net-naming-scheme; rdma-core's rdma_rename)."""
T = TypeVar("T")


@dataclass(frozen=True)
class Fabric:
    """One node's end of the fabric."""

    address: str
    interface: str
    hcas: tuple[str, ...]
    """RDMA devices of the port, both PCIe twins of a Spark's QSFP cage; empty without RDMA."""
    reason: str
    """Why this address."""
    gid_index: int | None = None
    """NCCL_IB_GID_INDEX, only where it is given or NCCL would not find this address itself (hosts/rdma.py)."""
    rdma: bool = True
    """Whether every node has such devices: both ends of a connection of NCCL must use them, or neither."""

    def endpoint(self, port: int) -> str:
        """`address:port`, an IPv6 address in brackets."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"


def choose(cluster: Cluster, surveys: Mapping[str, Survey]) -> dict[str, Fabric]:
    """The fabric end of every node.

    An address given in the settings wins; otherwise the one subnet that all nodes share over RDMA, else the fastest
    shared one; among either, link-local addresses (169.254.0.0/16) come last. Interfaces without a cable do not count,
    and only the interface and the HCAs that the settings name are looked at, where they name any.

    Raises:
        Faults: of all nodes at once: an address, interface or HCA that its node does not have, no shared subnet, or
            several candidates for the fabric.
    """
    try:
        return _choose(cluster, surveys)
    except Fault as fault:
        raise Faults([fault]) from None


def _choose(cluster: Cluster, surveys: Mapping[str, Survey]) -> dict[str, Fabric]:
    if faults := list(unknown(cluster, surveys)):
        raise Faults(faults)
    facts = {node.name: _named(cluster.of(node), surveys[node.name]) for node in cluster.nodes}
    if len(cluster.nodes) == 1 and not cluster.head.fabric:
        return {cluster.head.name: _alone(cluster, facts)}
    given = _each(cluster, lambda node: _given(node, facts[node.name]) if node.fabric else None)
    network, reason = _shared(cluster, facts, given) if None in given.values() else (None, "")
    ends = _each(cluster, lambda node: given[node.name] or _in(node, facts[node.name], network))
    _distinct(ends)
    found: dict[str, Fabric] = {}
    _each(cluster, lambda node: _cabled(node, cluster.of(node), facts[node.name]))
    for node in cluster.nodes:
        interface, address = ends[node.name]
        named, own = cluster.of(node).hcas, facts[node.name]
        hcas = port_hcas(own, interface.name) if named is None else named
        index = cluster.of(node).gid_index
        if index is None:
            index = rdma.gid_index([hca for hca in own.hcas if hca.name in hcas], interface.name, address.ip)
        why = "given as `fabric`" if node.fabric else reason
        found[node.name] = Fabric(str(address.ip), interface.name, hcas, why, index)
    everywhere = all(end.hcas for end in found.values())
    return {name: replace(end, rdma=everywhere) for name, end in found.items()}


def _each(cluster: Cluster, find: Callable[[Node], T]) -> dict[str, T]:
    """What is found for every node, by its name; raises Faults with those of all nodes."""
    found: dict[str, T] = {}
    faults: list[Fault] = []
    for node in cluster.nodes:
        try:
            found[node.name] = find(node)
        except Fault as fault:
            faults.append(fault)
    if faults:
        raise Faults(faults)
    return found


def _given(node: Node, facts: Survey) -> End:
    """The end that has the address of the settings."""
    address = str(node.fabric)
    end = next(((i, a) for i, a in _addresses(facts) if str(a.ip) == address), None)
    if end is None:
        raise Fault(
            node.name,
            f"has no interface that is up with the fabric address {address}",
            f"correct `fabric` of the node, or bring the interface up; these are up: {_list(facts)}",
        )
    if end[0].down:
        raise Fault(
            node.name,
            f"the fabric address {address} is on {end[0].name}, which has no carrier",
            f"plug the cable in at both ends, or correct `fabric` of the node; these are up: {_list(facts)}",
        )
    return end


def _in(node: Node, own: Survey, network: Network | None) -> End:
    """The node's end in the chosen subnet: over RDMA before others, then the fastest; a tie is the user's to decide."""
    firsts: dict[str, End] = {}
    for interface, address in _connected(own):
        if address.network == network:
            firsts.setdefault(interface.name, (interface, address))  # its primary address
    ends = list(firsts.values())
    ends = [end for end in ends if port_hcas(own, end[0].name)] or ends
    ends = [end for end in ends if (end[0].speed or 0) == max(i.speed or 0 for i, _ in ends)]
    ends = _one_a_cage(own, ends)
    if len(ends) > 1:
        raise Fault(
            node.name,
            f"has several interfaces in the fabric's subnet {network}: "
            + ", ".join(f"{interface.name} {address.ip}" for interface, address in ends),
            f"say which: set `fabric` of {node.name} to one of these addresses (or `interface`), or move the "
            "other interface to another subnet",
        )
    return ends[0]


def _distinct(ends: Mapping[str, End]) -> None:
    seen: dict[str, str] = {}
    for name, (_, address) in ends.items():
        first = seen.setdefault(str(address.ip), name)
        if first != name:
            raise Fault(
                f"{first}, {name}",
                f"both have the fabric address {address.ip}",
                "are they the same host? Correct `ssh` of one, or the address on it",
            )


def unknown(cluster: Cluster, surveys: Mapping[str, Survey]) -> Iterator[Fault]:
    """What the settings name and the node does not have, of all nodes that answered."""
    for node in cluster.nodes:
        if node.name not in surveys:
            continue
        own, facts = cluster.of(node), surveys[node.name]
        devices = [device.name for device in facts.hcas]
        if absent := [hca for hca in own.hcas or () if hca not in devices]:
            yield Fault(
                node.name,
                f"has no RDMA device {', '.join(absent)}",
                f"correct `hcas`; it has: {', '.join(devices) or 'none'}",
            )
        if own.interface not in (None, *(interface.name for interface in facts.interfaces)):
            yield Fault(
                node.name,
                f"has no interface {own.interface} that is up with an address",
                f"correct `interface`, or bring it up; these are up: {_list(facts)}",
            )


def _named(own: Overridable, facts: Survey) -> Survey:
    """The facts without the interfaces that the settings rule out."""
    if own.interface is None:
        return facts
    chosen = tuple(interface for interface in facts.interfaces if interface.name == own.interface)
    return facts.model_copy(update={"interfaces": chosen})


def _cabled(node: Node, own: Overridable, facts: Survey) -> None:
    """A Fault where the settings name an RDMA device that can carry nothing."""
    down = [hca for hca in facts.hcas if hca.name in (own.hcas or ()) and not hca.active]
    if down:
        raise Fault(
            node.name,
            "`hcas` names RDMA devices that are not active: " + ", ".join(f"{hca.name} {hca.state}" for hca in down),
            "plug the cable in at both ends, or leave them out of `hcas`; these are active: "
            + (", ".join(hca.name for hca in facts.hcas if hca.active) or "none"),
        )


def _alone(cluster: Cluster, surveys: Mapping[str, Survey]) -> Fabric:
    facts = surveys[cluster.head.name]
    # A stable sort: link-local addresses last.
    for interface, address in sorted(_connected(facts) or _addresses(facts), key=lambda end: end[1].is_link_local):
        hcas = cluster.of(cluster.head).hcas or ()
        return Fabric(str(address.ip), interface.name, hcas, "the only node: its first address")
    raise Fault(cluster.head.name, "has no interface with an address", "bring a network interface up")


def _shared(cluster: Cluster, surveys: Mapping[str, Survey], given: Mapping[str, End | None]) -> tuple[Network, str]:
    names = ", ".join(node.name for node in cluster.nodes)
    networks = [
        {end[1].network} if (end := given[node.name]) else {a.network for _, a in _connected(surveys[node.name])}
        for node in cluster.nodes
    ]
    shared = sorted(set.intersection(*networks), key=str)
    evidence = "\n".join(f"{node.name}: {_list(surveys[node.name])}" for node in cluster.nodes)
    if not shared:
        raise Fault(
            names,
            "no subnet is shared by all nodes",
            "cable the fabric and give each end an address of one subnet; where they are routed, set `fabric` "
            "of each node",
            evidence,
        )
    over_rdma = [n for n in shared if all(_has_rdma(surveys[node.name], n) for node in cluster.nodes)]
    candidates = _assigned(over_rdma) or _fastest(_joined(_assigned(shared), surveys), surveys)
    head = surveys[cluster.head.name]
    cabled = _one_a_cage(head, ((i, a) for i, a in _connected(head) if a.network in candidates))
    best = sorted({address.network for _, address in cabled}, key=str)
    if len(best) > 1:
        raise Fault(
            names,
            f"several subnets could be the fabric: {', '.join(map(str, best))}",
            "say which: set `fabric` of each node to its address in one of them",
            evidence,
        )
    if over_rdma:
        roce = all(hca.roce for hca in head.hcas if any(end[0].name in hca.interfaces for end in cabled))
        return best[0], f"shared by all nodes over {'RoCE' if roce else 'InfiniBand'}"
    return best[0], "the only subnet shared" if len(shared) == 1 else "fastest shared"


def _assigned(networks: list[Network]) -> list[Network]:
    """The networks without 169.254.0.0/16, unless it is the only one.

    Every cable with link-local addresses is in it: that nodes share it does not show that they are on one cable.
    """
    return [network for network in networks if not network.is_link_local] or networks


def _joined(networks: list[Network], surveys: Mapping[str, Survey]) -> list[Network]:
    """The networks without those in which two nodes have the same addresses, unless there is no other.

    A bridge for containers or virtual machines (virbr0: 192.168.122.1 everywhere) joins no nodes.
    """

    def joins(network: Network) -> bool:
        own = [frozenset(a.ip for _, a in _connected(facts) if a.network == network) for facts in surveys.values()]
        return len(set(own)) == len(own)

    return [network for network in networks if joins(network)] or networks


def _has_rdma(facts: Survey, network: Network) -> bool:
    return any(port_hcas(facts, i.name) for i, address in _connected(facts) if address.network == network)


def _one_a_cage(facts: Survey, ends: Iterable[End]) -> list[End]:
    """One end of each cable: both twins of a cage may have addresses (NVIDIA's netplan)."""
    cages: dict[object, list[End]] = {}
    for interface, address in ends:
        cages.setdefault(port_hcas(facts, interface.name) or interface.name, []).append((interface, address))
    # The twin of PCI domain 0 (enp1…, not enP2p1…) is the one for sockets; lower case sorts behind upper case.
    # Of both IP versions on it, IPv4.
    return [max(same, key=lambda end: (end[0].name, end[1].version == 4)) for same in cages.values()]


def _fastest(shared: list[Network], surveys: Mapping[str, Survey]) -> list[Network]:
    """The subnets whose slowest end is fastest."""

    def speed(network: Network) -> int:
        return min(
            max((i.speed or 0 for i, a in _connected(facts) if a.network == network), default=0)
            for facts in surveys.values()
        )

    top = max(map(speed, shared))
    return [network for network in shared if speed(network) == top]


def port_hcas(facts: Survey, interface: str) -> tuple[str, ...]:
    """HCAs behind an interface with their PCIe twins.

    One QSFP cage of a Spark is two logical ports on two PCIe links (enp1s0f1np1 and enP2p1s0f1np1, rocep1s0f1 and
    roceP2p1s0f1); NCCL reaches full bandwidth only with both (NVIDIA's connect-two-sparks playbook).
    """
    own = [hca for hca in facts.hcas if interface in hca.interfaces]
    cages = {_cage(hca) for hca in own}
    return tuple(hca.name for hca in facts.hcas if hca.active and _cage(hca) in cages)


def _cage(hca: Hca) -> str:
    """What both twins share: the name without the PCI domain; the interface's where the kernel named it, as mlx5_0."""
    name = hca.name if PLACE.search(hca.name) else min(hca.interfaces, default=hca.name)
    return re.sub(rf"P\d+(?={PLACE.pattern})", "", name)


def _addresses(facts: Survey) -> list[End]:
    return [(interface, address) for interface in facts.interfaces for address in interface.addresses]


def _connected(facts: Survey) -> list[End]:
    """The ends with a cable in them: an interface keeps its static addresses without one."""
    return [(interface, address) for interface, address in _addresses(facts) if not interface.down]


def _list(facts: Survey) -> str:
    ends = (f"{i.name} {address}{' (no carrier)' if i.down else ''}" for i, address in _addresses(facts))
    return ", ".join(ends) or "none"
