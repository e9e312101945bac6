"""Options of the test run."""

from __future__ import annotations

import hypothesis
import pytest

hypothesis.settings.register_profile("project", deadline=None, derandomize=True)  # speed is measured in bench/
hypothesis.settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-report", metavar="FILE", help="write the fault matrix with its times there")
