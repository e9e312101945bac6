"""GpuGate: exists only while Ray has exactly the expected nodes alive, on their fabric addresses, with their GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pulumi
from pulumi.dynamic import Resource

from hosts.containers import remove_all
from hosts.faults import Fault
from hosts.ssh import Connection
from providers import progress
from providers.gate import LiveGateProvider, Reading, Stuck, Verdict, Watched, read_once
from providers.probes import GPUS
from providers.wait import Wait

READ_SECONDS = 20.0
"""One reading at refresh: Python imports Ray in 1 to 3 s."""
CLOCK_SECONDS = 2.0
"""Docker and Ray read one clock; it may be set meanwhile."""
DEAD_SECONDS = 45.0
"""A node that Ray declared dead may be on its way back: one whose raylet was killed is there again 25 s after that, as
its container restarts at once."""
HUNG_SECONDS = 5.0
"""It is not where the container has not restarted since that raylet registered. One whose link was down learns that it
is dead when that is back, and ends by itself."""


class GpuGateProvider(LiveGateProvider):
    """Asks Ray's GCS through a probe in the head's container; never `ray status`, which lists dead nodes as active."""

    compared = ("address", "nodes", "watched")
    title = "GPU gate"

    def name(self, props: Mapping[str, Any]) -> str:
        """The GCS."""
        return f"gpus@{props['address']}"

    def now(self, props: Mapping[str, Any]) -> Verdict:
        """By one answer of the GCS."""
        watched = [Watched.load(one) for one in props["watched"]]
        reading = read_once(watched, GPUS, str(props["address"]), timeout=READ_SECONDS)
        return judge(props["nodes"], reading, _former(props))

    def verify(self, props: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until Ray has all nodes with their GPUs; one that left the settings is taken out of it."""
        former = _former(props)
        asked: set[str] = set()

        def judged(reading: Reading) -> Verdict:
            verdict = judge(props["nodes"], reading, former)
            lingering = {former[one] for one in strangers(props["nodes"], reading) if one in former} - asked
            if lingering and not verdict.fault:
                asked.update(lingering)
                with ThreadPoolExecutor(len(lingering)) as pool:
                    list(pool.map(take_out, lingering))
            return verdict

        def take_out(node: str) -> None:
            way = Connection.load(props["former"][node]["connection"])
            _take_out(node, way, str(props["stack"]), int(props["grace"]))

        watched = [Watched.load(one) for one in props["watched"]]
        reading = Wait(
            name=self.title,
            probe=watched[0],
            script=GPUS,
            arguments=[str(props["address"])],
            watched=watched,
            judge=judged,
            deadline=float(props["deadline"]),
            deadline_setting="deadlines.gpus",
        ).until_open()
        return {**props, "ray": reading["ray"]}


def _former(props: Mapping[str, Any]) -> dict[str, str]:
    """Names of the nodes that left the settings, by fabric address; a state of before it was kept has none."""
    return {node["address"]: name for name, node in (props.get("former") or {}).items() if "address" in node}


def strangers(expected: Sequence[Mapping[str, Any]], reading: Reading) -> list[str]:
    """Addresses of nodes alive in Ray that are not expected."""
    alive = {row["address"] for row in reading.get("nodes", ()) if row["alive"]}
    return sorted(alive - {node["address"] for node in expected})


def _take_out(node: str, connection: Connection, stack: str, grace: int) -> None:
    """Remove what a node that left the settings still runs: Pulumi would delete it after this gate."""
    try:
        remove_all(connection, stack, grace, node=node)
        progress.lasting(f"{node}: left the settings and is still in Ray; what is ours there is removed")
    except Fault as fault:
        progress.lasting(f"{node}: left the settings; {fault.cause}")


