"""Inbox, handler, outbox, RabbitMQ, inbox: the two services of `examples/`, killed at random, one effect in each."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward import Inbox
from tests.leases import bury
from tests.sources.brokers import RabbitBroker
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
KILLS, ORDERS = 4, 60
TABLES = {"orders": "orders", "billing": "invoices"}


class Services:
    """Both services as processes, and what they have done."""

    def __init__(self, orders: str, billing: str, broker: RabbitBroker, log: Path) -> None:
        self.urls, self.broker, self._log = {"orders": orders, "billing": billing}, broker, log
        self._environment = {
            **os.environ,
            "ORDERS_DATABASE": orders,
            "BILLING_DATABASE": billing,
            "ORDERS_BROKER": broker.url().partition("?")[0],
            "ORDERS_QUEUE": broker.queue,
        }
        self.inboxes = {name: Inbox(url, service=name) for name, url in self.urls.items()}
        for name, table in TABLES.items():
            self.inboxes[name].migrate()
            with self.inboxes[name].transaction() as tx:  # a service that is killed in time never makes it
                tx.execute(f"CREATE TABLE {table} (number text NOT NULL, customer text NOT NULL)")
        self.processes = {name: self.start(name) for name in self.urls}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "onceward", "run", f"examples.{name}:inbox"]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=self._environment, cwd=ROOT, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def effects(self, name: str) -> Counter[str]:
        with self.inboxes[name].transaction() as tx:
            return Counter(row[0] for row in tx.execute(f"SELECT number FROM {TABLES[name]}").fetchall())

    def place(self, numbers: range) -> None:
        """As `examples.orders.deliver`: everything twice."""
        for number in (*numbers, *numbers):
            order = {"number": f"o-{number}", "customer": f"c-{number % 7}"}
            self.inboxes["orders"].receive(source="web", id=order["number"], type="order.placed", data=order)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for inbox in self.inboxes.values():
            inbox.close()


@pytest.fixture
def services(sqlite_url: str, postgres_url: str, rabbit_broker: RabbitBroker, tmp_path: Path) -> Iterator[Services]:
    """One on SQLite, the other on PostgreSQL."""
    services = Services(sqlite_url, postgres_url, rabbit_broker, tmp_path / "log")
    yield services
    services.close()


@pytest.mark.timeout(300)
def test_both_killed_at_random_and_one_effect_in_each(services: Services) -> None:
    share = ORDERS // KILLS
    for turn in range(KILLS):
        services.place(range(turn * share, (turn + 1) * share))
        victim = random.choice(sorted(services.processes))
        time.sleep(random.uniform(0.1, 1.0))  # the moment of the kill is what is drawn
        services.kill(victim)
        services.processes[victim] = services.start(victim)
    expected = Counter(f"o-{number}" for number in range(ORDERS))
    for name, inbox in services.inboxes.items():
        bury(inbox, alive=services.processes[name].pid)
    wait_until(lambda: services.effects("billing") == expected, timeout=120)
    wait_until(lambda: services.inboxes["orders"].admin.stats().outbox_unsent == 0, timeout=60)
    wait_until(lambda: services.broker.unsettled() == 0, timeout=60)
    for process in services.processes.values():
        process.terminate()
    # One that was started a moment ago may not listen to signals yet.
    assert {process.wait(60) for process in services.processes.values()} <= {0, -signal.SIGTERM}
    assert services.effects("orders") == expected
    assert services.effects("billing") == expected
    for name, inbox in services.inboxes.items():
        stats = inbox.admin.stats()
        assert (stats.dead, stats.due, stats.waiting, stats.outbox_dead) == (0, 0, 0, 0), name
