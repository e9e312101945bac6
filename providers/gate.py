"""Gates: resources that exist only while a fact is verified, by what a probe inside a container reads."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pulumi.dynamic import CheckResult, CreateResult, ReadResult

from hosts.containers import EVER, State, exec_probe, look
from hosts.diagnosis import diagnose, exception
from hosts.faults import Fault
from hosts.operation import previewing
from hosts.ssh import Connection, Unreached, lines
from providers import progress
from providers.base import Provider

Reading = dict[str, Any]

FORMER_LINES = 200
"""Lines of a log that end with what the present start has said, and before that the former one's end."""


class GateProvider(Provider):
    """Base of the gates: a resource that exists only while a fact is verified."""

    def create(self, props: Mapping[str, Any]) -> CreateResult:
        """Verify the fact; a Fault otherwise, and the resource does not exist."""
        return CreateResult(self.name(props), self.verify(props))

    def renew(self, _olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
        """Verify anew after what the fact is about was replaced or is reached otherwise, or the expectation changed."""
        return self.verify(news)

    def name(self, props: Mapping[str, Any]) -> str:
        """Pulumi's id of the gate."""
        raise NotImplementedError

    def verify(self, props: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the fact as long as it can become true; the outputs, or a Fault."""
        raise NotImplementedError


@dataclass(frozen=True)
class Watched:
    """A container that must live for the gate to open."""

    connection: Connection
    container: str
    """Docker's id."""
    role: str

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.role} on {self.connection.node}"

    def docker_by_hand(self, verb: str) -> str:
        """What a user can paste to do something with it."""
        return self.connection.by_hand(f"docker {verb} {self.container[:12]}")

    def dump(self) -> dict[str, Any]:
        """Plain data for Pulumi's state."""
        return {"connection": self.connection.dump(), "container": self.container, "role": self.role}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Watched:
        """What :meth:`dump` wrote."""
        return cls(Connection.load(data["connection"]), data["container"], data["role"])


@dataclass(frozen=True)
class Stuck:
    """A container that lives, does not do its work, and will not by waiting."""

    after: float
    """Seconds that this must last before the container is restarted."""
    node: str | None = None
    """Its node; the probe's own container for None."""


@dataclass(frozen=True)
class Verdict:
    """What one reading means for the gate."""

    opened: bool
    text: str
    """The reading in a line, for progress."""
    fault: Fault | None = None
    """A reading that cannot become good by waiting."""
    stuck: Stuck | None = None
    """A reading that can become good by a restart."""


class LiveGateProvider(GateProvider):
    """Base of the gates whose fact is read on the live cluster: a preview says why one is not open.

    Pulumi itself would show only that it is to be created.
    """

    title: ClassVar[str]
    """How messages name the gate."""

    def read(self, id_: str, props: Mapping[str, Any]) -> ReadResult:
        """The gate as it stands, or gone."""
        verdict = self._stands(props)
        if verdict.opened:
            return ReadResult(id_, dict(props))
        self._tell("is gone", verdict)
        return ReadResult("", {})

    def check(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> CheckResult:
        """Nothing to refuse; a preview reads the gate that is in no state, as after an `up` that failed."""
        # What the containers are is not known before they exist.
        if not olds and self.title not in TOLD and isinstance(news["watched"], list) and previewing():
            self._tell("was not verified yet", self._stands(news))
        return CheckResult(dict(news), [])

    def _tell(self, what: str, verdict: Verdict) -> None:
        TOLD.add(self.title)
        progress.lasting(f"{self.title} {what}: {verdict.fault.cause if verdict.fault else verdict.text}")

    def _stands(self, props: Mapping[str, Any]) -> Verdict:
        """What one reading means, with what a former start died of where the container was restarted since."""
        try:
            verdict = self.now(props)
        except Unreached as fault:
            return Verdict(opened=False, text=f"{fault.node}: {fault.cause}")
        except Fault as fault:
            verdict = Verdict(opened=False, text=f"{fault.node}: {fault.cause}")
        if verdict.opened or verdict.fault:
            return verdict
        return replace(verdict, text=verdict.text + _former_end(Watched.load(props["watched"][0])))

    def now(self, props: Mapping[str, Any]) -> Verdict:
        """What one reading means; a Fault where there can be none."""
        raise NotImplementedError


TOLD: set[str] = set()
"""Titles of the gates that this process, which serves one operation, has told of."""


def _former_end(one: Watched) -> str:
    """What the container's start before this one died of, as far as its log still says; empty where there was none."""
    try:
        state = look(one.connection, one.container, FORMER_LINES, since=EVER)
    except Fault:
        return ""
    cause = diagnose(state.log)
    words = cause.text if cause else exception(state.log)
    return f"; restarts: {state.restarts}, the last after: {words}" if state.restarts and words else ""


@contextlib.contextmanager
def probing(watched: Watched, script: str, *arguments: str) -> Iterator[queue.Queue[str | None]]:
    """Run a probe in a container; its lines arrive in the queue, then None when it has ended."""
    process = exec_probe(watched.connection, watched.container, script, *arguments)
    try:
        yield lines(process)
    finally:
        process.kill()  # the probe's input closes with its reader, and it ends by itself
        process.wait()


def read_once(watched: Sequence[Watched], script: str, *arguments: str, timeout: float) -> Reading:
    """One reading, for refresh, by a probe in the first container.

    `{"error": …}` where the probe gives no reading within `timeout` seconds.

    Raises:
        Fault: as soon as one of the containers does not run, as Ray and vLLM notice a death late (15 s for a killed
            raylet), or its node does not answer (it may have left the settings).
    """
    _still_unreached(watched)
    with ThreadPoolExecutor(len(watched) + 1) as pool, probing(watched[0], script, *arguments, "0") as queued:
        states = {pool.submit(_state, one): one for one in watched}
        probe = pool.submit(_first_reading, queued, timeout)
        waiting: list[Future[Any]] = [probe, *states]
        for done in as_completed(waiting):
            if done is probe:
                continue
            one, status = states[done], done.result().status
            if status != "running":
                # An `up` may have made its successor just before this reading.
                what = "container that it watched" if status == "missing" else "container"
                raise Fault(one.connection.node, f"the {one.role} {what} is {status}", "run pulumi up")
        return probe.result() | starts({one: done.result() for done, one in states.items()})


UNREACHED: dict[Connection, tuple[float, Unreached]] = {}
"""Nodes that a gate's reading did not reach, with the time. A node that is off and has left the settings is asked by
each gate of the state, and costs its connect timeout once all the same."""


def _still_unreached(watched: Sequence[Watched]) -> None:
    """Raise the fault of a node that did not answer a reading just before this one."""
    for one in watched:
        when, fault = UNREACHED.get(one.connection, (0.0, None))
        if fault and time.monotonic() - when < one.connection.connect_timeout:
            raise fault


def _state(one: Watched) -> State:
    try:
        return look(one.connection, one.container, 0)
    except Unreached as fault:
        UNREACHED[one.connection] = (time.monotonic(), fault)
        raise


def starts(states: Mapping[Watched, State]) -> Reading:
    """When the containers started, for a judge: seconds since the epoch, by role and node."""
    return {"starts": {one.label: state.since for one, state in states.items()}}


def _first_reading(queued: queue.Queue[str | None], timeout: float) -> Reading:
    heard, end = "", time.monotonic() + timeout
    while True:
        try:
            line = queued.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return {"error": f"no answer within {timeout:.0f} s"}
        if line is None:
            return {"error": heard.strip()[-300:] or "the probe ended without a reading"}
        reading = parse(line)
        if reading is not None:
            return reading
        heard += line


def parse(line: str) -> Reading | None:
    """A reading from a line of the probe; None for anything else that reached its output."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
