"""What this store does in a second, measured on it: receiving, draining, handling, inline; beside plain inserts.

Invariant: everything happens in tables under a prefix of its own, made for this and removed at the end, also when
something fails; what the handlers did is counted, and a run that is not exact is an error, not a figure.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceward.domain import identity
from onceward.domain.ids import time_ordered_id
from onceward.errors import SchemaMissing, StoreError
from onceward.inbox import Inbox
from onceward.message import Message
from onceward.runtime.runner import perform

CALLERS = 16
BATCH = 500
_PAD = "x" * 230
# Ends a transaction of a plain connection and begins the next.
_TURN = {"postgres": ("COMMIT AND CHAIN",), "sqlite": ("COMMIT", "BEGIN IMMEDIATE"), "mysql": ("COMMIT AND CHAIN",)}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the measurement."""

    name: str
    messages: int
    per_second: float
    beside: str
    """Which plain insert does the comparable thing."""
    ratio: float | None
    """How it compares with that; None for the plain inserts themselves."""


def measure(url: str, messages: int) -> list[Figure]:
    """Measure an inbox in this store, with default settings, one process; every tenth message comes twice."""
    prefix = f"onceward_bench_{identity.new_id()[:8]}_"
    try:
        with Inbox(url, prefix=prefix) as inbox:
            inbox.migrate()
            return _Course(inbox, messages).run()
    finally:
        _remove(url, prefix)


def _remove(url: str, prefix: str) -> None:
    with Inbox(url, prefix=prefix) as inbox:
        try:
            commands = perform(inbox.store, inbox.context.moves.reports.debris)
        except SchemaMissing:  # it failed before it had made any
            return
        with inbox.transaction() as tx:
            for command in commands:
                tx.execute(command)


class _Course:
    """The parts of a measurement, one after the other."""

    def __init__(self, inbox: Inbox, messages: int) -> None:
        self._inbox, self._messages = inbox, messages
        self._single = max(messages // 10, 10)
        self._plain: dict[str, float] = {}
        self._figures: list[Figure] = []
        self._table = f"{inbox.context.prefix}bench"
        self._mark = "?" if inbox.store.dialect == "sqlite" else "%s"

    def run(self) -> list[Figure]:
        """All of them."""
        self._prepare()
        self._plain_inserts()
        inbox, many, single = self._inbox, self._messages, self._single
        self._take("receive_many", "many", *self._deliveries(many, "nothing", inbox.receive_many))
        self._take(f"receive, {CALLERS} callers", "single", *self._deliveries(single, "nothing", self._concurrently))
        waiting = many + single
        self._take("drain", "many", waiting, lambda: self._drained(waiting))
        inbox.receive_many(_batch(many, "update"))
        self._take("handle, one UPDATE each", "many", many, lambda: self._drained(many))
        self._take("process, inline", "single", *self._deliveries(single, "update", self._inline))
        self._check(many + single)
        return self._figures

    def _prepare(self) -> None:
        with self._inbox.transaction() as tx:
            tx.execute(f"CREATE TABLE {self._table} (id integer PRIMARY KEY, n integer NOT NULL)")
            tx.execute(f"INSERT INTO {self._table} VALUES (1, 0)")
            tx.execute(f"CREATE TABLE {self._table}_plain (id varchar(64) PRIMARY KEY, body text NOT NULL)")
        update = f"UPDATE {self._table} SET n = n + 1 WHERE id = {self._mark}"

        @self._inbox.on("nothing")
        def nothing(message: Message, _tx: Any) -> None:
            if not message.data["pad"]:
                raise ValueError("its body is not the one that was sent")

        @self._inbox.on("update")
        def apply(_message: Message, tx: Any) -> None:
            tx.execute(update, [1])

    def _plain_inserts(self) -> None:
        """What plain inserts of the same bodies do here: one in each transaction, and many."""
        insert = f"INSERT INTO {self._table}_plain VALUES ({self._mark}, {self._mark})"
        with self._inbox.transaction() as tx:
            for kind, count, size in (("single", self._single, 1), ("many", self._messages, BATCH)):
                rows = [(message["id"], json.dumps(message["data"])) for message in _batch(count, "plain")[:count]]
                began = time.perf_counter()
                for first in range(0, count, size):
                    tx.cursor().executemany(insert, rows[first : first + size])
                    for statement in _TURN[self._inbox.store.dialect]:
                        tx.execute(statement)
                self._plain[kind] = count / (time.perf_counter() - began)
        for kind, name, count in (
            ("single", "plain INSERT, one in each transaction", self._single),
            ("many", f"plain INSERT, {BATCH} in each transaction", self._messages),
        ):
            self._figures.append(Figure(name, count, round(self._plain[kind], 1), kind, None))

    def _take(self, name: str, beside: str, count: int, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        rate = count / (time.perf_counter() - began)
        self._figures.append(Figure(name, count, round(rate, 1), beside, round(rate / self._plain[beside], 3)))

    def _deliveries(self, count: int, kind: str, call: Callable[[Any], object]) -> tuple[int, Callable[[], object]]:
        batch = _batch(count, kind)
        return len(batch), lambda: call(batch)

    def _concurrently(self, batch: list[Any]) -> None:
        failed: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for message in batch[number::CALLERS]:
                    self._inbox.receive(**message)
            except BaseException as error:  # noqa: BLE001 - raised again below, where somebody waits for it
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def _inline(self, batch: list[Any]) -> None:
        for message in batch:
            self._inbox.process(**message)

    def _drained(self, count: int) -> None:
        finished = self._inbox.drain()
        if finished != count:
            raise StoreError(f"the measurement was not exact: {finished} messages finished instead of {count}")

    def _check(self, count: int) -> None:
        with self._inbox.transaction() as tx:
            ((found,),) = tx.execute(f"SELECT n FROM {self._table}").fetchall()
        if found != count:
            raise StoreError(f"the measurement was not exact: {found} effects instead of {count}")


def _batch(count: int, kind: str) -> list[Any]:
    """So many different messages of about 300 bytes, and the copies of every tenth."""
    fresh = [
        {"source": "bench", "id": time_ordered_id(), "type": kind, "data": {"number": number, "pad": _PAD}}
        for number in range(count)
    ]
    return fresh + fresh[::10]
