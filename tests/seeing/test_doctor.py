"""What the doctor says of the places around an inbox: the server's connections, and the brokers it reads."""

from __future__ import annotations

from onceward import Inbox
from onceward.doctor import Finding, examine
from tests.servers.ports import free_port


def about(inbox: Inbox, words: str) -> list[Finding]:
    """What the doctor says of something."""
    return [finding for finding in examine(inbox) if words in finding.what]


def test_connections_that_may_be_wanted_are_compared_with_those_that_there_are(postgres_url: str) -> None:
    with Inbox(postgres_url) as inbox:
        inbox.migrate()
        (fine,) = about(inbox, "connections")
        assert (fine.level, fine.what.startswith("1 process may open up to 20 connections")) == ("ok", True)
        with inbox.transaction() as connection:  # processes as they register, and one that is long gone
            connection.execute(
                "INSERT INTO onceward_worker (process, host, pid, code_version, inline, started_at, alive_until) "
                "SELECT n::text, 'elsewhere', n, '', false, now(), now() + (n * interval '1 hour') "
                "FROM generate_series(0, 15) n"
            )
        (crowded,) = about(inbox, "connections")
        assert (crowded.level, crowded.what.startswith("15 processes may open up to 300 connections")) == (
            "warning",
            True,
        )
        assert "raise max_connections by" in crowded.advice


def test_a_pooler_stands_between_our_connections_and_the_servers(pgbouncer_url: str) -> None:
    with Inbox(pgbouncer_url) as inbox:
        inbox.migrate()
        assert about(inbox, "PostgreSQL")
        assert about(inbox, "connections") == []


def test_a_broker_that_is_away_is_a_finding(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.source(f"kafka://shop:canary@127.0.0.1:{free_port()}?topic=orders", source="broker")
        inbox.source(f"redis://127.0.0.1:{free_port()}/0?stream=orders", source="stream")  # read by any number
        (found,) = about(inbox, "cannot be asked")
        assert found.level == "error"
        assert "topic orders" in found.what
        assert "canary" not in f"{found}"
