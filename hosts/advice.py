"""What the surveys show that stands in no way, but costs speed or fails later: warnings, worded like faults."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from hosts import rdma
from hosts.fabric import Fabric, port_hcas
from hosts.facts import Gid, Hca
from hosts.faults import Fault
from hosts.ssh import ByHand, Connection
from hosts.stale import Stale
from hosts.survey import Interface, Survey
from settings import Cluster, Node

CLOCK_SECONDS = 5.0
"""Difference of clocks that is told. chrony and systemd-timesyncd hold milliseconds, so seconds mean that nothing sets
the clock and that it drifts on: logs of two nodes cannot be put in order, and after days certificates look expired."""
GIB = 2**30


def advise(cluster: Cluster, stack: str, surveys: Mapping[str, Survey], fabric: Mapping[str, Fabric]) -> list[Fault]:
    """All warnings, those across nodes first.

    Args:
        cluster: the settings.
        stack: whose containers are ours.
        surveys: facts of all nodes.
        fabric: ends of all nodes, or none while they cannot be chosen: what depends on them waits until then.
    """
    found: list[Fault] = []
    if fabric:
        found += [*_mtu(cluster, surveys, fabric), *_subnets(surveys, fabric), *_kinds(cluster, surveys, fabric)]
    for node in cluster.nodes:
        facts = surveys[node.name]
        by_hand = Connection.of(cluster, node).by_hand
        if fabric:
            found += _rivals(cluster, node, facts, fabric[node.name])
            found += _gids(cluster, node, facts, fabric[node.name])
        found += _clock(node, facts, by_hand)
        found += _versions(cluster, node, facts)
        found += _failing(stack, node, facts, by_hand)
        found += _memory(cluster, stack, node, facts, by_hand)
    return found


def without_rdma(
    cluster: Cluster, surveys: Mapping[str, Survey], fabric: Mapping[str, Fabric]
) -> Iterator[tuple[Node, str, str]]:
    """Nodes on which NCCL would fall back to sockets (NET/Socket), why, and what helps.

    A single node has no network to cross, and where no node has RDMA devices none are missed unless the settings
    require them. Takes what :func:`advise` takes.
    """
    if len(cluster.nodes) == 1 or not (cluster.require_rdma or any(facts.hcas for facts in surveys.values())):
        return
    cable, on_it = _most_common_cable(surveys)
    for node in cluster.nodes:
        own, facts, end = cluster.of(node), surveys[node.name], fabric.get(node.name)
        by_hand = Connection.of(cluster, node).by_hand
        if own.hcas == ():
            if cluster.require_rdma or any(cluster.of(one).hcas != () for one in cluster.nodes):
                other = "`require_rdma`" if cluster.require_rdma else "set it so for all nodes"
                yield node, "`hcas` is empty, which turns RDMA off on all nodes", f"remove `hcas`, or {other}"
        elif not facts.hcas:
            yield node, "the node has no RDMA device", f"load its driver: {by_hand('sudo modprobe mlx5_ib')}"
        elif end and not end.hcas:
            if node.name in on_it:
                continue  # the others are told what keeps them off its cable
            states = ", ".join(f"{hca.name} ({_behind(facts, hca)}) {hca.state}" for hca in facts.hcas)
            yield (
                node,
                f"no active RDMA device is behind the fabric's interface {end.interface}; there are: {states}"
                + (f"; those of {', '.join(on_it)} are in {cable}" if on_it else ""),
                "cable a port of these and give it the fabric address, or set `fabric` to an address that it has",
            )
        elif not any("infiniband" in device for device in own.devices):
            yield node, "`devices` leaves /dev/infiniband out of the containers", "add it to `devices`"
        elif not any("infiniband" in device for device in facts.devices):
            yield (
                node,
                "there is no /dev/infiniband for the containers",
                f"{by_hand('sudo modprobe ib_uverbs')} (package rdma-core loads it at boot)",
            )
        else:
            locked = next((limit for limit in own.ulimits if limit.name == "memlock"), None)
            if locked is None or locked.soft != -1:
                size = "what Docker's default allows" if locked is None else f"{locked.soft} bytes"
                yield (
                    node,
                    f"containers may lock only {size}, and NCCL registers its buffers as locked memory",
                    "set `ulimits` to { name: memlock, soft: -1, hard: -1 }, which is the default",
                )


def _most_common_cable(surveys: Mapping[str, Survey]) -> tuple[str, list[str]]:
    """The subnet that most nodes have behind RDMA devices, and these; none where fewer than two share one."""
    on: dict[str, list[str]] = {}
    for name, facts in surveys.items():
        cabled = [each for each in facts.interfaces if not each.down and port_hcas(facts, each.name)]
        for network in {str(address.network) for each in cabled for address in each.addresses}:
            on.setdefault(network, []).append(name)
    network, names = max(on.items(), key=lambda one: len(one[1]), default=("", []))
    return (network, names) if 1 < len(names) < len(surveys) else ("", [])


def fallback(node: Node, why: str, remedy: str) -> Fault:
    """The fault, or warning, of a node without RDMA."""
    return Fault(
        node.name, f"NCCL cannot use RDMA here and falls back to sockets (NET/Socket), which are slower: {why}", remedy
    )


def _behind(facts: Survey, hca: Hca) -> str:
    """Interfaces of a device with their addresses, whose masks may be why they are in no shared subnet."""
    addresses = {interface.name: interface.addresses for interface in facts.interfaces}
    return ", ".join(" ".join((name, *map(str, addresses.get(name, ())))) for name in hca.interfaces)


def _interface(facts: Survey, end: Fabric) -> Interface | None:
    return next((interface for interface in facts.interfaces if interface.name == end.interface), None)


def _mtus(facts: Survey, end: Fabric) -> dict[str, int]:
    """MTU of the fabric's interface, and of those behind all devices that NCCL uses: a twin may have no address."""
    own = _interface(facts, end)
    found = {own.name: own.mtu} if own and own.mtu else {}
    for hca in facts.hcas:
        found |= hca.mtus if hca.name in end.hcas else {}
    return found


