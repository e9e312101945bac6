"""Waiting: what opens a gate, what ends it early, and what it says meanwhile."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hosts.containers import State, look
from hosts.faults import Fault
from hosts.ssh import Connection, Hop
from providers import wait
from providers.gate import Reading, Stuck, Verdict, Watched, read_once
from providers.wait import Wait
from tests.unit.fake_docker import FakeDocker, reading, says, state

LOCAL = Connection("spark-1", ())
SERVE = Watched(LOCAL, "serve0123456789", "serve")
HEAD = Watched(LOCAL, "head0123456789", "ray-head")
FATAL = "ValueError: Current node has no GPU available. current_node_resource={'CPU': 20.0}."
MISFIT = "Error: No available node types can fulfill resource request {'node:192.168.200.13': 0.001, 'GPU': 1.0}. Add"

UNKNOWN_FLAG = "vllm: error: unrecognized arguments: --no-such-flag"
LATER = ({"say": "later"},) * 12


def judge(found: Reading) -> Verdict:
    """Opens on `go`; a `fault` cannot become good."""
    text = f"says {found.get('say', 'nothing')}"
    if found.get("fault"):
        return Verdict(opened=False, text=text, fault=Fault("spark-2", "hopeless", "give up"))
    if "stuck" in found:
        return Verdict(opened=False, text=text, stuck=Stuck(float(found["stuck"])))
    return Verdict(opened=bool(found.get("go")), text=text)


class Case:
    """A wait on serve and the head, on this machine's fake docker."""

    def __init__(self, docker: FakeDocker) -> None:
        self.docker = docker
        self.lines: list[str] = []
        self.passing: Callable[[str], None] = self.lines.append
        self.lasting: list[str] = []
        for one in (SERVE, HEAD):
            docker.answer(f"inspect {one.container}", state())
            docker.answer(f"logs {one.container}", says("INFO: starting\n"))
        self.readings(*LATER)

    def readings(self, *values: dict[str, Any]) -> None:
        self.docker.answer(f"exec {SERVE.container}", reading(*values))

    def looks(self, *states: dict[str, Any], of: Watched = SERVE) -> None:
        self.docker.answer(f"inspect {of.container}", *states)

    def logs(self, *texts: str, of: Watched = SERVE) -> None:
        self.docker.answer(f"logs {of.container}", *(says(text) for text in texts))

    def wait(
        self, *, deadline: float = 30, expected: tuple[str, ...] = (), watched: Sequence[Watched] = (SERVE, HEAD)
    ) -> Reading:
        return Wait(
            name="Test gate",
            probe=SERVE,
            script="import this",
            arguments=["an argument"],
            watched=watched,
            judge=judge,
            deadline=deadline,
            deadline_setting="deadlines.test",
            expected=expected,
            passing=self.passing,
            lasting=self.lasting.append,
        ).until_open()

    def fault(self, **options: Any) -> Fault:
        with pytest.raises(Fault) as caught:
            self.wait(**options)
        return caught.value


