"""Start-up refuses tables that are missing, older or newer, and names the command; never the password (R35, S09)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceward import Inbox, Message, RetryPolicy
from onceward.admin.doctor import examine
from onceward.errors import ConfigurationError, OncewardError, SchemaMissing, SchemaOutdated
from tests.migration.catalogs import run, tables
from tests.servers import PostgresServer

MESSAGE: dict[str, Any] = {"source": "s", "id": "m1", "type": "t", "data": 1}


async def awaited(inbox: Inbox, method: str, **arguments: Any) -> None:
    try:
        await getattr(inbox, method)(**arguments)
    finally:
        await inbox.aclose()


ENTRIES: dict[str, Callable[[Inbox], Any]] = {
    "receive": lambda inbox: inbox.receive(**MESSAGE),
    "receive_many": lambda inbox: inbox.receive_many([MESSAGE]),  # type: ignore[list-item]
    "process": lambda inbox: inbox.process(**MESSAGE),
    "drain": lambda inbox: inbox.drain(),
    "run": lambda inbox: inbox.run(),
    "stats": lambda inbox: inbox.admin.stats(),
    "redrive": lambda inbox: inbox.admin.redrive(1),
    "areceive": lambda inbox: asyncio.run(awaited(inbox, "areceive", **MESSAGE)),
    "aprocess": lambda inbox: asyncio.run(awaited(inbox, "aprocess", **MESSAGE)),
    "adrain": lambda inbox: asyncio.run(awaited(inbox, "adrain")),
    "arun": lambda inbox: asyncio.run(awaited(inbox, "arun")),
}


@pytest.fixture
def inbox(store_url: str) -> Iterator[Inbox]:
    """An inbox with a handler on a database without tables."""
    inbox = Inbox(store_url)
    inbox.on("t")(lambda *_: None)
    yield inbox
    inbox.close()


LOOKING = ("stats", "redrive")


def test_missing_tables_are_refused_by_every_entry_of_a_server(postgres_url: str) -> None:
    """R35: before anything happens, with the command to run."""
    for entry in ENTRIES.values():
        with Inbox(postgres_url) as inbox:
            inbox.on("t")(lambda *_: None)
            with pytest.raises(SchemaMissing, match="onceward migrate --store"):
                entry(inbox)


def test_a_missing_file_is_not_made_by_looking(tmp_path: Path) -> None:
    """R35: a mistyped path in a command gives an error, not an empty database."""
    path = tmp_path / "typo.db"
    for entry in LOOKING:
        with Inbox(f"sqlite:///{path}") as inbox, pytest.raises(SchemaMissing, match=r"typo\.db"):
            ENTRIES[entry](inbox)
    assert not path.exists()


def test_the_first_use_of_a_file_makes_the_tables_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R69: receiving, handling and running on SQLite need no command before; the log has the absolute path, once."""
    monkeypatch.chdir(tmp_path)
    for name in sorted(ENTRIES.keys() - {*LOOKING, "run", "arun"}):
        caplog.clear()
        with Inbox(f"sqlite:///{name}.db") as inbox:
            inbox.on("t")(lambda *_: None)
            ENTRIES[name](inbox)
            ENTRIES["receive"](inbox)
        made = [record.getMessage() for record in caplog.records if record.getMessage().startswith("created")]
        assert made == [f"created the onceward tables in {tmp_path / name}.db"], name


