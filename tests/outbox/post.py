"""A post office: sinks that remember what was published, in memory or in a file, and handlers that send."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward import Inbox, Message, RetryPolicy
from onceward.brokers.protocol import Sink
from onceward.sinks.inbox import InboxSink
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Kind
from tests.nursery import append, lines

LATER = RetryPolicy(attempts=3, first=timedelta(hours=1), jitter=0)
"""A retry comes when the test says so."""
AT_ONCE = RetryPolicy(attempts=50, first=timedelta(0))


@dataclass
class Post:
    """What a sink was given, in order; messages named in `trouble` raise that instead of being delivered."""

    trouble: dict[str, Callable[[], BaseException]] = field(default_factory=dict)
    delivered: list[Message] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def sink(self, kind: Kind) -> Sink:
        """A sink of a kind that delivers here."""
        return _AsyncSink(self) if kind == "async" else _Sink(self)

    def take(self, message: Message) -> None:
        """Deliver a message, or raise."""
        label = name_of(message)
        self.calls[label] += 1
        if label in self.trouble:
            raise self.trouble[label]()  # noqa: RSE102 - it makes the error
        self.delivered.append(message)

    @property
    def names(self) -> list[str]:
        """The names of the messages that were delivered, in order."""
        return [name_of(message) for message in self.delivered]

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [message.id for message in self.delivered]


class _Sink:
    def __init__(self, post: Post) -> None:
        self._post = post

    def publish(self, message: Message) -> None:
        """Deliver."""
        self._post.take(message)


class _AsyncSink:
    def __init__(self, post: Post) -> None:
        self._post = post

    async def publish(self, message: Message) -> None:
        """Deliver."""
        self._post.take(message)


class FileSink:
    """Publishes to a file that outlives its process; after some messages it kills the process."""

    def __init__(self, path: str, *, deadly: Iterable[str] = (), every: int = 0) -> None:
        self._path, self._deadly, self._every = path, set(deadly), every
        self._published = 0

    def publish(self, message: Message) -> None:
        """Write a line; when this returns or the process is dead, the other side has it."""
        line = {"name": name_of(message), "id": message.id, "key": message.key, "to": message.to, "pid": os.getpid()}
        append(self._path, line)
        self._published += 1
        if name_of(message) in self._deadly or self._published == self._every:
            os.kill(os.getpid(), signal.SIGKILL)


def into(inbox: Inbox, *, source: str) -> InboxSink:
    """A sink that leads into another inbox."""
    return InboxSink(inbox, source=source)


def name_of(message: Message) -> str:
    """What a test calls an outgoing message."""
    return str(json.loads(message.body)["name"])


def published(path: str) -> list[dict[str, Any]]:
    """What file sinks have published, in order."""
    return lines(path)


def sending(*names: str, **options: Any) -> Callable[[Message], Steps]:
    """A behaviour: one effect, and these messages sent; without names, one that is called like the incoming message."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        for name in names or (message.id,):
            message.send("shipped", {"name": name}, **options)

    return behaviour
