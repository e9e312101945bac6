"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-report", metavar="FILE", help="write the fault matrix with its times there")