def test_old_tables_of_a_file_are_updated_by_command_alone(tmp_path: Path) -> None:
    """R69: what is there already is changed by nobody but an operator."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with Inbox(url) as first:
        first.migrate()
    run(url, "DELETE FROM onceward_migration WHERE version > 1")
    with Inbox(url) as inbox, pytest.raises(SchemaOutdated, match="onceward migrate --store"):
        ENTRIES["receive"](inbox)
    assert run(url, "SELECT max(version) FROM onceward_migration") == [(1,)]


def test_an_inbox_that_was_refused_works_after_migrating(inbox: Inbox) -> None:
    """R35: nothing of the refusal is remembered."""
    with pytest.raises(SchemaMissing):
        inbox.admin.stats()
    inbox.migrate()
    assert inbox.receive(**MESSAGE).status == "accepted"
    assert inbox.drain() == 1


def test_tables_of_another_version_are_refused(store_url: str) -> None:
    """R35: older ones name the command, newer ones say what to deploy (test_newer.py); nothing is stored."""
    with Inbox(store_url) as first:
        first.migrate()
    for change, words in (
        ("DELETE FROM onceward_migration", "onceward migrate --store"),
        ("INSERT INTO onceward_migration VALUES (9999, 'future', 'after')", "deploy the onceward that has 9999_future"),
    ):
        run(store_url, change)
        for entry in ("receive", "process", "drain", "stats", "areceive", "adrain"):
            with Inbox(store_url) as inbox:
                inbox.on("t")(lambda *_: None)
                with pytest.raises(SchemaOutdated, match=words):
                    ENTRIES[entry](inbox)
    assert run(store_url, "SELECT count(*) FROM onceward_ledger") == [(0,)]


def test_tables_of_another_prefix_do_not_count(store_url: str) -> None:
    """R35: each inbox looks for its own."""
    with Inbox(store_url) as first:
        first.migrate()
    with Inbox(store_url, prefix="shop_") as inbox, pytest.raises(SchemaMissing, match="shop_"):
        inbox.admin.stats()
    assert not [name for name in tables(store_url) if name.startswith("shop_")]


SECRET = "hunter2"  # to be looked for


def with_password(url: str) -> list[str]:
    """The same address with a password in each place where one may stand."""
    scheme, _, rest = url.partition("://")
    user, _, host = rest.partition("@")
    return [
        f"{scheme}://{user}:{SECRET}@{host}",
        f"{scheme}://{user}:p%40{SECRET}@{host}",
        f"{scheme}://{host}?user={user}&password={SECRET}",
        f"{scheme}://{user}@{host}?application_name=a%40b&password={SECRET}",
    ]


def everything_said(error: BaseException) -> str:
    """An error with all its causes, as a log would show them."""
    text = f"{error!s} {error!r}"
    for cause in (error.__cause__, None if error.__suppress_context__ else error.__context__):
        text += everything_said(cause) if cause else ""
    return text


def test_no_error_shows_the_password(postgres_url: str, unused_port: int) -> None:
    """S09, I14: missing tables, an unreachable server, a wrong address: wherever the password stands in it."""
    gone = postgres_url.replace(postgres_url.rpartition(":")[2].partition("/")[0], str(unused_port))
    found = {}
    for url in [*with_password(postgres_url), *with_password(gone)]:
        inbox = Inbox(f"{url}")
        for name in ("receive", "migrate") if url in with_password(gone) else ("receive", "stats"):
            with pytest.raises(OncewardError) as raised:
                inbox.migrate() if name == "migrate" else ENTRIES[name](inbox)
            if SECRET in everything_said(raised.value):
                found[url] = everything_said(raised.value)
        inbox.close()
    assert found == {}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@host/db?nonsense=1",
        f"postgres://u:{SECRET}@[::1/db",
        f"oracle://u:{SECRET}@host/db",
        f"u:{SECRET}@host",
        "sqlite:",
        "sqlite:relative.db",
        "sqlite:///",
        "",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    """S09: said at once, by a ConfigurationError that can be shown to anybody."""
    with pytest.raises(ConfigurationError) as raised:
        Inbox(url)
    assert SECRET not in everything_said(raised.value)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_than_utf8_is_refused(postgres_server: PostgresServer, encoding: str) -> None:
    """D20: an error with "→" in its text could not be stored there, and would stop the worker at every start."""
    name = f"other_{encoding.lower()}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0".encode()
        )
    try:
        with Inbox(postgres_server.url(name)) as inbox:
            said = f"has the encoding {encoding}.*CREATE DATABASE name ENCODING 'UTF8'"
            with pytest.raises(ConfigurationError, match=said):
                inbox.migrate()
            with psycopg.connect(postgres_server.url(name)) as connection:  # made by hand, or by an older onceward
                connection.execute(inbox.store.migration_sql().encode())
            for entry in (ENTRIES["receive"], ENTRIES["drain"], ENTRIES["areceive"]):
                with pytest.raises(ConfigurationError, match=said):
                    entry(inbox)
            (finding,) = examine(inbox)
            assert (finding.level, f"the encoding {encoding}" in finding.what) == ("error", True)
            assert finding.advice.startswith("create one in UTF-8")
    finally:
        postgres_server.drop_database(name)


def test_every_text_is_kept(store_url: str, tmp_path: Path) -> None:
    """D20: in the encodings of SQLite, and whatever a URL says about the client's."""
    if store_url.startswith("sqlite"):
        path = tmp_path / "utf16.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA encoding = 'UTF-16'")
            connection.execute("CREATE TABLE mine (id)")
        store_url = f"sqlite:///{path}"
    else:
        store_url += f"{'&' if '?' in store_url else '?'}client_encoding=LATIN1"

    def fail(_: Message, __: Any) -> None:
        raise RuntimeError("a → b 🙂")

    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("t", retry=RetryPolicy(attempts=1))(fail)
        statuses = [inbox.receive(source="s", id="→ 🙂", type="t", data={"é": "→"}).status for _ in range(2)]
        assert statuses == ["accepted", "duplicate"]
        inbox.drain()
        (dead,) = inbox.admin.messages(status="dead")
        assert (dead.id, "a → b 🙂" in str(dead.error)) == ("→ 🙂", True)
