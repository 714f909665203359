"""DBOS Transact: a durable queue of workflows, polled as often as it allows."""

from __future__ import annotations

import time

import psycopg
from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


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
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue("jobs", worker_concurrency=100, polling_interval_sec=0.05)


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""
    _launch(url)
    DBOS.destroy()
    client = DBOSClient(system_database_url=url)
    try:
        for number in range(count):
            client.enqueue({"queue_name": "jobs", "workflow_name": "job"}, text(number))
    finally:
        client.destroy()


def drain(url: str, count: int) -> None:
    """One process of a race."""
    done = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"

    def work() -> Answer:
        _launch(url)
        with psycopg.connect(url, autocommit=True) as connection:
            while (connection.execute(done).fetchone() or (0,))[0] < count:
                time.sleep(0.02)
        return TALLY.answer()

    take_part(work)
    DBOS.destroy()
