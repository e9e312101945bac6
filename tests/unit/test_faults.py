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


STACK = """\
(APIServer pid=1) INFO 11-30 12:00:00 [utils.py:233] non-default args: {'model': '/m'}
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/opt/venv/bin/vllm", line 10, in <module>
(APIServer pid=1)     sys.exit(main())
(APIServer pid=1)              ^^^^^^
(APIServer pid=1)   File "/opt/venv/lib/arg_utils.py", line 2240, in create_model_config
(APIServer pid=1)     return ModelConfig(
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=1)   Value error, User-specified max_model_len (99999999) is greater than the derived 2048
ERROR 11-30 12:00:01 [core.py:94] Traceback (most recent call last):
ERROR 11-30 12:00:01 [core.py:94]   File "/opt/venv/lib/core.py", line 1, in run
ERROR 11-30 12:00:01 [core.py:94]     run()
ERROR 11-30 12:00:01 [core.py:94] ValueError: no
    as it was
"""


def test_evidence_has_no_stack_of_python_but_its_exception() -> None:
    lines = [line.strip() for line in str(Fault("spark-1", "it ends", "see", STACK)).splitlines()[3:]]
    kept = [0, 7, 8, 12, 13]
    assert lines == [line.strip() for place, line in enumerate(STACK.splitlines()) if place in kept]
