"""Watches who is subscribed since when, and when messages of unknown types got their consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.history import History


class Placing:
    """What a transaction does about subscriptions counts when it is committed."""

    def __init__(self, history: History, database: Any, sometimes: Callable[[str], None]) -> None:
        self._history, self._database, self._sometimes = history, database, sometimes
        self._subscribing: dict[Any, list[tuple[int, str]]] = {}
        self._placing: dict[Any, list[int]] = {}
        self._looking: dict[Any, int] = {}
        """When it looked for messages that wait: what is subscribed later may count as later."""

    def forget(self, session: Any) -> None:
        """The transaction of a session is gone, or over."""
        self._subscribing.pop(session, None)
        self._placing.pop(session, None)
        self._looking.pop(session, None)

    def performed(self, session: Any, part: Any, answer: Any, step: int) -> None:
        """A statement was performed."""
        name = part.name
        if name == "subscribe":  # MySQL does not answer whether it has changed anything
            self._subscribing.setdefault(session, []).append((part.params["consumer"], part.params["type"]))
        elif name == "unhandled" and answer:
            self._looking[session] = step
        elif name == "adopt" and answer:
            self._placing.setdefault(session, []).append(part.params["seq"])
        elif name == "hand_on":
            self._placing.setdefault(session, []).append(part.params["heir"])

    def committed(self, session: Any, step: int) -> None:
        """Its transaction is committed."""
        if session in self._subscribing:
            names = self._database.names()
            pairs = {(names[consumer], kind): step for consumer, kind in self._subscribing[session]}
            new = pairs.keys() - self._history.subscribed.keys()
            self._history.subscribed = pairs | self._history.subscribed
            if new and any(one.ended < 0 for one in self._history.receptions):
                self._sometimes("subscribed while others receive")
        looked = self._looking.get(session, step)
        self._history.placed += [(looked, seq) for seq in self._placing.get(session, ())]
        self.forget(session)