def _mtu(cluster: Cluster, surveys: Mapping[str, Survey], fabric: Mapping[str, Fabric]) -> Iterator[Fault]:
    """C23: the ends of a cable must agree, and so must its twins, over which NCCL spreads its traffic."""
    known = {
        (node.name, interface): mtu
        for node in cluster.nodes
        for interface, mtu in _mtus(surveys[node.name], fabric[node.name]).items()
    }
    most = max(known.values(), default=0)
    small = [end for end, mtu in known.items() if mtu < most]
    if not small:
        return
    commands = "; ".join(
        Connection.of(cluster, cluster.node(name)).by_hand(f"sudo ip link set {interface} mtu {most}")
        for name, interface in small
    )
    yield Fault(
        ", ".join(dict.fromkeys(name for name, _ in known)),
        "the MTU of the fabric differs: "
        + ", ".join(f"{name} {interface} {mtu}" for (name, interface), mtu in known.items())
        + "; the smaller end drops larger packets, so that NCCL may end in IBV_WC_RETRY_EXC_ERR (12) and the rest "
        "runs at the smaller size",
        f"make them equal: {commands} (and in its netplan, to last)",
    )


def _subnets(surveys: Mapping[str, Survey], fabric: Mapping[str, Fabric]) -> Iterator[Fault]:
    """Addresses given as `fabric` are taken as they are: they may be of several subnets."""
    networks = {
        name: address.network
        for name, end in fabric.items()
        if (interface := _interface(surveys[name], end))
        for address in interface.addresses
        if str(address.ip) == end.address
    }
    if len(set(networks.values())) > 1:
        yield Fault(
            ", ".join(networks),
            "the fabric addresses are of several subnets, so that traffic between them is routed: "
            + ", ".join(f"{name} {fabric[name].address} in {network}" for name, network in networks.items()),
            "give the ends of the fabric addresses of one subnet, or see that a route joins them",
        )


def _rivals(cluster: Cluster, node: Node, facts: Survey, end: Fabric) -> Iterator[Fault]:
    """Other cables in the fabric's subnet, where the faster one or that with RDMA was chosen and not named."""
    if node.fabric or cluster.of(node).interface or len(cluster.nodes) == 1:
        return
    ends = [(each, address) for each in facts.interfaces if not each.down for address in each.addresses]
    network = next(address.network for _, address in ends if str(address.ip) == end.address)
    cage = port_hcas(facts, end.interface) or end.interface
    others = [
        f"{each.name} {address.ip} ({f'{each.speed} Mb/s' if each.speed else 'speed unknown'})"
        for each, address in ends
        if address.network == network and each.name != end.interface and port_hcas(facts, each.name) != cage
    ]
    if others:
        yield Fault(
            node.name,
            f"besides {end.interface} {end.address}, which is chosen, the fabric's subnet {network} is on "
            f"{', '.join(others)}: Linux answers for all its addresses on each of them, so that traffic may take these",
            "move them to another subnet, or take their addresses away",
        )


def _taken(cluster: Cluster, node: Node, facts: Survey, end: Fabric) -> Iterator[tuple[Hca, Gid]]:
    """The GID that NCCL takes on each RoCE device whose table is known, where it is left to NCCL."""
    if cluster.of(node).gid_index is None and end.gid_index is None:
        version = ipaddress.ip_address(end.address).version
        for hca in facts.hcas:
            if hca.name in end.hcas and hca.roce and (taken := rdma.chosen_by_nccl(hca, version)):
                yield hca, taken


