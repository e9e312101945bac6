"""One stack for all modules of this package: each takes it over serving or bare, as the one before left it or not.

Modules are named so that each finds the stack as it needs it: a full start costs a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.cluster.checks import NODES, assert_bare
from tests.lab.cluster.report import Report, timed
from tests.lab.conftest import Stack, ours


@pytest.fixture(scope="package")
def stack(lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:  # noqa: ARG001 - the nodes are up
    """The stack, destroyed at the end."""
    made = Stack(tmp_path_factory.mktemp("stack"))
    yield made
    gone = made.destroy()
    assert gone.code == 0, gone.output


@pytest.fixture(scope="module")
def bare(stack: Stack) -> Stack:
    """The stack with nothing on the nodes, also where a user's cluster of another state serves: it is taken over."""
    if any(map(ours, NODES)) and not stack.outputs():
        taken = stack.up()
        assert taken.code == 0, taken.output
    gone = stack.destroy()
    assert gone.code == 0, gone.output
    assert_bare()
    return stack


@pytest.fixture(scope="module")
def serving(stack: Stack, report: Report) -> Stack:
    """The stack when it serves; the report gets what a full start and a clean preview took."""
    full = not stack.outputs()  # also where a user's cluster of another state serves: then all of it is replaced
    with timed() as up:
        done = stack.up()
    assert done.code == 0, done.output
    with timed() as clean:
        assert stack.preview() == {}
    if full:
        report.starts += up
    report.clean += clean
    return stack


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    """What repairs took; written to the file that --faults-report names."""
    made = Report()
    yield made
    path = request.config.getoption("--faults-report")
    if path and made.repairs:
        table = Path(path)
        table.write_text(made.table(table.read_text() if table.exists() else ""))
