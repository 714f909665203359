"""A group: the messages that share a transaction, and what stands of each of them while it runs.

Invariant: every message of the group is in exactly one place: still to run, standing (its handler has returned),
failed, to be given back, or to be run again alone. Going back to a savepoint undoes only what used the transaction
since then: those messages are to run again, and no others. Messages of one key never overtake each other: what
follows one that failed or runs alone later goes with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from onceward.errors import NeedsAlone
from onceward.message import Delivery, Outgoing
from onceward.registry import Handler
from onceward.retry import Again, Dead, Reject
from onceward.steps.lane import Claimed

SPACING = 20
"""After so many messages that used the transaction a savepoint is made: each costs a round trip, and without one a
failure runs as many again. Those are quick ones, for"""
SLOW = 0.001
"""a handler that took longer than this, its statements apart, may have called a service: it gets one of its own."""
MOST_SAVEPOINTS = 50
"""In one transaction, those of handlers included: beyond 64 PostgreSQL becomes slow for everyone."""


class Failure(NamedTuple):
    """A message whose handler failed, and what becomes of it."""

    message: Claimed
    error: BaseException
    decision: Again | Dead

    @property
    def leaves_key(self) -> bool:
        """Whether it is dead and its key goes on without it; that needs the key lock."""
        return isinstance(self.decision, Dead) and self.message.leaves_key


class Group:
    """What stands of a group."""

    def __init__(self, messages: list[Claimed]) -> None:
        self._waiting = deque(_parts(messages))
        self.standing: list[Claimed] = []
        self.failures: list[Failure] = []
        self.given_back: list[Claimed] = []
        self.alone: list[Claimed] = []
        self.recovered: list[Handler] = []
        """Their circuits were open, and a message has gone through."""
        self.results: dict[int, str] = {}
        self._since: list[Claimed] = []
        """Those that used the transaction since the last savepoint."""
        self.savepoints = 0
        self.is_spoiled = False
        """A handler that failed has written, and there is no savepoint to go back to."""
        self._is_split = False
        """A batch has failed, so one of its messages will: each gets a savepoint."""
        self.handlers = {message.handler for message in messages if message.handler is not None}
        """What is asked of handlers is asked once for all their messages."""
        self.shares = len(messages) > 1
        self.leaves_something = False
        """A handler has sent messages, or left calls for after its commit."""
        self.calls_once: list[Handler] = []
        """They were found to use `message.once`, which needs a transaction for each message."""

    @property
    def rest(self) -> list[Claimed]:
        """What is still to run."""
        return [message for part in self._waiting for message in part]

    @property
    def sent(self) -> list[Delivery]:
        """What was sent by those that stand."""
        return [one for outbox in self._outboxes for one in outbox.deliveries]

    @property
    def calls(self) -> list[Callable[[], Any]]:
        """What those that stand have left for after the commit."""
        return [call for outbox in self._outboxes for call in outbox.calls]

    @property
    def _outboxes(self) -> list[Outgoing]:
        if not self.leaves_something:  # the usual case
            return []
        requests = [message.call for message in self.standing if message.call and not message.stale]
        return [request.message.outbox for request in requests if request.message.outbox]

    def next(self) -> list[Claimed]:
        """The messages of the next call; none where the group is at its end."""
        while self._waiting:
            if not self._is_reduced:
                return self._waiting.popleft()
            part = [message for message in self._waiting.popleft() if not self._goes_along(message)]
            if part:
                return part
        return []

    @property
    def _is_reduced(self) -> bool:
        """Whether a message of the group is not to run, or not now: then others may have to go along."""
        return bool(self.failures or self.alone or self.given_back)

    def leave(self, held: Iterable[Claimed]) -> None:
        """The group ends: what is still to run, or held beside it, goes along where it must not run now either.

        So does what was to run alone, where one before it ran again since, and failed then.
        """
        if not self._is_reduced and not self._is_split:  # the usual case
            return
        alone, self.alone = self.alone, []
        for message in alone:
            (self.given_back if self._is_behind(message) else self.alone).append(message)
        rest = [message for message in self.rest if not self._goes_along(message)]
        if self._is_split:  # together they would only fail again, in the same way
            self.alone += rest
            rest = []
        self._waiting = deque([message] for message in rest)
        for message in held:
            self._goes_along(message)

    def _goes_along(self, message: Claimed) -> bool:
        """Whether it follows one that failed or runs alone later, or its handler has paused; then it goes with it."""
        if not self._is_reduced:
            return False
        if any(message.follows(one) for one in self.alone):
            self.alone.append(message)
            return True
        is_paused = message.handler is not None and message.handler.is_paused
        if is_paused or self._is_behind(message):
            self.given_back.append(message)
            return True
        return False

    def _is_behind(self, message: Claimed) -> bool:
        """Whether one before it in its key has failed or was given back."""
        ahead = [*(failure.message for failure in self.failures), *self.given_back]
        return any(message.follows(one) for one in ahead)

    def stands(self, part: list[Claimed], *, touched: bool) -> None:
        """A handler has returned."""
        self.standing += part
        for message in part:
            handler = message.handler
            if handler and handler.breaker and handler.breaker.failed_in_row and handler.breaker.succeeded():
                self.recovered.append(handler)
        if touched:
            self._since += part

    def wants_savepoint(self, seconds: float) -> bool:
        """Whether what was just run, for so long beside its statements, is to be kept whatever comes after it."""
        if not self._since or not self._waiting:
            return False
        return seconds > SLOW or len(self._since) >= (1 if self._is_split else SPACING)

    def saved(self) -> None:
        """A savepoint was made: what stands, stands whatever fails."""
        self._since = []
        self.savepoints += 1

    def undone(self) -> None:
        """Back at the savepoint: what used the transaction since then runs again, before what comes next."""
        for message in reversed(self._since):
            self.standing.remove(message)
            self.results.pop(message.seq, None)
            self._waiting.appendleft([message])
        self._since = []

    def fails(self, part: list[Claimed], error: BaseException, *, infrastructure: bool) -> None:
        """A handler has failed: it is settled with the others; a batch is tried again one by one."""
        if len(part) > 1:
            self._waiting.extendleft([message] for message in reversed(part))
            self._is_split = True
        elif infrastructure or isinstance(error, NeedsAlone):
            self.alone += part
            if part[0].handler and isinstance(error, NeedsAlone):
                self.calls_once.append(part[0].handler)
        else:
            self.failures.append(failure_of(part[0], error))


def failure_of(message: Claimed, error: BaseException) -> Failure:
    """A failed message, as its handler's policy wants it; its circuit knows of it."""
    breaker = message.handler.breaker if message.handler else None
    if breaker and not message.problem and not isinstance(error, Reject):
        breaker.failed(error)
    return Failure(message, error, message.decide(error))


def _parts(messages: list[Claimed]) -> list[list[Claimed]]:
    """The messages that share one call: each its own, except for a handler that takes them all."""
    parts: list[list[Claimed]] = []
    for message in messages:
        handler = message.handler
        last = parts[-1] if parts else None
        if last and handler and handler.batch and last[0].handler is handler and len(last) < handler.group:
            last.append(message)
        else:
            parts.append([message])
    return parts
