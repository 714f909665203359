"""`python -m bench.partitions`: what receivers feel while old bodies go, by dropping a partition and by deleting row by row."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from datetime import timedelta

import psycopg

from bench.messages import messages
from onceward import Inbox, Settings
from tests.servers.postgres import PostgresServer

BODIES = 100_000


def slowest_receive(inbox: Inbox, stop: threading.Event, slowest: list[float]) -> None:
    """Receive one by one until told to stop; remember the longest wait."""
    worst, batch = 0.0, itertools.cycle(messages(20_000, "live"))
    while not stop.is_set():
        began = time.perf_counter()
        inbox.receive(**next(batch))
        worst = max(worst, time.perf_counter() - began)
    slowest.append(worst)


def measure(url: str, way: str) -> str:
    """Fill a partition, then remove it while two threads receive."""
    inbox = Inbox(url, settings=Settings(body_retention=timedelta(0), maintenance=None))
    inbox.migrate()
    inbox.receive_many(messages(BODIES, "old"))  # type: ignore[arg-type] # the shape of receive's arguments
    with psycopg.connect(url, autocommit=True) as look:
        look.execute("TRUNCATE onceward_queue")  # as if all were handled
        if way == "row by row":  # one dead message keeps the partition
            inbox.receive(source="bench", id="dead", type="old", data=1)
        for _ in range(3):
            look.execute("SELECT onceward_rotate_partition(0)")
        look.execute("VACUUM ANALYZE")
        stop = threading.Event()
        slowest: list[float] = []
        threads = [threading.Thread(target=slowest_receive, args=(inbox, stop, slowest)) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(4)
        if way == "quiet":
            time.sleep(3)
            done = "nothing"
        else:
            before = look.execute("SELECT pg_current_wal_lsn()").fetchone()
            began = time.perf_counter()
            pruned = inbox.retention.prune()
            took = time.perf_counter() - began
            written = look.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", before).fetchone()
            assert written
            done = f"{pruned.partitions} partition, {pruned.bodies} bodies in {took:.2f} s, {int(written[0]) // 1024:,} kB of WAL"
        stop.set()
        for thread in threads:
            thread.join()
    inbox.close()
    return f"{way:<12} {done}; slowest receive {max(slowest) * 1000:.0f} ms"


def main() -> int:
    """One line for each way."""
    with PostgresServer(durable=True) as server:
        for number, way in enumerate(("quiet", "partition", "row by row")):
            print(measure(server.create_database(f"partitions_{number}"), way))
    return 0


if __name__ == "__main__":
    sys.exit(main())