def _kinds(cluster: Cluster, surveys: Mapping[str, Survey], fabric: Mapping[str, Fabric]) -> Iterator[Fault]:
    """Where NCCL takes GIDs of several kinds on the devices of several nodes, which do not reach each other.

    One kind everywhere is well, whichever it is: a Spark whose second twin has no address takes fe80:: there.
    """
    known = {node.name: list(_taken(cluster, node, surveys[node.name], fabric[node.name])) for node in cluster.nodes}
    ends = {name: taken for name, taken in known.items() if taken}
    if len({frozenset(gid.kind for _, gid in taken) for taken in ends.values()}) > 1:
        yield Fault(
            ", ".join(ends),
            "NCCL takes GIDs of different kinds, which do not reach each other: "
            + "; ".join(
                f"{name} " + ", ".join(f"{hca.name} GID {gid.index} ({gid.address}, {gid.kind})" for hca, gid in taken)
                for name, taken in ends.items()
            ),
            "give the interfaces of these devices addresses on every node, of one subnet for each pair of ends (as "
            "NVIDIA's netplan does), or name the devices that have them in `hcas`",
        )


def _gids(cluster: Cluster, node: Node, facts: Survey, end: Fabric) -> Iterator[Fault]:
    """Where NCCL takes another address than the fabric's, on the fabric's own interface, or is told to take none."""
    address, told = ipaddress.ip_address(end.address), cluster.of(node).gid_index
    for hca in facts.hcas:
        if told is None or hca.name not in end.hcas or not hca.roce or not hca.gids:
            continue
        if not rdma.usable(hca, told, address.version):
            slot = next((f"{gid.address}, {gid.type}" for gid in hca.gids if gid.index == told), "empty")
            own = rdma.of_address(hca, address)
            yield Fault(
                node.name,
                f"`gid_index` {told} of {hca.name} is {slot}, which NCCL cannot use for the fabric",
                "remove `gid_index`: NCCL looks through the table itself"
                + (f"; {end.address} is GID {own.index} now" if own else ""),
            )
    for hca, taken in _taken(cluster, node, facts, end):
        same_kind = taken.v2 and taken.address.version == address.version
        if same_kind and end.interface in hca.interfaces and taken.address != address:
            yield Fault(
                node.name,
                f"NCCL takes GID {taken.index} of {hca.name} ({taken.address}, {taken.type}) and not that of the "
                f"fabric address {end.address}; no one index fits all of its devices",
                f"remove {taken.address} from the interface, or name one device in `hcas` and its index in `gid_index`",
            )


def _clock(node: Node, facts: Survey, by_hand: ByHand) -> Iterator[Fault]:
    reached = facts.reached
    if reached and reached.least_difference > CLOCK_SECONDS:
        way = "ahead of" if reached.ahead > 0 else "behind"
        yield Fault(
            node.name,
            f"its clock is {abs(reached.ahead):.0f} s {way} this machine's: logs cannot be put in order, and "
            "certificates will fail as it drifts on",
            f"{by_hand('sudo timedatectl set-ntp true')}; or set this machine's clock, if that is the wrong one",
        )


def _versions(cluster: Cluster, node: Node, facts: Survey) -> Iterator[Fault]:
    """Shards of one version under the index of another: an engine may load them, and answer nonsense."""
    if shards := facts.model.mismatched:
        more = f" and {len(shards) - 1} more" if len(shards) > 1 else ""
        yield Fault(
            node.name,
            f"{facts.path(cluster.model_path)}/{shards[0]}{more}: other tensors than the index gives, as of another "
            "version of the model",
            "bring index and shards of one version there",
        )


def _failing(stack: str, node: Node, facts: Survey, by_hand: ByHand) -> Iterator[Fault]:
    """Containers of ours between two failures: a gate that never opened stands in no state, so none says it."""
    for one in facts.docker.containers:
        if one.labels.get("stack") == stack and one.state == "restarting":
            log = by_hand(f"docker logs --tail 50 {one.name}")
            yield Fault(
                node.name, f"container {one.name} fails and is restarted over and over", f"up says why, or: {log}"
            )


def _memory(cluster: Cluster, stack: str, node: Node, facts: Survey, by_hand: ByHand) -> Iterator[Fault]:
    """C13, before anything is loaded. A GB10 has the node's memory only; other GPUs have their own.

    Not while something runs that gives its memory back before: what is ours, or stale.
    """
    share = utilization(cluster.engine_arguments) if cluster.serve else None
    shared = any("GB10" in gpu.name for gpu in facts.gpus)
    ours = any(one.labels.get("stack") == stack and one.state == "running" for one in facts.docker.containers)
    if share is None or facts.memory is None or not shared or ours or Stale.of(cluster.of(node), facts).runs:
        return
    wanted = share * facts.memory.total
    if wanted > facts.memory.available:
        yield Fault(
            node.name,
            f"{facts.memory.available / GIB:.1f} of {facts.memory.total / GIB:.1f} GiB of memory are available, less "
            f"than --gpu-memory-utilization={share:g} asks ({wanted / GIB:.1f} GiB): vLLM will refuse to start",
            f"see what holds it ({by_hand('ps aux --sort=-rss')}), or lower --gpu-memory-utilization",
        )


def utilization(arguments: Sequence[str]) -> float | None:
    """--gpu-memory-utilization of the settings; None where vLLM's default holds, which differs between releases."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for flag, value in pairwise(words):
        if flag.replace("_", "-") == "--gpu-memory-utilization":
            try:
                return float(value)
            except ValueError:
                return None
    return None
