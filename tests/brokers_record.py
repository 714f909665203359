"""Writes down which cases of the brokers' contracts have passed on which server, where ONCEWARD_BROKERS_JSON says.

The record is what the table in docs/brokers.md is made of (`make brokers`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from proof import report

FILE = "ONCEWARD_BROKERS_JSON"


class Record:
    """A pytest plugin."""

    def __init__(self) -> None:
        self.brokers: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note a case that has run."""
        done = yield
        found: Mapping[str, Any] = item.funcargs if isinstance(item, pytest.Function) else {}
        outlet = found.get("outlet")
        broker = found.get("broker") or (outlet.broker if outlet is not None else None)
        if done.when == "call" and broker is not None:
            entry = self.brokers.setdefault(type(broker).__name__, {"in": {}, "out": {}})
            entry["server"] = f"{broker.server.name} {broker.server.version}"
            cases = entry["in" if outlet is None else "out"]
            name = getattr(item, "originalname", item.name)
            cases[name] = cases.get(name, True) and done.passed
        return done

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        report.write(os.environ[FILE], {"run": "brokers", "brokers": self.brokers})
