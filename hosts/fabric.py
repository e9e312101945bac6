"""Which address, interface and HCAs each node uses on the RoCE link: found from facts, never from a fixed name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hosts.faults import Fault
from hosts.survey import Hca, Interface, Survey
from settings import Cluster, Overridable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Fabric:
    """One node's end of the fabric."""

    address: str
    interface: str
    hcas: tuple[str, ...]
    """RoCE devices of the port, both PCIe twins of a Spark's QSFP cage; empty without RDMA."""
    reason: str
    """Why this address."""

    def endpoint(self, port: int) -> str:
        """`address:port`, an IPv6 address in brackets."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"


def choose(cluster: Cluster, surveys: Mapping[str, Survey]) -> dict[str, Fabric]:
    """The fabric end of every node.

    An address given in the settings wins; otherwise the one subnet that all nodes share. Only the interface and the
    HCAs that the settings name are looked at, where they name any.

    Raises:
        Fault: an address, interface or HCA that its node does not have, no shared subnet, or several.
    """
    surveys = {node.name: _named(cluster.of(node), node.name, surveys[node.name]) for node in cluster.nodes}
    if len(cluster.nodes) == 1 and not cluster.head.fabric:
        return {cluster.head.name: _alone(cluster, surveys)}
    given = {node.name: str(node.fabric) for node in cluster.nodes if node.fabric}
    if len(given) < len(cluster.nodes):
        network, reason = _shared(cluster, surveys, given)
    found: dict[str, Fabric] = {}
    for node in cluster.nodes:
        if node.name in given:
            address, why = given[node.name], "given as `fabric`"
            interface = next((i for i, a in _addresses(surveys[node.name]) if str(a.ip) == address), None)
            if interface is None:
                raise Fault(
                    node.name,
                    f"has no interface that is up with the fabric address {address}",
                    "correct `fabric` of the node, or bring the interface up; these are up: "
                    + _list(surveys[node.name]),
                )
        else:
            interface, address = next(
                (i, str(a.ip)) for i, a in _addresses(surveys[node.name]) if a.network == network
            )  # fmt: skip
            why = reason
        taken = next((name for name, end in found.items() if end.address == address), None)
        if taken:
            raise Fault(
                f"{taken}, {node.name}",
                f"both have the fabric address {address}",
                "are they the same host? Correct `ssh` of one, or the address on it",
            )
        hcas = cluster.of(node).hcas
        found[node.name] = Fabric(
            address, interface.name, port_hcas(surveys[node.name], interface.name) if hcas is None else hcas, why
        )
    return found


def _named(own: Overridable, node: str, facts: Survey) -> Survey:
    """The facts without the interfaces that the settings rule out; a Fault where they name what is not there."""
    for hca in own.hcas or ():
        known = [device.name for device in facts.hcas]
        if hca not in known:
            raise Fault(node, f"has no RDMA device {hca}", f"correct `hcas`; it has: {', '.join(known) or 'none'}")
    if own.interface is None:
        return facts
    chosen = tuple(interface for interface in facts.interfaces if interface.name == own.interface)
    if not chosen:
        raise Fault(
            node,
            f"has no interface {own.interface} that is up with an address",
            f"correct `interface`, or bring it up; these are up: {_list(facts)}",
        )
    return facts.model_copy(update={"interfaces": chosen})


def _alone(cluster: Cluster, surveys: Mapping[str, Survey]) -> Fabric:
    for interface, address in _addresses(surveys[cluster.head.name]):
        hcas = cluster.of(cluster.head).hcas or ()
        return Fabric(str(address.ip), interface.name, hcas, "the only node: its first address")
    raise Fault(cluster.head.name, "has no interface with an address", "bring a network interface up")


def _shared(cluster: Cluster, surveys: Mapping[str, Survey], given: Mapping[str, str]) -> tuple[Network, str]:
    names = ", ".join(node.name for node in cluster.nodes)
    networks = [
        {a.network for _, a in _addresses(surveys[n.name]) if given.get(n.name) in (None, str(a.ip))}
        for n in cluster.nodes
    ]
    shared = sorted(set.intersection(*networks), key=str)
    evidence = "\n".join(f"{node.name}: {_list(surveys[node.name])}" for node in cluster.nodes)
    if not shared:
        raise Fault(
            names, "no subnet is shared by all nodes", "cable the fabric and give each end an address", evidence
        )
    rdma = [n for n in shared if all(_has_rdma(surveys[node.name], n) for node in cluster.nodes)]
    best = _first_twin(rdma, cluster, surveys) or _fastest(shared, surveys)
    if len(best) > 1:
        raise Fault(
            names,
            f"several subnets could be the fabric: {', '.join(map(str, best))}",
            "say which: set `fabric` of each node",
            evidence,
        )
    return best[0], (
        "shared by all nodes over RoCE" if rdma else "the only subnet shared" if len(shared) == 1 else "fastest shared"
    )


def _has_rdma(facts: Survey, network: Network) -> bool:
    return any(port_hcas(facts, i.name) for i, address in _addresses(facts) if address.network == network)


def _first_twin(networks: list[Network], cluster: Cluster, surveys: Mapping[str, Survey]) -> list[Network]:
    """One network where all run over the same cable: both twins of a cage may have addresses (NVIDIA's netplan)."""
    head = surveys[cluster.head.name]
    cages: dict[frozenset[str], list[tuple[str, Network]]] = {}
    for interface, address in _addresses(head):
        if address.network in networks:
            cage = frozenset(port_hcas(head, interface.name))
            cages.setdefault(cage, []).append((interface.name, address.network))
    # The twin of PCI domain 0 (enp1…, not enP2p1…) is the one for sockets; lower case sorts behind upper case.
    # Of both IP versions on it, IPv4.
    return [max(ends, key=lambda end: (end[0], end[1].version == 4))[1] for ends in cages.values()]


def _fastest(shared: list[Network], surveys: Mapping[str, Survey]) -> list[Network]:
    """The subnets whose slowest end is fastest."""

    def speed(network: Network) -> int:
        return min(
            max((i.speed or 0 for i, a in _addresses(facts) if a.network == network), default=0)
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
    return tuple(hca.name for hca in facts.hcas if "ACTIVE" in hca.state and _cage(hca) in cages)


def _cage(hca: Hca) -> str:
    """What both twins share: the name without the PCI domain."""
    return re.sub(r"P\d+(?=p\d+s)", "", hca.name)


def _addresses(
    facts: Survey,
) -> list[tuple[Interface, ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
    return [(interface, address) for interface in facts.interfaces for address in interface.addresses]


def _list(facts: Survey) -> str:
    return ", ".join(f"{interface.name} {address}" for interface, address in _addresses(facts)) or "none"
