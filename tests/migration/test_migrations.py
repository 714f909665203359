"""Migrating: safe for two at once, all or nothing, the same by program and by hand (R35, HZ-67)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from onceward import Inbox, OncewardError
from onceward.errors import ConfigurationError, StoreUnavailable
from tests.migration.catalogs import catalog, run, tables
from tests.servers import FaultProxy, PostgresServer
from tests.stores import with_mariadb


@contextmanager
def opened(url: str, prefix: str = "onceward_") -> Iterator[Inbox]:
    inbox = Inbox(url, prefix=prefix)
    try:
        yield inbox
    finally:
        inbox.close()


def migrate(url: str, prefix: str = "onceward_") -> list[str]:
    with opened(url, prefix) as inbox:
        return inbox.migrate()


def versions(url: str, prefix: str = "onceward_") -> list[str]:
    rows = run(url, f"SELECT version, name FROM {prefix}migration ORDER BY version")
    return [f"{version:04}_{name}" for version, name in rows]


def test_migrating_again_changes_nothing(store_url: str) -> None:
    """R35: it answers what it applied: everything, then nothing; messages stay."""
    applied = migrate(store_url)
    assert applied[0] == "0001_core"
    assert applied == versions(store_url)
    before = catalog(store_url)
    with opened(store_url) as inbox:
        inbox.receive(source="s", id="m1", type="t", data=1)
        assert inbox.migrate() == []
        assert inbox.admin.stats().unhandled == 1
    assert catalog(store_url) == before


@with_mariadb
def test_many_threads_migrate_at_once(store_url: str) -> None:
    """R35: one of them does it, the others find it done."""
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: migrate(store_url), range(6)))
    assert sorted(map(len, answers)) == [0] * 5 + [len(versions(store_url))]


_PROGRAM = """
import sys
from onceward import Inbox
print(len(Inbox(sys.argv[1]).migrate()))
"""


def test_many_processes_migrate_at_once(store_url: str) -> None:
    """R35: a rolling deploy in which every new process migrates first."""
    command = [sys.executable, "-c", _PROGRAM, store_url]
    migrators = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [migrator.communicate()[0].strip() for migrator in migrators]
    assert [migrator.returncode for migrator in migrators] == [0] * 4
    assert sorted(answers) == ["0"] * 3 + [str(len(versions(store_url)))]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_migrators_wait_for_each_other_whatever_the_default_isolation(postgres_url: str, level: str) -> None:
    """R35, HZ-03: who waited for the lock must see what the other one did."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        statement = f"ALTER DATABASE {connection.info.dbname} SET default_transaction_isolation = '{level}'"
        connection.execute(statement.encode())
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: migrate(postgres_url), range(6)))
    assert sorted(map(len, answers)) == [0] * 5 + [len(versions(postgres_url))]


@pytest.fixture
def another_url(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a second fresh database of the same kind."""
    if store_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'another.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield server.create_database("by_hand")
    server.drop_database("by_hand")


def test_the_printed_sql_makes_the_same_tables(store_url: str, another_url: str) -> None:
    """R35: run by hand in one transaction it gives the same catalog, and a database that works."""
    migrate(store_url)
    with opened(another_url) as inbox:
        run(another_url, inbox.migration_sql())
        assert catalog(another_url) == catalog(store_url)
        assert versions(another_url) == versions(store_url)
        assert inbox.migrate() == []

        @inbox.on("t")
        def handler(*_: object) -> str:
            return "ran"

        inbox.receive(source="s", id="m1", type="t", data=1)
        assert inbox.drain() == 1
        assert inbox.receive(source="s", id="m1", type="t", data=1).result == "ran"


def test_the_printed_sql_does_no_harm_where_it_ran_before(store_url: str) -> None:
    """R35: a second run by hand is refused as a whole or changes nothing."""
    migrate(store_url)
    before = catalog(store_url), versions(store_url)
    with opened(store_url) as inbox:
        inbox.receive(source="s", id="m1", type="t", data=1)
        with pytest.raises(Exception, match=r"(?i)unique|exists|duplicate"):
            run(store_url, inbox.migration_sql())
        assert (catalog(store_url), versions(store_url)) == before
        assert inbox.admin.stats().unhandled == 1


@pytest.mark.parametrize("table", ["name", "queue", "audit"])
def test_a_failure_in_the_middle_leaves_nothing(store_url: str, table: str) -> None:
    """HZ-67: somebody has a table of that name; nothing else is made, and it says so in onceward's own words."""
    run(store_url, f"CREATE TABLE onceward_{table} (somebodys text)")
    with pytest.raises(OncewardError, match=f"onceward_{table}"):
        migrate(store_url)
    assert tables(store_url) == {f"onceward_{table}"}
    run(store_url, f"DROP TABLE onceward_{table}")
    assert migrate(store_url) == versions(store_url)


@with_mariadb
def test_another_prefix_is_another_inbox(store_url: str) -> None:
    """R35: two inboxes share a database and nothing else."""
    for prefix in ("onceward_", "shop_"):
        assert migrate(store_url, prefix) == versions(store_url, prefix)
    names = tables(store_url)
    assert {name.removeprefix("shop_") for name in names if name.startswith("shop_")} == {
        name.removeprefix("onceward_") for name in names if name.startswith("onceward_")
    }
    with opened(store_url, "shop_") as shop, opened(store_url) as other:
        ran: list[str] = []

        @shop.on("t", key="k")
        def of_the_shop(*_: object) -> None:
            ran.append("shop")

        @other.on("t", key="k")
        def of_the_other(*_: object) -> None:
            ran.append("other")

        for inbox in (shop, other):
            assert inbox.receive(source="s", id="m1", type="t", data={"k": 1}).status == "accepted"
        assert (shop.drain(), shop.drain(), other.admin.stats().due) == (1, 0, 1)
        assert other.drain() == 1
        assert ran == ["shop", "other"]


def test_the_longest_prefix_works(store_url: str) -> None:
    """R35: no name is cut, so two long prefixes do not collide."""
    prefixes = ["a" * 30 + "1", "a" * 30 + "2"]
    for prefix in prefixes:
        assert migrate(store_url, prefix) == versions(store_url, prefix)
    indexes = [row[1] for row in catalog(store_url)[1]] if "postgres" in store_url else []
    assert len(indexes) == len(set(indexes))


@pytest.mark.parametrize(
    "prefix", ["", "1a", "A", "a-b", "a b", "a.b", 'a"', "a;DROP TABLE x", "a" * 32, "ä", "a\n", "a%s", "{a}"]
)
def test_a_prefix_that_is_no_name_is_refused(prefix: str) -> None:
    """S01: the only text ever put into SQL is checked first."""
    with pytest.raises(ConfigurationError, match="prefix"):
        Inbox("sqlite://", prefix=prefix)


def test_a_server_that_is_away_is_said(proxied_postgres_url: str, postgres_proxy: FaultProxy) -> None:
    """HZ-67: migrating against nothing is an error of the store, and can be tried again."""
    postgres_proxy.cut()
    with pytest.raises(StoreUnavailable):
        migrate(proxied_postgres_url)
    postgres_proxy.heal()
    assert migrate(proxied_postgres_url) == versions(proxied_postgres_url)


def test_a_server_that_dies_under_a_migrator(private_postgres: PostgresServer) -> None:
    """HZ-67: the server dies under a migrator: the next one begins from the start, or finds it done."""
    url = private_postgres.url()
    with opened(url) as inbox, suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
        connection.execute(inbox.migration_sql().encode())
        private_postgres.kill()
    private_postgres.start()
    assert tables(url) == set()
    assert migrate(url) == versions(url)
