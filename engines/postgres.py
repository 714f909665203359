"""PostgreSQL of one major version: a load in which the server is killed."""

from __future__ import annotations

from engines.load import MESSAGES, Load, Report
from tests.servers import PostgresServer


def postgres() -> Report:
    """The one that ONCEWARD_POSTGRES names."""
    with PostgresServer(durable=True) as server:

        def crash() -> None:
            server.kill()
            server.start()

        verdict = Load(server.url(), MESSAGES).play(crash)
        return Report("PostgreSQL", server.version, "kill -9 of the server, restart", verdict)
