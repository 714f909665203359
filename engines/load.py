"""A load on one database, and what came of it.

Invariant: what counts is what was acknowledged. A message whose answer was an error is sent again until it is accepted,
and three in ten are sent again after that; each must have exactly one effect, and those of a key in the order sent.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg

from onceward import Inbox, Message, Settings, StoreError

FEEDERS, KEYS = 3, 30
PATIENCE_SECONDS = 120.0
SETTINGS = Settings(lease=timedelta(seconds=5), poll=timedelta(milliseconds=50))
TYPE = "engine.load"


class Verdict(NamedTuple):
    """What came of a load."""

    messages: int
    errors: int
    lost: int
    doubled: int
    disordered: int


class Load:
    """Feeders and workers on one database, which may fail while they run."""

    def __init__(self, url: str, messages: int) -> None:
        self._url, self._messages = url, messages
        self.accepted: list[int] = []
        self._errors: list[StoreError] = []
        self._fed = threading.Event()

    def play(self, fault: Callable[[], None] | None = None) -> Verdict:
        """Send all, with the fault in the middle, and work until every accepted message has had its effect."""
        with closing(Inbox(self._url, settings=SETTINGS)) as inbox:
            inbox.migrate()
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CREATE TABLE effect (place bigserial PRIMARY KEY, key text, number int)")
        threads = [threading.Thread(target=self._feed, args=(one,)) for one in range(FEEDERS)]
        threads += [threading.Thread(target=self._work) for _ in range(2)]
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
        return self._judge()

    def _feed(self, feeder: int) -> None:
        chance = random.Random(feeder)
        with closing(Inbox(self._url, settings=SETTINGS)) as inbox:
            inbox.on(TYPE, key="key")(_handle)
            for number in range(feeder, self._messages, FEEDERS):
                while not self._send(inbox, number):
                    time.sleep(0.05)
                self.accepted.append(number)
                if chance.random() < 0.3:
                    self._send(inbox, number)

    def _send(self, inbox: Inbox, number: int) -> bool:
        # A key belongs to one feeder, so that the order it is sent in is known.
        data = {"number": number, "key": f"key-{number % KEYS}"}
        try:
            inbox.receive(source="load", id=f"message-{number}", type=TYPE, data=data)
        except StoreError as error:
            self._errors.append(error)
            return False
        return True

    def _work(self) -> None:
        with closing(Inbox(self._url, settings=SETTINGS)) as inbox:
            inbox.on(TYPE, key="key")(_handle)
            while not self._fed.is_set():
                try:
                    inbox.drain()
                except StoreError as error:
                    self._errors.append(error)
                time.sleep(0.02)

    def _effects(self) -> list[tuple[str, int]]:
        try:
            with psycopg.connect(self._url) as connection:
                return connection.execute("SELECT key, number FROM effect ORDER BY place").fetchall()
        except psycopg.OperationalError:
            return []

    def _judge(self) -> Verdict:
        effects = self._effects()
        times = Counter(number for _, number in effects)
        lost = sum(number not in times for number in self.accepted)
        doubled = sum(count - 1 for count in times.values())
        latest: dict[str, int] = {}
        disordered = 0
        for key, number in effects:
            disordered += number < latest.get(key, -1)
            latest[key] = max(number, latest.get(key, -1))
        return Verdict(len(self.accepted), len(self._errors), lost, doubled, disordered)


def _handle(message: Message, tx: Any) -> None:
    tx.execute("INSERT INTO effect (key, number) VALUES (%s, %s)", [message.data["key"], message.data["number"]])


def _wait(done: Callable[[], bool]) -> None:
    """Until it is so, or so long that it will not be: what is missing then is lost."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
