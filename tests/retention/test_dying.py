"""Processes that are killed while they prune or archive, poolers in between, and the very edge of the retention."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from onceward import Reject, Settings
from onceward.retention.archive import Archive
from tests.contract import behaviour as acts
from tests.contract.harness import Shop, arguments
from tests.retention.conftest import NOW
from tests.retention.test_prune import rotate_partition

_PRUNER = """
import sys
from datetime import timedelta
from onceward import Inbox, Settings
from onceward.steps import prune
from onceward.retention import retention
prune.BATCH = retention.BATCH = 3
nothing = timedelta(0)
first = len(sys.argv) > 2
inbox = Inbox(sys.argv[1], settings=Settings(body_retention=nothing, dedupe_retention=nothing, archive_first=first))
print("ready", flush=True)
while True:
    if first:
        inbox.retention.archive(sys.argv[2])
    inbox.retention.prune()
"""


def kill_it_now_and_then(words: list[str], seed: int) -> None:
    """Start it and kill it, at moments of chance."""
    patience = random.Random(seed)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", _PRUNER, *words], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(patience.random() * 0.15)
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_while_pruning(store_url: str, seed: int) -> None:
    """What is needed is all there, what is not goes in the end, and the health check of every test holds."""
    with Shop(store_url, "def", settings=NOW) as shop:
        shop.handle()
        shop.handle("bad", acts.raising(lambda: Reject("no")))
        for number in range(10):
            shop.receive_many(arguments(f"m{number}.{n}") for n in range(20))
            shop.receive(f"dead{number}", "bad")
            shop.drain()
            rotate_partition(shop)
        kill_it_now_and_then([store_url], seed)
        assert len(shop.inbox.admin.messages(status="dead")) == 10
        assert all(shop.detail(f"dead{number}").body for number in range(10))
        assert shop.receive("after").status == "accepted"
        shop.drain()
        shop.inbox.retention.prune()
        assert shop.count("ledger") == shop.count("body") == 10
        assert len(shop.effects()) == 201


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_while_archiving(store_url: str, tmp_path: Path, seed: int) -> None:
    """Every finished message is in the archive once, whoever died."""
    with Shop(store_url, "def", settings=NOW) as shop:
        shop.handle()
        shop.receive_many(arguments(f"m{number}") for number in range(200))
        shop.drain()
        kill_it_now_and_then([store_url, str(tmp_path)], seed)
        shop.inbox.retention.archive(tmp_path)
        assert sorted(record["id"] for record in Archive(tmp_path).read()) == sorted(f"m{n}" for n in range(200))
        shop.inbox.retention.prune()
        assert shop.count("ledger") == shop.count("body") == 0


def test_the_edge_of_the_retention(store_url: str) -> None:
    """HZ-09: a copy just before its end is a duplicate, one just after it is a new message."""
    settings = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(hours=1), maintenance=None)
    with Shop(store_url, "def", settings=settings) as shop:
        shop.handle(group=1)
        shop.receive("a")
        shop.receive("b")
        shop.drain()
        for name, seconds in (("a", 3595), ("b", 3605)):
            past = seconds * 1_000_000
            for table, column, number in (("ledger", "received_at", "seq"), ("run", "finished_at", "first_seq")):
                shop.sql(
                    f"UPDATE {shop.prefix}{table} SET {column} = {column} - {past} WHERE {number} = {shop.seqs[name]}"
                )
        assert shop.inbox.retention.prune().runs == 1
        assert shop.receive("a").status == "duplicate"
        shop.sql("DELETE FROM effects")
        assert shop.receive("b").status == "accepted"
        shop.drain()
        assert shop.effects() == ["b"]
        shop.sql(f"UPDATE {shop.prefix}run SET finished_at = 0")
        assert shop.inbox.retention.prune().runs == 0, "a run stays as long as its messages are remembered"


def test_behind_a_pooler(pgbouncer_url: str) -> None:
    """PgBouncer in transaction mode: partitions are rotated and dropped, messages forgotten."""
    with Shop(pgbouncer_url, "def", settings=NOW, pooled=True) as shop:
        shop.handle()
        shop.receive_many(arguments(f"m{number}") for number in range(20))
        shop.drain()
        rotate_partition(shop)
        pruned = shop.inbox.retention.prune()
        assert (pruned.partitions, pruned.messages) == (1, 20)
        assert shop.receive("next").seq > 10_000_000_000 - 1
        shop.drain()
