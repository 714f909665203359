"""What the doctor says of the places around an inbox: the server's connections, and the brokers it reads."""

from __future__ import annotations

import asyncio

import pytest

from onceward import ConfigurationError, Inbox, Settings
from onceward.admin.doctor import Finding, examine
from onceward.sinks.inbox import InboxSink
from tests.servers.ports import free_port


def about(inbox: Inbox, words: str) -> list[Finding]:
    """What the doctor says of something."""
    return [finding for finding in examine(inbox) if words in finding.what]


def test_connections_that_may_be_wanted_are_compared_with_those_that_there_are(postgres_url: str) -> None:
    with Inbox(postgres_url) as inbox:
        inbox.migrate()
        (fine,) = about(inbox, "connections")
        assert (fine.level, fine.what.startswith("1 process may open up to 28 connections")) == ("ok", True)
        with inbox.transaction() as connection:  # processes as they register, and one that is long gone
            connection.execute(
                "INSERT INTO onceward_worker (id, process, host, pid, code_version, inline, started_at, alive_until) "
                "SELECT n, n::text, 'elsewhere', n, '', false, 0, n * 9000000000000000 "
                "FROM generate_series(0, 15) n"
            )
        (crowded,) = about(inbox, "connections")
        assert (crowded.level, crowded.what.startswith("15 processes may open up to 420 connections")) == (
            "warning",
            True,
        )
        assert "raise max_connections by" in crowded.advice


def test_the_size_of_the_pool_is_a_setting(postgres_url: str) -> None:
    """D61: of both pools, and in the doctor's sum, in which every destination of the relay counts too."""
    with Inbox(postgres_url, settings=Settings(pool=3)) as inbox:
        inbox.migrate()
        (found,) = about(inbox, "connections")
        assert found.what.startswith("1 process may open up to 8 connections")
        for name in ("one", "two"):
            inbox.add_sink(name, InboxSink(inbox, source="here"))
        (found,) = about(inbox, "connections")
        assert found.what.startswith("1 process may open up to 11 connections")
        assert inbox.store._pools.of_threads().max_size == 3  # type: ignore[attr-defined]

        async def async_size() -> int:
            pool = await inbox.store._pools.of_tasks()  # type: ignore[attr-defined]
            await inbox.store.async_close()
            return int(pool.max_size)

        assert asyncio.run(async_size()) == 3
    with pytest.raises(ConfigurationError, match="pool=0"):
        Settings(pool=0)


def test_a_pooler_stands_between_our_connections_and_the_servers(pgbouncer_url: str) -> None:
    with Inbox(pgbouncer_url) as inbox:
        inbox.migrate()
        assert about(inbox, "PostgreSQL")
        assert about(inbox, "connections") == []


def test_a_broker_that_is_away_is_a_finding(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.add_source(f"kafka://shop:canary@127.0.0.1:{free_port()}?topic=orders", source="broker")
        inbox.add_source(f"redis://127.0.0.1:{free_port()}/0?stream=orders", source="stream")  # read by any number
        (found,) = about(inbox, "cannot be reached")
        assert found.level == "error"
        assert "topic orders" in found.what
        assert "canary" not in f"{found}"
