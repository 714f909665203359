"""What the handlers of these tests do: a line in a table, in the message's transaction, and marks in a file, past it.

The table says in which order effects were committed, and how many of its key each handler saw before it wrote. The
marks say when handlers began and ended, also those whose effects were rolled back: two handlers of one key at the same
time would be visible there and nowhere else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Message, Reject, RetryPolicy
from onceward.stores.statements import WORDS
from tests.contract.behaviour import Sql, Steps, Until, wrote
from tests.contract.harness import Shop, arguments
from tests.nursery import append, lines

TYPES = ("opened", "changed", "closed")
"""Three types of one consumer: they share their keys."""
NUMBER = {
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
    "postgres": "bigserial",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
}
"""What numbers rows in the order of their writing."""
AT_ONCE = RetryPolicy(attempts=5, first=timedelta(0))


@dataclass(slots=True)
class Marks:
    """A file in which handlers say that they begin and end."""

    path: str

    def start(self, message: Message) -> None:
        """A handler begins."""
        append(self.path, {"mark": "start", "key": message.data["k"], "id": message.id, "pid": os.getpid()})

    def end(self, message: Message) -> None:
        """A handler ends, well or not."""
        append(self.path, {"mark": "end", "key": message.data["k"], "id": message.id, "pid": os.getpid()})

    def died(self, pid: int) -> None:
        """A process is gone, and with it every handler that it was in."""
        append(self.path, {"mark": "died", "pid": pid})

    @property
    def pids(self) -> set[int]:
        """The processes that have begun a handler."""
        return {line["pid"] for line in lines(self.path) if line["mark"] == "start"}

    def inside(self) -> list[tuple[str, str]]:
        """The (key, id) of the handlers that run now."""
        return [(key, message_id) for key, message_id, _ in self._replay()[0]]

    def overlaps(self) -> list[str]:
        """Every handler that began while another of its key ran."""
        return self._replay()[1]

    def _replay(self) -> tuple[list[tuple[str, str, int]], list[str]]:
        running: list[tuple[str, str, int]] = []
        found: list[str] = []
        for line in lines(self.path):
            if line["mark"] == "died":
                running = [one for one in running if one[2] != line["pid"]]
                continue
            one = (line["key"], line["id"], line["pid"])
            if line["mark"] == "end":
                running.remove(one)
                continue
            found += [f"{one} began during {other}" for other in running if other[0] == one[0]]
            running.append(one)
        return running, found


@dataclass(slots=True)
class Clerk:
    """The behaviour of a handler. Messages say in their data what happens besides: `fail`, `reject`, `hold`."""

    marks: Marks
    folder: str
    together: int = 0
    """So many processes must have begun a handler before any of them goes on."""
    victim: bool = False
    """Whether this process obeys `hold` and `die`: only one that may be killed does."""
    _met: threading.Event = field(default_factory=threading.Event)

    def __call__(self, message: Message) -> Steps:
        self.marks.start(message)
        try:
            if not self._met.is_set():
                yield Until(lambda: len(self.marks.pids) >= self.together)
                self._met.set()
            yield from self._held(message, "before")
            key = message.data["k"]
            ((seen,),) = yield Sql("SELECT count(*) FROM journal WHERE account = %s", (key,))
            yield wrote(message)
            yield Sql("INSERT INTO journal (message_id, account, seen) VALUES (%s, %s, %s)", (message.id, key, seen))
            yield from self._held(message, "after")
            if message.attempt <= message.data.get("fail", 0):
                raise RuntimeError("not yet")
            if message.data.get("reject"):
                raise Reject("never")
        finally:
            self.marks.end(message)

    def _held(self, message: Message, moment: str) -> Steps:
        if not self.victim:
            return
        if message.data.get("die") == moment:
            os._exit(1)
        if message.data.get("hold") == moment:
            release = Path(self.folder, "release")
            yield Until(release.exists)


def open_journal(shop: Shop) -> None:
    """Create the table."""
    by_bytes = WORDS["mysql"]["table"] if shop.dialect == "mysql" else ""
    shop.sql(f"CREATE TABLE journal (n {NUMBER[shop.dialect]}, message_id text, account text, seen integer) {by_bytes}")


def journal(shop: Shop, key: str | None = None) -> list[str]:
    """The ids in the order of their effects; of one key, or all."""
    rows = shop.sql("SELECT message_id, account FROM journal ORDER BY n")
    return [message_id for message_id, its_key in rows if key in (None, its_key)]


def assert_each_saw_its_predecessors(shop: Shop) -> None:
    """When a handler of a key began, every earlier one was committed (or in its own transaction), and no later one."""
    counts: dict[str, int] = {}
    for message_id, key, seen in shop.sql("SELECT message_id, account, seen FROM journal ORDER BY n"):
        assert seen == counts.get(key, 0), f"{message_id} saw {seen} lines of its key"
        counts[key] = seen + 1


def handle_all(shop: Shop, clerk: Callable[[Message], Steps], **options: Any) -> None:
    """Register the clerk for each of the types."""
    for message_type in TYPES:
        shop.handle(message_type, clerk, **{"key": "k", "retry": AT_ONCE, **options})


def interleaved(keys: str, count: int, **data: Any) -> list[dict[str, Any]]:
    """The arguments of messages `a0 b0 a1 b1 ...`, of changing types."""
    return [
        arguments(f"{key}{number}", TYPES[number % len(TYPES)], more={"data": {"k": key, **data}})
        for number in range(count)
        for key in keys
    ]


def receive(shop: Shop, *ids: str, key: str = "k", message_type: str = TYPES[0], **more: Any) -> None:
    """Store messages of a key, one after another."""
    data = {"k": key, **more.pop("data", {})}
    for message_id in ids:
        shop.receive(message_id, message_type, data=data, **more)


def statuses(shop: Shop, ids: Iterable[str]) -> dict[str, str]:
    """What became of messages."""
    return {message_id: shop.status(message_id) for message_id in ids}
