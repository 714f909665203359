"""A plugin for the run that evaluates a mutant: is it the mutant that runs, and which test failed?

Invariant: a run counts only where `onceward` comes from the mutant's folder, and a mutant is caught only by a test that
ran and failed; an error of a fixture or of a collection, or a run that ended in the middle, catches nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import onceward

FOLDER = "ONCEWARD_MUTANT"
"""The variable that names the folder of the mutant's package; what failed is noted beside it."""
NOTE = "failed"


def pytest_configure() -> None:
    """Refuse to evaluate another code than the mutant's."""
    folder = Path(os.environ[FOLDER])
    if folder not in Path(onceward.__file__).parents:
        raise pytest.UsageError(f"onceward comes from {onceward.__file__}, not from {folder}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the test that failed."""
    if report.when == "call" and report.failed:
        Path(os.environ[FOLDER], NOTE).write_text(report.nodeid, encoding="utf-8")
