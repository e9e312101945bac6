"""Waiting for a gate: polling with deadline and progress; the dead end it early, the stuck are restarted once.

Docker's restart policy brings back what exits. Where it is `no`, the wait starts that again, once. What had been
failing before the wait is restarted once too: the cause may have been mended since, and Docker's next try be a minute
away.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as finished
from dataclasses import dataclass, field

from hosts.containers import EVER, LOG_LINES, MISSING, State, look
from hosts.diagnosis import Cause, diagnose, exception, phase
from hosts.faults import Fault
from providers import progress
from providers.gate import Reading, Verdict, Watched, parse, probing, starts
from providers.plugin import CANCELLED

READING_SECONDS = 0.25
"""Pause between two readings of a probe."""
LOOK_SECONDS = (1.0, 10.0)
"""Pause between two looks at the containers, at first and at most: what dies dies early, and a look costs the
node CPU that a loading engine wants."""
PROGRESS_SECONDS = 5.0
"""A line of progress at least this often."""
SUSPECT_SECONDS = 10.0
"""A fatal line of a living container counts after this time: vLLM needs seconds to exit, and a restart may follow."""
BLIND_SECONDS = 30.0
"""A node that cannot be asked for this long ends the wait; a shorter gap of ssh does not."""
RESTART_SECONDS = 60.0
"""For one docker restart; what ignores SIGTERM is killed after Docker's 10 s."""
RESTARTS = 3
"""Restarts within one wait that make a crash loop. One or two are a recovery, as when Ray's head came back and serve
follows, unless a start ended with a cause that stays."""

NOTHING_YET = Verdict(opened=False, text="no reading yet")


