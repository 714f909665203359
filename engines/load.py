"""A load on one database, and what came of it.

Invariant: what counts is what was acknowledged. A message whose answer was an error is sent again until it is accepted,
and three in ten are sent again after that; each must have exactly one effect, and those of a key in the order sent.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

from onceward import Inbox, Message, Settings, StoreError

FEEDERS, KEYS, MESSAGES = 3, 30, 3_000
PATIENCE_SECONDS = 120.0
SETTINGS = Settings(lease=timedelta(seconds=5), poll=timedelta(milliseconds=50))
TYPE = "engine.load"
_TABLE = {
    "postgres": "CREATE TABLE effect (place bigserial PRIMARY KEY, name text, number int)",
    "mysql": (
        "CREATE TABLE effect (place bigint AUTO_INCREMENT PRIMARY KEY, name text, number int) /*T! AUTO_ID_CACHE 1 */"
    ),
}


class Verdict(NamedTuple):
    """What came of a load."""

    messages: int
    errors: int
    lost: int
    doubled: int
    disordered: int


class Report(NamedTuple):
    """What an engine has shown under load."""

    server: str
    version: str
    fault: str
    load: Verdict
    checks: tuple[bool, ...] = ()
    """What must be so at the end, beside the verdict."""


class Load:
    """Feeders and workers on one database, which may fail while they run."""

    def __init__(self, url: str, messages: int, *, urls: Sequence[str] = ()) -> None:
        self._url, self._messages = url, messages
        self._urls = [*urls] or [url]
        """Of the servers of a cluster, which are all written."""
        self.accepted: list[int] = []
        self.errors: list[Exception] = []
        self._fed = threading.Event()

    def play(self, fault: Callable[[], None] | None = None) -> Verdict:
        """Send all, with the fault in the middle, and work until every accepted message has had its effect."""
        with closing(Inbox(self._url, settings=SETTINGS)) as inbox:
            inbox.migrate()
            self._prepare(inbox)
        threads = [threading.Thread(target=self._feed, args=(one,)) for one in range(FEEDERS)]
        threads += [threading.Thread(target=self._work, args=(one,)) for one in range(max(2, len(self._urls)))]
        for thread in threads:
            thread.start()
        if fault is not None:
            _wait(lambda: len(self.accepted) >= self._messages // 3)
            fault()
        for thread in threads[:FEEDERS]:
            thread.join()
        _wait(lambda: len(set(self._effects())) >= self._messages)
        self._fed.set()
        for thread in threads:
            thread.join()
        return self._verdict()

    def _feed(self, feeder: int) -> None:
        chance = random.Random(feeder)
        with closing(Inbox(self._urls[feeder % len(self._urls)], settings=SETTINGS)) as inbox:
            inbox.on(TYPE, key="key")(self.effect)
            for number in range(feeder, self._messages, FEEDERS):
                while not self._send(inbox, number):
                    time.sleep(0.05)
                self.accepted.append(number)
                if chance.random() < 0.3:
                    self._send(inbox, number)

    def _prepare(self, inbox: Inbox) -> None:
        """Make what effects need."""
        with inbox.transaction() as tx:
            tx.execute(_TABLE[inbox.store.dialect])

    @staticmethod
    def effect(message: Message, tx: Any) -> None:
        """What the handler does."""
        tx.execute("INSERT INTO effect (name, number) VALUES (%s, %s)", [message.data["key"], message.data["number"]])

    def key(self, number: int) -> str:
        """A key belongs to one feeder, so that the order it is sent in is known."""
        return f"key-{number % KEYS}"

    def _send(self, inbox: Inbox, number: int) -> bool:
        data = {"number": number, "key": self.key(number)}
        try:
            inbox.receive(source="load", id=f"message-{number}", type=TYPE, data=data)
        except StoreError as error:
            self.errors.append(error)
            return False
        return True

    def _work(self, worker: int) -> None:
        with closing(Inbox(self._urls[worker % len(self._urls)], settings=SETTINGS)) as inbox:
            inbox.on(TYPE, key="key")(self.effect)
            while not self._fed.is_set():
                try:
                    inbox.drain()
                except StoreError as error:
                    self.errors.append(error)
                time.sleep(0.02)

    def _effects(self) -> list[tuple[str, int]]:
        try:
            with closing(Inbox(self._urls[-1])) as inbox, inbox.transaction() as tx:
                return list(tx.execute("SELECT name, number FROM effect ORDER BY place").fetchall())
        except Exception:  # noqa: BLE001 - the server is away; it is asked again
            return []

    def _verdict(self) -> Verdict:
        effects = self._effects()
        times = Counter(number for _, number in effects)
        lost = sum(number not in times for number in self.accepted)
        doubled = sum(count - 1 for count in times.values())
        latest: dict[str, int] = {}
        disordered = 0
        for key, number in effects:
            disordered += number < latest.get(key, -1)
            latest[key] = max(number, latest.get(key, -1))
        return Verdict(len(self.accepted), len(self.errors), lost, doubled, disordered)


def _wait(done: Callable[[], bool]) -> None:
    """Until it is so, or so long that it will not be: what is missing then is lost."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
