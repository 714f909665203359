"""Fixtures of the crash tests, and the summary of what died."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.ground import Ground
from tests.crash.zygote import Zygote
from tests.stores import postgres_database

__all__ = ["postgres_database"]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nursery import Nursery
    from tests.servers import MariadbServer, PostgresServer

TALLY = "crash tally"
"""The name under which a test reports what it did: a word and a number for each of its columns."""


@pytest.fixture
def zygote(nursery: Nursery) -> Zygote:
    """Starts children; what a test leaves running is killed after it."""
    return Zygote(nursery)


@pytest.fixture
def ground(store_url: str, tmp_path: Path) -> Iterator[Ground]:
    """A fresh store of each kind, with a table of effects."""
    with closing(Ground(store_url, tmp_path)) as ground:
        yield ground


@pytest.fixture(scope="session")
def sqlite_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A store that is emptied between plays instead of being made anew."""
    folder = tmp_path_factory.mktemp("stage")
    with closing(Ground(f"sqlite:///{folder / 'inbox.db'}", folder)) as ground:
        yield ground


@pytest.fixture(scope="session")
def postgres_stage(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The same on PostgreSQL."""
    url = postgres_server.create_database("stage")
    with closing(Ground(url, tmp_path_factory.mktemp("stage"))) as ground:
        yield ground


@pytest.fixture(scope="session")
def mariadb_stage(mariadb_server: MariadbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The same on MariaDB, or the server of its family that is played."""
    url = mariadb_server.create_database("stage")
    with closing(Ground(url, tmp_path_factory.mktemp("stage"))) as ground:
        yield ground


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many points there were, how many processes died, and what that broke."""
    totals: Counter[str] = Counter()
    stores: dict[str, Counter[str]] = {}
    seeds: set[int] = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name == TALLY and getattr(report, "when", "") == "call":
                    seeds.add(value.pop("seed", 0))
                    stores.setdefault(value.pop("store", ""), Counter()).update(value)
                    totals.update(value)
    if path := os.environ.get("ONCEWARD_CRASH_JSON"):
        Path(path).write_text(json.dumps({"stores": stores, "seeds": sorted(seeds - {0})}) + "\n")
    if totals:
        terminalreporter.section("crashes")
        terminalreporter.line(", ".join(f"{word}: {number}" for word, number in totals.items()))
        if seeds - {0}:
            terminalreporter.line(f"seeds: {', '.join(map(str, sorted(seeds - {0})))} (ONCEWARD_CRASH_SEED)")