@dataclass
class Wait:
    """One wait: opens, or ends in a Fault that names cause, evidence, node and next step."""

    name: str
    """What is awaited, for progress and errors."""
    probe: Watched
    """Container that the probe runs in."""
    script: str
    arguments: Sequence[str]
    watched: Sequence[Watched]
    """Containers that must live."""
    judge: Callable[[Reading], Verdict]
    deadline: float
    """Seconds."""
    deadline_setting: str
    """Setting that holds the deadline, for the error."""
    expected: Collection[str] = ()
    """Names in a fatal log line that make it harmless: addresses that are about to register."""
    passing: Callable[[str], None] = progress.passing
    lasting: Callable[[str], None] = progress.lasting
    _began: float = field(default_factory=time.monotonic)
    _first: dict[str, int] = field(default_factory=dict)
    _suspects: dict[str, tuple[Cause | None, float]] = field(default_factory=dict)
    """The fatal line that a living container shows, and since when."""
    _seen: float = field(default_factory=time.monotonic)
    """When all containers could last be looked at."""
    _states: dict[Watched, State] = field(default_factory=dict)
    _shown: tuple[float, str] = (0.0, "")
    _verdict: Verdict = NOTHING_YET
    """What the last reading meant."""
    _stuck_since: float | None = None
    _restarted: set[str] = field(default_factory=set)
    """Containers that this wait has restarted, each once."""
    _revived: set[str] = field(default_factory=set)
    """Containers that had exited and that this wait has started, each once."""
    _next_look: float = 0.0
    _pause: float = field(default_factory=lambda: LOOK_SECONDS[0])

    def until_open(self) -> Reading:
        """Poll until a reading opens the gate; returns that reading."""
        while True:
            with probing(self.probe, self.script, *self.arguments, str(READING_SECONDS)) as queued:
                for reading in self._readings(queued):
                    if self._opens(reading):
                        self.lasting(f"{self.name}: {self._verdict.text} ({time.monotonic() - self._began:.1f} s)")
                        return reading
            time.sleep(READING_SECONDS)  # the container restarts, or is not up yet: ask again

    def _readings(self, queued: queue.Queue[str | None]) -> Iterator[Reading]:
        """What the probe reads until it ends; whatever ends the wait early is looked for meanwhile."""
        line: str | None = ""
        while line is not None:
            self._go_on()
            with contextlib.suppress(queue.Empty):
                line = queued.get(timeout=READING_SECONDS)
                reading = parse(line) if line else None
                if reading is not None:
                    yield reading
            self._progress()

    def _go_on(self) -> None:
        """Look at the containers when it is time; raises Fault when there is nothing left to wait for."""
        if time.monotonic() >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LOOK_SECONDS[1])
        self._in_time()
        stuck = self._verdict.stuck
        if stuck and self._stuck_since and time.monotonic() - self._stuck_since >= stuck.after:
            self._restart(next((one for one in self.watched if one.connection.node == stuck.node), self.probe))

    def _in_time(self) -> None:
        """Raises Fault when the user interrupts, or the deadline is over."""
        self._uninterrupted()
        if time.monotonic() - self._began > self.deadline:
            raise self._late()

    def _uninterrupted(self) -> None:
        if CANCELLED.is_set():
            raise Fault(
                self.probe.connection.node,
                f"{self.name}: interrupted; last reading: {self._verdict.text}",
                "run pulumi up again: it goes on from here",
            )

    def _restart(self, one: Watched) -> None:
        """Restart what is alive but stuck, once; raises Fault the second time."""
        self._stuck_since = None
        if one.container in self._restarted:
            raise Fault(
                one.connection.node,
                f"{self.name}: {self._verdict.text}; the {one.role} container was restarted once, in vain",
                f"read its log: {one.docker_by_hand('logs')}",
                look(one.connection, one.container).log,
            )
        self._start_anew(one, self._verdict.text)

    def _start_anew(self, one: Watched, why: str) -> None:
        self._restarted.add(one.container)
        self.lasting(f"{self.name}: {why}; restarting the {one.role} container on {one.connection.node}")
        one.connection.run("docker", "restart", one.container, timeout=RESTART_SECONDS, check=True)
        self._first.pop(one.container, None)  # Docker counts anew
        self._suspects.pop(one.container, None)

    def _opens(self, reading: Reading) -> bool:
        """Whether a reading opens the gate; raises its fault if it has one."""
        self._verdict = self.judge(reading | starts(self._states))
        self._stuck_since = (self._stuck_since or time.monotonic()) if self._verdict.stuck else None
        if self._verdict.fault:
            raise self._verdict.fault
        if self._verdict.opened and any(state.status != "running" for state in self._states.values()):
            self._next_look = 0.0  # Ray and vLLM notice a death late: their word does not do alone
            return False
        return self._verdict.opened

    def _look(self) -> None:
        """Look at all containers; raises Fault when one cannot recover."""
        looks = self._ask_all(self._state, self._meanwhile)
        try:
            states = [answer.result() for answer in looks]
        except Fault:
            if time.monotonic() - self._seen > BLIND_SECONDS:
                raise
            return
        self._seen = time.monotonic()
        for one, state in zip(self.watched, states, strict=True):
            before, self._states[one] = self._states.get(one, state), state
            if one.container not in self._first and state.status == "restarting" and self._was_failing(one, state):
                continue
            first = self._first.setdefault(one.container, state.restarts)
            cause = self._cause(one, state)
            if cause:
                if self._suspects.get(one.container, (None, 0))[0] != cause:
                    self._suspects[one.container] = (cause, self._seen)
            else:
                self._suspects.pop(one.container, None)
            dead = (
                state is MISSING or state.status in ("exited", "dead", "paused") or state.restarts - first >= RESTARTS
            )
            if not cause and self._revive(one, state):
                continue
            if dead or (cause and self._seen - self._suspects[one.container][1] >= SUSPECT_SECONDS):
                if cause and cause.stays and self._was_failing(one, state):
                    continue
                raise self._broken(one, state)
            if state.restarts > before.restarts:
                self._ended(one, before)

    def _was_failing(self, one: Watched, state: State) -> bool:
        """Restart what had failed before this wait began, once; whether it was."""
        if one.container in self._restarted or not self._first.get(one.container, state.restarts):
            return False
        self._start_anew(one, "it had been failing")
        return True

    def _ask_all(self, ask: Callable[[Watched], State], meanwhile: Callable[[], None]) -> list[Future[State]]:
        """Ask about all containers at once; `meanwhile`, called a few times a second, may end it by what it raises.

        The answers have all come then; that of a node which cannot be asked is a Fault.
        """
        pool = ThreadPoolExecutor(len(self.watched))
        try:
            answers = [pool.submit(ask, one) for one in self.watched]
            while finished(answers, READING_SECONDS).not_done:
                meanwhile()
        finally:
            pool.shutdown(wait=False)
        return answers

    def _meanwhile(self) -> None:
        """A node may take its time to answer: what ends the wait is not to wait for that."""
        self._in_time()
        self._progress()

    def _revive(self, one: Watched, state: State) -> bool:
        """Start what has exited, once, where Docker leaves that to others; whether it was.

        A worker ends by itself when Ray's head has begun a new session, and serve with it.
        """
        if state.status != "exited" or state.policy != "no" or one.container in self._revived:
            return False
        self._revived.add(one.container)
        self.lasting(
            f"{self.name}: the {one.role} container exited with code {state.exit_code}; starting it on "
            f"{one.connection.node}, as `restart` is `no`"
        )
        one.connection.run("docker", "start", one.container, timeout=RESTART_SECONDS, check=True)
        return True

    def _state(self, one: Watched) -> State:
        """A container's state; of those beside the probe's the log counts only once they do not run."""
        state = look(one.connection, one.container, LOG_LINES if one == self.probe else 0)
        if one == self.probe or state is MISSING or state.status == "running":
            return state
        return look(one.connection, one.container)

    def _cause(self, one: Watched, state: State) -> Cause | None:
        cause = diagnose(f"{state.error}\n{state.log}", self.expected)
        if cause or state.status != "created":
            return cause
        start = one.docker_by_hand("start")
        return Cause("it was never started", f"start it, and see what Docker says: {start}", state.error, stays=True)

    def _ended(self, one: Watched, before: State) -> None:
        """A start has ended since that look; raises Fault where its cause stays."""
        state = look(one.connection, one.container, since=before.started)
        cause = self._cause(one, state)
        if cause and cause.stays and not self._was_failing(one, state):
            raise self._broken(one, state)

    def _broken(self, one: Watched, state: State) -> Fault:
        if state is MISSING:
            return Fault(one.connection.node, f"the {one.role} container is gone", "run pulumi up again")
        if state.status == "paused":
            resume = one.docker_by_hand("unpause")
            return Fault(
                one.connection.node, f"{self.name}: the {one.role} container is paused", f"resume it: {resume}"
            )
        cause = self._cause(one, state)
        if state.restarts and not cause:  # right after a start there is no log yet: what it died of stands before
            state = look(one.connection, one.container, since=EVER)
            cause = self._cause(one, state)
        fate = f"exited with code {state.exit_code}" if state.status in ("exited", "dead") else f"is {state.status}"
        if state.restarts:
            fate += f", restarted {state.restarts} times"
        if one.container in self._revived:
            fate += ", again after it was started"
        text = f"{self.name}: the {one.role} container {fate}"
        if cause:
            return Fault(one.connection.node, f"{text}: {cause.text}", cause.remedy, state.log or cause.line)
        if last := exception(state.log):
            text += f": {last}"
        remedy = f"read its log, correct the settings: {one.docker_by_hand('logs')}"
        return Fault(one.connection.node, text, remedy, state.error or state.log)

    def _late(self) -> Fault:
        answers = self._ask_all(lambda one: look(one.connection, one.container), self._uninterrupted)
        seen = "\n".join(f"{one.label}: {_told(answer)}" for one, answer in zip(self.watched, answers, strict=True))
        return Fault(
            self.probe.connection.node,
            f"{self.name}: not within {self.deadline:.0f} s; last reading: {self._verdict.text}",
            f"look at the containers named below; raise `{self.deadline_setting}` if the start is only slow",
            seen,
        )

    def _progress(self) -> None:
        text = self._verdict.text
        state = self._states.get(self.probe)
        log = f"; {self.probe.role}: {phase(state.log)}" if state else ""
        now = time.monotonic()
        since, shown = self._shown
        if now - since >= PROGRESS_SECONDS or text != shown:
            self._shown = (now, text)
            self.passing(f"{self.name}: {text} ({now - self._began:.0f} of {self.deadline:.0f} s){log}")


def _told(answer: Future[State]) -> str:
    """A container's state in a line, or why there is none."""
    try:
        state = answer.result()
    except Fault as fault:
        return fault.cause
    return f"{state.status}, {state.restarts} restarts: {phase(state.log)}"
