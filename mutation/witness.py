"""A plugin for the run that finds out which test runs which line: it tells coverage the test that begins.

Invariant: what a process that a test starts runs is that test's as well; it reads the test from its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

TEST = "ONCEWARD_COVERED_TEST"
"""The variable that names the test that runs."""
DURATIONS = "ONCEWARD_COVERED_DURATIONS"
"""The variable that names the file for the seconds of each test that passed."""
_SECONDS: dict[str, float] = {}
_PHASES = 3
_passed: dict[str, int] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What runs until the end of this test is its own, fixtures included."""
    os.environ[TEST] = item.nodeid
    if found := coverage.Coverage.current():
        found.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        del os.environ[TEST]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds."""
    _SECONDS[report.nodeid] = _SECONDS.get(report.nodeid, 0) + report.duration
    _passed[report.nodeid] = _passed.get(report.nodeid, 0) + report.passed


def pytest_sessionfinish() -> None:
    """Only a test that passes on the code as it is can decide something."""
    seconds = {test: round(_SECONDS[test], 3) for test, phases in _passed.items() if phases == _PHASES}
    Path(os.environ[DURATIONS]).write_text(json.dumps(seconds), encoding="utf-8")
