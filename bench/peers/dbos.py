"""DBOS Transact: a durable queue of workflows."""

from __future__ import annotations

import os

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell, wait_for_end


@DBOS.workflow()
def job(body: str) -> None:
    """Decode the body."""
    TALLY.run(body)


def _launch(url: str) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "run_admin_server": False,
        "log_level": "CRITICAL",
        "executor_id": str(os.getpid()),
    }
    DBOS(config=config)
    DBOS.launch()


def fill(url: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs."""
    _launch(url)
    DBOS.destroy()
    client = DBOSClient(system_database_url=url)
    try:
        for bodies in texts(count):
            for body in bodies:
                client.enqueue({"queue_name": "jobs", "workflow_name": "job"}, body)
    finally:
        client.destroy()


def drain(url: str, settings: Settings) -> None:
    """One process of a race; it begins when the queue is registered."""
    _launch(url)
    ready()
    DBOS.register_queue("jobs", **settings)
    wait_for_end()
    tell(TALLY.answer())
    DBOS.destroy()
