"""A primary with a synchronous standby, under load by a two-host address: the primary dies, the standby is promoted."""

from __future__ import annotations

import psycopg

from engines.load import MESSAGES, Load, Report
from tests.servers import PostgresServer
from tests.waiting import wait_until

FAULT = "kill -9 of the primary, promotion of its synchronous standby"


def failover() -> Report:
    """The load goes on at the standby by itself: the address names both."""
    with (
        PostgresServer(durable=True, settings={"synchronous_standby_names": "*"}) as primary,
        PostgresServer(durable=True) as standby,
    ):
        standby.follow(primary)
        wait_until(lambda: _is_synchronous(primary), message="the standby to be synchronous")

        def fault() -> None:
            primary.kill()
            with psycopg.connect(standby.url(), autocommit=True) as connection:
                connection.execute("SELECT pg_promote(true)")

        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=5"
        verdict = Load(url, MESSAGES).play(fault)
        with psycopg.connect(standby.url()) as connection:
            checks = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), not primary.running
        return Report("PostgreSQL pair", standby.version, FAULT, verdict, checks)


def _is_synchronous(primary: PostgresServer) -> bool:
    with psycopg.connect(primary.url()) as connection:
        return connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() == [("sync",)]
