"""Writes down which cases of the brokers' contracts have passed on which server, where ONCEWARD_BROKERS_JSON says.

The record is what the table in docs/brokers.md is made of (`make brokers`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import Any, cast

import pytest

from proof.report import write

FILE = "ONCEWARD_BROKERS_JSON"


CASE = "broker's case"


class Record:
    """A pytest plugin: whoever runs a case says so in its report, which pytest-xdist hands to the one who writes."""

    def __init__(self) -> None:
        self.brokers: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Say which case of which broker has run."""
        done = yield
        found: Mapping[str, Any] = item.funcargs if isinstance(item, pytest.Function) else {}
        outlet = found.get("outlet")
        broker = found.get("broker") or (outlet.broker if outlet is not None else None)
        if done.when == "call" and broker is not None:
            server = f"{broker.server.name} {broker.server.version}"
            way, name = "in" if outlet is None else "out", getattr(item, "originalname", item.name)
            done.user_properties.append((CASE, [type(broker).__name__, server, way, name]))
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note it."""
        for kind, case in report.user_properties:
            if kind == CASE:
                broker, server, way, name = cast("list[str]", case)
                entry = self.brokers.setdefault(broker, {"in": {}, "out": {}})
                entry["server"] = server
                entry[way][name] = entry[way].get(name, True) and report.passed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the record, in an order that does not depend on who was first."""
        if hasattr(session.config, "workerinput"):
            return
        for entry in self.brokers.values():
            entry |= {way: dict(sorted(entry[way].items())) for way in ("in", "out")}
        write(os.environ[FILE], {"run": "brokers", "brokers": dict(sorted(self.brokers.items()))})
