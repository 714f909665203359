"""Neighbours: one message of a group fails; the external calls of the others must not be made again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from bench.figures import expect
from bench.ground import one
from bench.messages import random_id
from bench.scale import Crowd
from bench.scenarios.handlers import Refused, effect
from bench.scenarios.sender import Found, check_once
from onceward import Inbox, Message, Reject, Retry, Settings

EVERY, OFFSET = 110, 55
"""One message in so many fails: in groups of 100 each time at another place, from the middle to the end."""
GROUP_TIME = timedelta(seconds=1)
"""So that handlers which call somebody, too, have groups of 100."""
CALL_SECONDS = 0.002
WAYS = {"neighbours: calls repeated": CALL_SECONDS, "neighbours: quick handlers run again": 0.0}
"""What is counted, and how long a handler takes outside its transaction; a quick one has called nobody."""


def _raises(_tx: Any) -> None:
    raise Refused("culprit")


def _retries(_tx: Any) -> None:
    raise Retry(after=timedelta(hours=1))


def _rejects(_tx: Any) -> None:
    raise Reject("culprit")


def _swallows(tx: Any) -> None:
    """The transaction is broken, and the handler does not say so."""
    try:
        tx.execute("SELECT 1 / 0")
    except psycopg.Error:
        return


FAULTS: dict[str, Callable[[Any], None]] = {
    "raises": _raises,
    "retries": _retries,
    "rejects": _rejects,
    "swallows": _swallows,
}
"""What a culprit does after it has used its transaction."""


async def measure(url: str, crowd: Crowd, found: Found) -> None:
    """The sum over all ways to fail; the notes have each."""
    cases = [(name, fault) for name in WAYS for fault in FAULTS]
    totals = Counter(dict.fromkeys(WAYS, 0))
    for place, (name, fault) in enumerate(cases):
        numbers = range(place * crowd.neighbours, (place + 1) * crowd.neighbours)
        repeated = await asyncio.to_thread(_drained, url, fault, WAYS[name], numbers)
        found.notes[f"{name}, where one {fault}"] = repeated
        totals[name] += repeated
    for name, total in totals.items():
        found.add(name, total)


def _drained(url: str, fault: str, seconds: float, numbers: range) -> int:
    """How many handlers of innocents ran again."""
    calls: Counter[int] = Counter()
    culprits = set(numbers[OFFSET::EVERY])
    kind = f"{fault}, {seconds:g}"
    with Inbox(url, settings=Settings(group_time=GROUP_TIME)) as inbox:

        @inbox.on(kind)
        def handle(message: Message, tx: Any) -> None:
            number = message.data["number"]
            calls[number] += 1
            if seconds:
                time.sleep(seconds)
            effect(message, tx)
            if number in culprits:
                FAULTS[fault](tx)

        inbox.receive_many(
            {"source": "bench", "id": random_id(), "type": kind, "data": {"number": number}} for number in numbers
        )
        inbox.drain()
    innocents = [number for number in numbers if number not in culprits]
    check_once(f"neighbours: {kind}", url, innocents)
    between = f"number BETWEEN {numbers[0]} AND {numbers[-1]}"
    expect(f"neighbours: {kind}: effects", one(url, f"SELECT count(*) FROM effect WHERE {between}"), len(innocents))
    return sum(calls[number] - 1 for number in innocents)
