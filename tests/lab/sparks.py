"""What makes a node of the lab look like a Spark, or like one that is cabled wrongly: put on the running node, and
taken away again. Nothing of it touches the link that ssh and the cluster use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.lab.conftest import on

SYSFS = """
mkdir /run/lab-sys /run/lab-class
mount --bind /sys /run/lab-sys
ln -s /run/lab-sys/class/* /run/lab-class/
mkdir /run/lab-class/infiniband
mount --bind /run/lab-class /sys/class
"""
"""A /sys/class to which classes can be added; those of the kernel are seen through links into a second /sys."""
NO_SYSFS = """
umount /sys/class
umount /run/lab-sys
rm -r /run/lab-class
rmdir /run/lab-sys
"""
HCA = """
port=/sys/class/infiniband/{name}/ports/1
mkdir -p $port/gids $port/gid_attrs/types $port/gid_attrs/ndevs /sys/class/infiniband/{name}/device/net/{interface}
echo '{state}' > $port/state
echo Ethernet > $port/link_layer
for slot in $(seq 0 255); do echo 0000:0000:0000:0000:0000:0000:0000:0000 > $port/gids/$slot; done
"""
GID = """
echo {gid} > $port/gids/{slot}
echo '{kind}' > $port/gid_attrs/types/{slot}
echo {interface} > $port/gid_attrs/ndevs/{slot}
"""
LINK_LOCAL = "fe80:0000:0000:0000:4ebb:47ff:fe2c:02a6"


@dataclass(frozen=True)
class Hca:
    """An RDMA device with the interface behind it; each of its addresses has a GID of RoCE v1 and one of v2."""

    name: str
    interface: str
    addresses: Sequence[str] = ()
    state: str = "4: ACTIVE"

    def script(self) -> str:
        """Shell lines that build it in /sys/class/infiniband, with the 256 slots of a ConnectX-7's table."""
        text = HCA.format(name=self.name, interface=self.interface, state=self.state)
        for place, gid in enumerate([LINK_LOCAL, *map(_mapped, self.addresses)]):
            for version, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
                text += GID.format(gid=gid, slot=2 * place + version, kind=kind, interface=self.interface)
        return text


def cage(port: int, interface: str, *addresses: str) -> list[Hca]:
    """Both PCIe twins of a QSFP cage; the second has an address of a subnet of its own where the first has one."""
    twin = interface.replace("enp", "enP2p")
    others = [".".join([*address.split(".")[:2], "77", address.split(".")[3]]) for address in addresses]
    return [Hca(f"roceP2p1s0f{port}", twin, others), Hca(f"rocep1s0f{port}", interface, addresses)]


def _mapped(address: str) -> str:
    """An IPv4 address as the kernel shows it in a GID table."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


@contextmanager
def changed(node: str, do: str, undo: str) -> Iterator[None]:
    """A change of the node by root, undone at the end also where only a part of it was done."""
    try:
        on(node, "sudo", "sh", "-ec", do)
        yield
    finally:
        on(node, "sudo", "sh", "-c", undo)


@contextmanager
def rdma(node: str, hcas: Sequence[Hca], *, device: bool = True) -> Iterator[None]:
    """RDMA devices, with or without the character device that containers need."""
    do = SYSFS + "".join(hca.script() for hca in hcas) + ("mkdir /dev/infiniband" if device else "")
    with changed(node, do, NO_SYSFS + ("rmdir /dev/infiniband" if device else "")):
        yield


@contextmanager
def interface(node: str, name: str, address: str, *, mtu: int = 1500, cable: bool = True) -> Iterator[None]:
    """One more interface; without a route, lest it draw traffic of the subnet it names.

    Its other end is on the node too, and down where there shall be no cable.
    """
    peer = f"peer{address.partition('/')[0].rpartition('.')[2]}"
    do = f"ip link add {name} type veth peer name {peer}; ip link set {name} mtu {mtu} up; "
    do += f"ip link set {peer} up; " if cable else ""
    do += f"ip address add {address} dev {name} noprefixroute"
    with changed(node, do, f"ip link delete {name}"):
        yield


@contextmanager
def alias(node: str, name: str, address: str) -> Iterator[None]:
    """One more address of an interface."""
    with changed(node, f"ip address add {address} dev {name} noprefixroute", f"ip address delete {address} dev {name}"):
        yield


@contextmanager
def port(ends: Mapping[str, tuple[str, str]], *, mtu: Mapping[str, int] | None = None) -> Iterator[None]:
    """One more interface on each node: name and address by node, MTU where it is not 1500."""
    with ExitStack() as all_of_them:
        for node, (name, address) in ends.items():
            all_of_them.enter_context(interface(node, name, address, mtu=(mtu or {}).get(node, 1500)))
        yield