@pytest.fixture
def case(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(wait, "LOOK_SECONDS", (0.0, 0.0))  # one look at the containers for each line of the probe
    monkeypatch.setattr(wait, "SUSPECT_SECONDS", 0.001)  # the next look is always later
    return Case(docker)


def test_gate_opens_on_the_first_good_reading(case: Case) -> None:
    case.readings({"say": "a"}, {"say": "b", "go": 1}, {"say": "c", "go": 1})
    assert case.wait() == {"say": "b", "go": 1}
    assert len(case.lasting) == 1
    assert case.lasting[0].startswith("Test gate: says b (")


def test_probe_runs_inside_the_container_with_its_arguments(case: Case) -> None:
    case.readings({"go": 1})
    case.wait()
    assert case.docker.called("exec") == [
        ["exec", "-i", SERVE.container, "python3", "-u", "-c", "import this", "an argument", "0.25"]
    ]


def test_noise_of_the_probe_is_no_reading(case: Case) -> None:
    case.docker.answer(
        f"exec {SERVE.container}", says('WARNING: x\n[1, 2]\n"text"\n5\nnull\n{"go": 1}\n', hold=True)
    )  # fmt: skip
    assert case.wait() == {"go": 1}


def test_probe_that_ends_is_started_anew(case: Case) -> None:
    restarting = says("Error response from daemon: container is restarting\n", code=1)
    case.docker.answer(f"exec {SERVE.container}", restarting, reading({"go": 1}))
    assert case.wait() == {"go": 1}
    assert len(case.docker.called("exec")) == 2


def test_fault_of_a_reading_ends_the_wait(case: Case) -> None:
    case.readings({"fault": 1})
    assert str(case.fault()) == "spark-2: hopeless\n  next: give up"


@pytest.mark.parametrize("status", ["exited", "dead"])
def test_exited_container_ends_the_wait_with_exit_code_and_cause(case: Case, status: str) -> None:
    """C02."""
    case.looks(state(status, code=1))
    case.logs("a\n" * 50 + FATAL)
    fault = case.fault()
    assert fault.cause == f"Test gate: the serve container exited with code 1: {'Ray has no free GPU on the head'}"
    assert FATAL in fault.evidence
    assert "ray status" in fault.remedy


def test_exited_container_without_known_cause_shows_how_to_read_its_log(case: Case) -> None:
    case.looks(state("exited", code=139))
    case.logs("Segmentation fault")
    fault = case.fault()
    assert fault.cause.endswith("the serve container exited with code 139")
    assert "docker logs serve0123456" in fault.remedy
    assert "Segmentation fault" in fault.evidence
    assert not case.docker.called("start"), "Docker's restart policy would have done it"


@pytest.mark.parametrize("one", [SERVE, HEAD], ids=["with the probe", "beside the probe"])
def test_what_exits_without_restart_policy_is_started_once_and_said_so(case: Case, one: Watched) -> None:
    """A worker exits because Ray's head is in a new session; serve follows."""
    down = state("exited", code=1, policy="no")
    case.looks(state(policy="no"), *[down] * (1 if one == SERVE else 2), state(policy="no"), of=one)
    case.readings(*LATER[:4], {"go": 1})
    assert case.wait() == {"go": 1}
    assert case.docker.called("start") == [["start", one.container]]
    assert case.lasting[0] == (
        f"Test gate: the {one.role} container exited with code 1; starting it on spark-1, as `restart` is `no`"
    )


def test_what_exits_again_after_it_was_started_is_a_fault(case: Case) -> None:
    case.looks(state("exited", code=1, policy="no"))
    fault = case.fault()
    assert fault.cause == "Test gate: the serve container exited with code 1, again after it was started"
    assert len(case.docker.called("start")) == 1


def test_what_exits_of_a_known_cause_is_not_started_again(case: Case) -> None:
    case.looks(state("exited", code=1, policy="no"))
    case.logs("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
    assert case.fault().cause.endswith("exited with code 1: the GPU is out of memory")
    assert not case.docker.called("start")


def test_container_that_was_never_started_ends_the_wait(case: Case) -> None:
    error = "failed to bind mount: no such device"
    case.looks(state("created", error=error))
    case.logs("")
    fault = case.fault()
    assert fault.cause == "Test gate: the serve container is created: it was never started"
    assert "docker start serve0123456" in fault.remedy
    assert error in fault.evidence


def test_container_that_is_about_to_be_started_is_waited_for(case: Case) -> None:
    case.looks(state("created"), state())
    case.readings(*LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}


def test_any_watched_container_counts(case: Case) -> None:
    case.looks(state("exited", code=2), of=HEAD)
    assert "the ray-head container exited with code 2" in case.fault().cause


def test_complaint_of_docker_itself_is_the_cause(case: Case) -> None:
    error = 'failed to create task: exec: "vllm": executable file not found in $PATH: unknown'
    case.looks(state("exited", code=127, error=error))
    fault = case.fault()
    assert fault.cause.endswith("exited with code 127: the image has no vllm")


def test_missing_container_ends_the_wait(case: Case) -> None:
    case.looks(says(code=1, stderr=f"Error response from daemon: No such container: {SERVE.container}"))
    fault = case.fault()
    assert (fault.node, fault.cause) == ("spark-1", "the serve container is gone")
    assert "pulumi up" in fault.remedy


def test_crash_loop_is_a_fault_with_cause_and_count(case: Case) -> None:
    """C12."""
    case.looks(*(state("restarting" if n % 2 else "running", code=1, restarts=n // 2) for n in range(20)))
    case.logs("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
    fault = case.fault()
    assert "the GPU is out of memory" in fault.cause


def test_crash_loop_is_explained_by_the_log_of_an_earlier_start(case: Case) -> None:
    """Seen on a slow machine: every look fell right after a restart, when the log since then is still empty."""
    case.looks(*(state(restarts=n, started="T2") for n in range(4)))
    case.docker.answer(f"logs {SERVE.container} T2", says())
    case.logs("vllm: error: unrecognized arguments: --no-such-flag")
    assert "restarted 3 times: the engine does not know --no-such-flag" in case.fault().cause


def test_start_that_ended_with_a_cause_that_stays_is_not_waited_out(case: Case) -> None:
    case.looks(state(restarts=0), state(restarts=1, started="T2"))
    ended_with(case, UNKNOWN_FLAG)
    assert "is running, restarted 1 times: the engine does not know --no-such-flag" in case.fault().cause
    assert not case.docker.called("restart")


def ended_with(case: Case, line: str) -> None:
    """The first start ends with this line; there is a second one."""
    case.docker.answer(f"logs {SERVE.container} T2", says("INFO: starting\n"))
    starting = "INFO: starting\n"
    case.docker.answer(f"logs {SERVE.container} T1", says(starting), says(f"{starting}{line}\n{starting}"))
    case.logs(line)


@pytest.mark.parametrize("mended", [True, False])
def test_what_had_been_failing_before_the_wait_is_restarted_once_and_judged_by_that(case: Case, mended: bool) -> None:
    """Its cause may have been mended after the start that still ends with it."""
    case.looks(
        state(restarts=4),
        *[state(restarts=5, started="T2")] * 2,  # looked at once more for what the start before ended with
        state(restarts=0, started="T3"),
        *[state(restarts=1, started="T4")] * (not mended),
    )
    ended_with(case, UNKNOWN_FLAG)
    case.docker.answer(f"logs {SERVE.container} T4", says("INFO: starting\n"))
    case.docker.answer(f"logs {SERVE.container} T3", says("INFO: starting\n"), says(f"{UNKNOWN_FLAG}\n"))
    if mended:
        case.readings(*LATER[:5], {"go": 1})
        case.docker.answer(f"logs {SERVE.container} T3", says("INFO: starting\n"))
        assert case.wait() == {"go": 1}
    else:
        assert "restarted 1 times: the engine does not know --no-such-flag" in case.fault().cause
    assert case.docker.called("restart") == [["restart", SERVE.container]]
    assert case.lasting[0] == "Test gate: it had been failing; restarting the serve container on spark-1"


def test_what_is_between_two_failures_is_started_at_once(case: Case) -> None:
    """Docker would wait up to a minute."""
    case.looks(state("restarting", restarts=4), state(restarts=0, started="T2"))
    case.readings(*LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}
    assert case.docker.called("restart") == [["restart", SERVE.container]]


def test_start_that_ended_with_a_cause_that_passes_is_waited_out(case: Case) -> None:
    case.looks(state(restarts=4), state(restarts=5, started="T2"))
    case.docker.answer(f"logs {SERVE.container} T2", says("INFO: starting\n"))
    case.logs("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
    case.docker.answer(f"logs {SERVE.container} T1", says("INFO: starting\n"), says("CUDA out of memory.\n"))
    case.readings(*LATER[:4], {"go": 1})
    assert case.wait() == {"go": 1}


def test_crash_loop_without_known_cause_counts_restarts(case: Case) -> None:
    case.looks(state(restarts=4), state("restarting", restarts=5), state(restarts=6), state("restarting", restarts=7))
    case.logs("some trouble")
    assert case.fault().cause == "Test gate: the serve container is restarting, restarted 7 times"


@pytest.mark.parametrize("restarts", [1, 2])
def test_one_or_two_restarts_are_waited_out(case: Case, restarts: int) -> None:
    case.looks(state(restarts=4), state("restarting", restarts=4), state(restarts=4 + restarts))
    case.readings(*LATER[:4], {"go": 1})
    assert case.wait() == {"go": 1}


def test_what_is_stuck_is_restarted_once_and_said_so(case: Case) -> None:
    case.readings({"say": "nothing", "stuck": 0}, *LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}
    assert case.docker.called("restart") == [["restart", SERVE.container]]
    assert case.lasting[0] == "Test gate: says nothing; restarting the serve container on spark-1"


def test_what_is_still_stuck_after_its_restart_is_a_fault(case: Case) -> None:
    case.readings({"say": "nothing", "stuck": 0}, {"say": "nothing", "stuck": 0}, *LATER)
    fault = case.fault()
    assert fault.cause == "Test gate: says nothing; the serve container was restarted once, in vain"
    assert "docker logs serve0123456" in fault.remedy
    assert len(case.docker.called("restart")) == 1


def test_what_is_stuck_for_a_moment_is_left_alone(case: Case) -> None:
    case.readings({"say": "trouble", "stuck": 3600}, *LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}
    assert not case.docker.called("restart")


def test_paused_container_ends_the_wait_with_the_command_that_resumes_it(case: Case) -> None:
    case.looks(state("paused"))
    fault = case.fault()
    assert fault.cause == "Test gate: the serve container is paused"
    assert f"docker unpause {SERVE.container[:12]}" in fault.remedy


def test_fatal_line_of_a_living_container_counts_when_the_next_look_still_shows_it(case: Case) -> None:
    case.logs(FATAL)
    fault = case.fault()
    assert fault.cause == "Test gate: the serve container is running: Ray has no free GPU on the head"
    assert len([call for call in case.docker.called("logs") if call[-1] == SERVE.container]) == 2


def test_fatal_line_that_is_gone_at_the_next_look_does_not_count(case: Case) -> None:
    case.logs(FATAL, "INFO: starting anew")
    case.readings(*LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}


def test_fatal_line_of_the_run_before_a_restart_does_not_count(case: Case) -> None:
    case.looks(state(restarts=1, started="T2"))
    case.logs(f"{FATAL}\nINFO: starting anew\nINFO: Starting to load model x")
    case.docker.answer(f"logs {SERVE.container} T2", says("INFO: starting anew\nINFO: Starting to load model x"))
    case.readings(*LATER[:3], {"go": 1})
    assert case.wait() == {"go": 1}


def test_opening_word_does_not_do_while_a_container_does_not_run(case: Case) -> None:
    case.looks(state("restarting"), state("restarting"), state())
    case.readings({"go": 1}, {"go": 2}, {"go": 3}, {"go": 4})
    assert case.wait() in ({"go": 3}, {"go": 4})


def test_docker_that_does_not_answer_is_not_a_missing_container(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "BLIND_SECONDS", 0.5)
    case.looks(says(code=1, stderr="Cannot connect to the Docker daemon at unix:///var/run/docker.sock."))
    fault = case.fault()
    assert "gone" not in fault.cause
    assert "Cannot connect to the Docker daemon" in fault.evidence


def test_fatal_line_about_an_address_that_is_about_to_register_does_not_count(case: Case) -> None:
    case.logs(MISFIT)
    case.readings(*LATER[:3], {"go": 1})
    assert case.wait(expected=("192.168.200.12", "192.168.200.13")) == {"go": 1}


def test_fatal_line_about_a_foreign_address_counts(case: Case) -> None:
    """C01."""
    case.logs(MISFIT)
    assert "on address 192.168.200.13, which no Ray node registered" in case.fault(expected=("192.168.200.12",)).cause


def test_address_that_only_begins_like_an_expected_one_counts(case: Case) -> None:
    case.logs(MISFIT)
    assert "192.168.200.13" in case.fault(deadline=3, expected=("192.168.200.1",)).cause.partition("last reading")[0]


def test_deadline_names_the_setting_the_last_reading_and_every_container(case: Case) -> None:
    case.looks(state(restarts=1), of=HEAD)
    case.logs("INFO Starting to load model /models/x...")
    fault = case.fault(deadline=0.7)
    assert fault.cause == "Test gate: not within 1 s; last reading: says later"
    assert "`deadlines.test`" in fault.remedy
    assert fault.evidence.splitlines() == [
        "serve on spark-1: running, 0 restarts: Starting to load model /models/x...",
        "ray-head on spark-1: running, 1 restarts: INFO: starting",
    ]


def test_interrupt_by_the_user_ends_the_wait(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    cancelled.set()
    monkeypatch.setattr(wait, "CANCELLED", cancelled)
    assert case.fault().cause == "Test gate: interrupted; last reading: no reading yet"


class Slow:
    """A look at a container that takes until it is told to end; half a minute if nobody does."""

    def __init__(self) -> None:
        self.asked, self.told = threading.Event(), threading.Event()
        self.waited_in_vain = False

    def __call__(self, connection: Connection, container: str, *lines: int) -> State:
        self.asked.set()
        self.waited_in_vain |= not self.told.wait(30)
        return look(connection, container, *lines)


def test_interrupt_does_not_wait_for_a_node_that_is_slow_to_answer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(wait, "look", slow)
    monkeypatch.setattr(wait, "CANCELLED", slow.asked)
    assert "interrupted" in case.fault().cause
    assert not slow.waited_in_vain
    slow.told.set()


def test_progress_goes_on_while_a_node_is_slow_to_answer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(wait, "look", slow)
    monkeypatch.setattr(wait, "PROGRESS_SECONDS", 0.0)
    case.passing = lambda _line: slow.told.set()
    case.readings({"go": 1})
    assert case.wait() == {"go": 1}
    assert not slow.waited_in_vain


def test_deadline_is_told_also_where_a_node_cannot_be_asked(case: Case) -> None:
    away = Connection("spark-2", (Hop("spark-2", "127.0.0.1", "nobody", 1),), "/dev/null")
    fault = case.fault(deadline=0.7, watched=[SERVE, Watched(away, "worker0123456789", "ray-worker")])
    assert fault.cause == "Test gate: not within 1 s; last reading: says later"
    assert fault.evidence.splitlines() == [
        "serve on spark-1: running, 0 restarts: INFO: starting",
        "ray-worker on spark-2: 127.0.0.1 refuses connections: sshd is not running",
    ]


def test_silent_probe_is_bounded_by_the_deadline(case: Case) -> None:
    case.docker.answer(f"exec {SERVE.container}", says(hold=True))
    assert case.fault(deadline=0.2).cause.endswith("last reading: no reading yet")


def test_progress_says_what_is_awaited_how_long_and_the_phase(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "PROGRESS_SECONDS", 0.0)
    case.logs("INFO Starting to load model /models/x...")
    case.readings({"say": "one"}, {"say": "two"}, {"go": 1})
    case.wait(deadline=3600)
    wanted = [
        rf"Test gate: says {word} \(\d+ of 3600 s\); serve: Starting to load model /models/x\.\.\."
        for word in ("one", "two")
    ]
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(wanted, case.lines, strict=True)), case.lines


def test_progress_is_not_repeated_for_every_reading(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "LOOK_SECONDS", (3600.0, 3600.0))
    monkeypatch.setattr(wait, "PROGRESS_SECONDS", 3600.0)
    case.readings(*({"say": "same"} for _ in range(50)), {"go": 1})
    case.wait(deadline=3600)
    assert len(case.lines) == 1


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (reading({"state": "verified"}), {"state": "verified"}),
        (says('noise\n{"state": "verified"}\n'), {"state": "verified"}),
        (says("Error: No such container: x\n", code=1), {"error": "Error: No such container: x"}),
        (says(), {"error": "the probe ended without a reading"}),
        (says(hold=True), {"error": "no answer within 1 s"}),
    ],
)
def test_reading_for_a_refresh_is_bounded(docker: FakeDocker, answer: dict[str, Any], wanted: Reading) -> None:
    docker.answer(f"inspect {SERVE.container}", state())
    docker.answer(f"exec {SERVE.container}", answer)
    found = read_once([SERVE], "import this", "x", timeout=0.6 if answer["hold"] and not answer["stdout"] else 30)
    assert found == wanted | {"starts": {"serve on spark-1": 0}}
    assert docker.called("exec")[0][-2:] == ["x", "0"]


def test_watched_survives_the_state() -> None:
    assert Watched.load(SERVE.dump()) == SERVE
    assert SERVE.label == "serve on spark-1"
