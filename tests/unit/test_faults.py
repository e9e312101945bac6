"""Faults: the text that reaches the user."""

from __future__ import annotations

import pickle

from hosts.faults import EVIDENCE_LINES, Fault, Faults


def test_fault_is_cause_then_next_step() -> None:
    assert str(Fault("spark-2", "is down", "switch it on")) == "spark-2: is down\n  next: switch it on"


def test_evidence_comes_last() -> None:
    text = str(Fault("spark-2", "is down", "switch it on", "first \n\n  second\n"))
    assert text.splitlines()[1:] == ["  next: switch it on", "  evidence:", "    first", "      second"]


def test_blank_evidence_is_left_out() -> None:
    assert "evidence" not in str(Fault("spark-2", "is down", "switch it on", " \n\t\n"))


def test_evidence_is_the_end_of_the_output_and_bounded() -> None:
    raw = "\n".join(f"line {number} " + "x" * 5000 for number in range(1000))
    lines = str(Fault("spark-2", "is down", "switch it on", raw)).partition("evidence:\n")[2].splitlines()
    assert len(lines) == EVIDENCE_LINES
    assert lines[-1].startswith("    line 999 ")
    assert max(map(len, lines)) <= 404


def test_several_faults_are_one_text_with_a_note() -> None:
    both = Faults([Fault("a", "b", "c"), Fault("d", "e", "f")], "a note")
    assert str(both) == "a: b\n  next: c\nd: e\n  next: f\na note"
    assert [fault.node for fault in both.faults] == ["a", "d"]


def test_fault_crosses_a_process_boundary() -> None:
    fault = Fault("spark-2", "is down", "switch it on", "raw")
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)  # noqa: S301 - our own
