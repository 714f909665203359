"""A lane: one loop of a worker with a connection of its own; it knows which of its claims are open.

Invariant: every token it ever wrote and has not finished is in `open_tokens`, so that whatever the outcome of a
lost answer was, the rows can be found and let go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onceward import payload
from onceward.flow import Call
from onceward.message import NO_HEADERS, Delivery
from onceward.registry import Handler, Subscription
from onceward.steps.context import Context
from onceward.steps.receive import message_of


class Gate:
    """Lets a suspect run alone: while one lane is alone, no other lane of the process holds a note."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._alone: object | None = None

    def enter(self, who: object) -> bool:
        """Go in with the others; False while somebody is or wants to be alone."""
        with self._lock:
            if self._alone is not None:
                return False
            self._inside.add(who)
            return True

    def leave(self, who: object) -> None:
        """Go out; holds no note any more."""
        with self._lock:
            self._inside.discard(who)
            if self._alone is who:
                self._alone = None

    def enter_alone(self, who: object) -> bool:
        """Ask to be alone; True as soon as everybody else is out. Ask again until then."""
        with self._lock:
            if self._alone is None:
                self._alone = who
            return self._alone is who and self._inside <= {who}

    @property
    def closed(self) -> bool:
        """Whether somebody is or wants to be alone."""
        return self._alone is not None


@dataclass(frozen=True, slots=True, eq=False)
class Claimed:
    """A message that this lane has noted."""

    seq: int
    worker: int
    token: int
    key_hash: int | None
    attempts: int
    age: float
    handler: Handler | None
    call: Call | None
    problem: Exception | None
    """Why it cannot even be shown to a handler; then there is no call."""

    @property
    def request(self) -> Call:
        """The call of its handler."""
        if self.call is None:
            raise AssertionError("a message that cannot be read is never run")
        return self.call

    @property
    def group(self) -> int:
        """How many messages may share its transaction."""
        return self.handler.group if self.handler else 1

    @property
    def timeout(self) -> float:
        """How many seconds its handler may take."""
        return self.handler.timeout.total_seconds() if self.handler else 0.0

    def follows(self, other: Claimed) -> bool:
        """Whether it must not run before the other: same key, later in it."""
        return self.key_hash is not None and self.key_hash == other.key_hash and self.seq > other.seq


@dataclass(slots=True, eq=False)
class Lane:
    """One loop: which subscriptions it serves, under which worker, and what it holds."""

    context: Context
    worker: Callable[[], int]
    new_token: Callable[[], int]
    subscriptions: list[Subscription]
    stopping: Callable[[], bool]
    gate: Gate
    open_tokens: set[int] = field(default_factory=set)
    floor: int = 0
    swept_at: float = float("-inf")
    group: int = 1
    """How many messages it claims at a time: halved when a group fails, growing back while all goes well."""
    finished: int = 0
    wants_alone: bool = False
    """A suspect waits, and this lane has asked the others to let it run alone."""
    owner: int = 0
    """The worker number under which the open tokens were written."""

    @property
    def largest_group(self) -> int:
        """The largest group any of its handlers wants."""
        registry = self.context.registry
        handlers = (registry.of_type(s.consumer, s.type) for s in self.subscriptions)
        return max((handler.group for handler in handlers if handler), default=1)

    def token(self) -> int:
        """A fresh token, remembered until its rows are known to be gone."""
        token = self.new_token()
        self.open_tokens.add(token)
        return token


def claimed(lane: Lane, token: int, row: tuple[Any, ...]) -> Claimed:
    """A claimed row, with the message its handler will see."""
    seq, subscription, key_hash, attempts, source, message_id, kind, version, key, headers, body, received_at, age = row
    catalog = lane.context.cache.catalog
    consumer = catalog.subscriptions[subscription].consumer
    handler = call = problem = None
    try:
        handler = lane.context.registry.find(consumer, kind, version)
        delivery = Delivery(
            source=catalog.numbers[source],
            id=message_id,
            type=kind,
            version=version,
            key=key,
            headers=payload.decode(headers.encode()) if headers else NO_HEADERS,
            body=bytes(body),
            hash=b"",
        )
        message = message_of(handler, delivery, seq=seq, received_at=received_at, attempt=attempts + 1)
        if key is None and callable(handler.key):
            handler.key(message)  # a key function that fails here failed at receive; say why
        call = Call(handler, message)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it is recorded as its attempt
        problem = error
    return Claimed(seq, lane.owner, token, key_hash, attempts, age, handler, call, problem)
