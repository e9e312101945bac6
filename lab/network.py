"""The two networks: management, where this machine is a neighbour of the head, and the fabric, where it is not."""

import json
from collections.abc import Callable

from lab import docker, processes
from lab.layout import DEFINITION_LABEL, FABRIC, NETWORKS, OWNER, OWNER_LABEL, Network, digest
from lab.processes import CommandFailedError, LabError


def create_arguments(network: Network) -> list[str]:
    """What follows `docker network create`."""
    options = ["--driver", "bridge", "--internal", "--subnet", network.subnet]
    options += ["--opt", f"com.docker.network.bridge.name={network.bridge}"]
    if not network.host_address:
        options += ["--opt", "com.docker.network.bridge.inhibit_ipv4=true"]
    return [*options, network.name]


def definition(network: Network) -> str:
    """Hash of what the network shall be."""
    return digest(create_arguments(network))


def _link_addresses(device: str) -> list[str] | None:
    """IPv4 addresses of a device of this machine; None when there is no such device."""
    try:
        shown = json.loads(processes.capture(["ip", "-json", "-4", "address", "show", "dev", device]) or "[]")
    except CommandFailedError:
        return None
    return [address["local"] for link in shown for address in link.get("addr_info", [])]


def _route_ready() -> bool:
    return bool(processes.capture(["ip", "route", "show", "type", "unreachable", FABRIC.subnet]).strip())


def network_ready(network: Network) -> bool:
    """Whether the network and its device are there, as defined."""
    found = docker.inspect("network", network.name)
    if found is None:
        return False
    marks = docker.labels("network", found)
    if marks.get(OWNER_LABEL) != OWNER or marks.get(DEFINITION_LABEL) != definition(network):
        return False
    addresses = _link_addresses(network.bridge)
    return addresses is not None and bool(addresses) == network.host_address


def ready() -> bool:
    """Whether both networks stand and no packet to the fabric can leave this machine."""
    return _route_ready() and all(network_ready(network) for network in NETWORKS)


def remove(network: Network, note: Callable[[str], None]) -> None:
    """Remove the network, what is attached to it, and a device that a killed daemon left."""
    found = docker.inspect("network", network.name)
    if found is not None:
        if OWNER_LABEL not in docker.labels("network", found):
            raise LabError(
                f"a Docker network {network.name} exists that is not the lab's",
                next_step=f"remove it: docker network rm {network.name}",
            )
        # Exited containers keep no endpoint, but are named with this network: nodes of any lab go with it.
        nodes = docker.labelled("container", owner=None)
        if set(nodes) - set(docker.labelled("container")):
            note("the lab is another checkout's: replacing its nodes, with all that runs on them")
        docker.remove("container", nodes)
        docker.remove("network", [network.name])
    remove_device(network)


def remove_device(network: Network) -> None:
    """Remove the bridge from the kernel if it is still there."""
    if _link_addresses(network.bridge) is not None:
        processes.capture(["ip", "link", "delete", network.bridge])


def make(note: Callable[[str], None]) -> None:
    """Create what is missing or other than defined."""
    if not _route_ready():
        # Lest a packet for the fabric takes the default route out of this machine.
        processes.capture(["ip", "route", "add", "unreachable", FABRIC.subnet])
    for network in NETWORKS:
        if not network_ready(network):
            note(f"creating {network.name}")
            remove(network, note)
            marks = ["--label", f"{OWNER_LABEL}={OWNER}", "--label", f"{DEFINITION_LABEL}={definition(network)}"]
            try:
                docker.docker("network", "create", *marks, *create_arguments(network))
            except CommandFailedError as error:
                error.next_step = f"something else uses {network.subnet}: look at `ip route` and `docker network ls`"
                raise


def remove_route() -> None:
    """Remove the route that keeps the fabric inside."""
    if _route_ready():
        processes.capture(["ip", "route", "delete", "unreachable", FABRIC.subnet])