def judge(
    expected: Sequence[Mapping[str, Any]], reading: Reading, former: Mapping[str, str] = MappingProxyType({})
) -> Verdict:
    """What a reading of the GCS means.

    Args:
        expected: name, fabric address and GPUs of each node.
        reading: the probe's: `nodes` with address, alive, gpus, started, reason; or `error`; and `starts`.
        former: names of the nodes that left the settings, by fabric address.
    """
    if "nodes" not in reading:
        return Verdict(opened=False, text=f"the GCS does not answer yet ({reading.get('error', 'no reading')})"[:160])
    alive = {row["address"]: row for row in reading["nodes"] if row["alive"]}
    dead = {
        row["address"]: row["reason"] for row in reading["nodes"] if not row["alive"] and row["address"] not in alive
    }
    wanted = {node["address"]: node for node in expected}
    total = sum(int(row["gpus"]) for address, row in alive.items() if address in wanted)
    gpus = sum(int(node["gpus"]) for node in expected)
    text = f"{total} of {gpus} GPUs on {len(alive.keys() & wanted.keys())} of {len(wanted)} nodes"

    if strange := _strange(expected, reading, former, text):
        return strange
    # Ray counts a node's GPUs once, when it registers: waiting does not change the number.
    if wrong := [address for address, row in alive.items() if int(row["gpus"]) != int(wanted[address]["gpus"])]:
        fault = Fault(
            ", ".join(str(wanted[address]["name"]) for address in wrong),
            "; ".join(
                f"Ray sees {int(alive[address]['gpus'])} GPU(s) on {address}, {int(wanted[address]['gpus'])} wanted"
                for address in wrong
            ),
            "check that the container sees the GPU (nvidia-smi inside it), or correct `gpus` of the node",
        )
        return Verdict(opened=False, text=text, fault=fault)
    # A killed raylet stays alive in the GCS for 15 s, beside its successor or instead of one.
    living = [row["address"] for row in reading["nodes"] if row["alive"]]
    unsettled = [
        f"{wanted[address]['name']} twice, one not yet declared dead" for address in alive if living.count(address) > 1
    ]
    unsettled += [
        f"{wanted[address]['name']} not registered since its container's start"
        for address, row in alive.items()
        if row.get("started", 0) < _start(reading, str(wanted[address]["name"])) - CLOCK_SECONDS
    ]
    if unsettled:
        return Verdict(opened=False, text=f"{text}; {', '.join(unsettled)}")
    if missing := [address for address in wanted if address not in alive]:
        stuck = [_dead(reading, str(wanted[address]["name"]), address) for address in missing if address in dead]
        told = [f"{wanted[a]['name']} {f'dead: {dead[a]}' if a in dead else 'not joined'}" for a in missing]
        first = min(stuck, key=lambda one: one.after, default=None)
        return Verdict(opened=False, text=f"{text}; {', '.join(told)}", stuck=first)
    return Verdict(opened=True, text=f"{text} verified")


def _strange(
    expected: Sequence[Mapping[str, Any]], reading: Reading, former: Mapping[str, str], text: str
) -> Verdict | None:
    """What it means that Ray has nodes which are not expected; None where it has none."""
    found = strangers(expected, reading)
    if foreign := [address for address in found if address not in former]:
        ours = ", ".join(sorted(str(node["address"]) for node in expected))
        fault = Fault(
            next(str(node["name"]) for node in expected),
            f"Ray has a node that is not ours: {', '.join(foreign)} (ours: {ours})",
            "stop Ray there (ray stop), or choose another `ray.port`; if it is a node of ours, its address differs "
            "from its fabric address: set `fabric`",
        )
        return Verdict(opened=False, text=text, fault=fault)
    if found:
        lingering = ", ".join(former[address] for address in found)
        return Verdict(opened=False, text=f"{text}; still in Ray, but not in the settings: {lingering}")
    return None


def _dead(reading: Reading, node: str, address: str) -> Stuck:
    """How long a node that Ray declared dead is left to itself."""
    registered = max(row.get("started", 0) for row in reading["nodes"] if row["address"] == address)
    started = _start(reading, node)
    hung = started and registered > started - CLOCK_SECONDS
    return Stuck(HUNG_SECONDS if hung else DEAD_SECONDS, node)


def _start(reading: Reading, node: str) -> float:
    """When Ray's container on a node started; 0 where that was not looked at."""
    found = [since for label, since in reading.get("starts", {}).items() if label.endswith(f" on {node}")]
    return float(max(found, default=0.0))


class GpuGate(Resource, module="spark", name="GpuGate"):
    """The GPU count, verified live."""

    ray: pulumi.Output[str]
    """Ray's version on the head; Ray itself refuses workers of another one."""

    def __init__(
        self,
        name: str,
        *,
        address: str,
        nodes: Sequence[Mapping[str, Any]],
        watched: pulumi.Input[Sequence[Mapping[str, Any]]],
        former: pulumi.Input[Mapping[str, Any]],
        stack: str,
        grace: int,
        deadline: float,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare what Ray must have.

        Args:
            name: of the resource.
            address: of the GCS.
            nodes: name, fabric address and GPUs of each.
            watched: their containers, the head's first (:class:`providers.gate.Watched`).
            former: nodes that left the settings (:attr:`providers.members.Members.former`): of one that is still in
                Ray, the containers go.
            stack: whose these are.
            grace: seconds from SIGTERM to SIGKILL.
            deadline: seconds until all GPUs are there.
            opts: as usual.
        """
        props = {
            "address": address,
            "nodes": nodes,
            "watched": watched,
            "former": former,
            "stack": stack,
            "grace": grace,
            "deadline": deadline,
            "ray": None,
        }
        super().__init__(GpuGateProvider(), name, props, opts)
