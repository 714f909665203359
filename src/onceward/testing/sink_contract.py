"""The obligations of a sink (`brokers/protocol.py`) as checks, for authors of one.

    sink_contract(MySink(...), received=lambda: my_broker.messages())

`received()` returns what the other side has, as (id, type, body) each, in the order of its arrival.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

from onceward.brokers.protocol import Sink
from onceward.domain import identity, payload
from onceward.message import Message
from onceward.testing.process import apart, together
from onceward.testing.promises import Promise, PromiseBroken, expect, keep_all

Arrived = Sequence[tuple[str, str, bytes]]


@dataclass(frozen=True, slots=True)
class OtherSide:
    """A sink, and what can be seen and done at its other end."""

    sink: Sink
    received: Callable[[], Arrived]
    away: Callable[[], AbstractContextManager[object]] | None = None
    """Makes the other side unreachable for as long as the block lasts."""

    def arrived(self, message: Message) -> list[tuple[str, bytes]]:
        """Type and body of whatever arrived under the id of a message."""
        return [(kind, bytes(body)) for arrived, kind, body in self.received() if arrived == message.id]


def sink_contract(
    sink: Sink, *, received: Callable[[], Arrived], away: Callable[[], AbstractContextManager[object]] | None = None
) -> list[str]:
    """Check every promise of a sink; returns the sentences, or raises `PromiseBroken` with what was broken."""
    return keep_all(PROMISES, OtherSide(sink, received, away))


def what_is_published_has_arrived(side: OtherSide) -> None:
    """When publish returns, the other side has the message: its id, its type, its very bytes."""
    message = _message()
    _publish(side.sink, message)
    found = side.arrived(message)
    expect(found, "publish returned, and the other side has nothing")
    expect(set(found) == {(message.type, message.body)}, f"another message arrived: {found}")


def a_repetition_keeps_its_id(side: OtherSide) -> None:
    """A message that is published twice arrives under one id and unchanged, so the other side can tell."""
    message = _message()
    before = len(side.received())
    _publish(side.sink, message)
    _publish(side.sink, message)
    found = side.arrived(message)
    expect(set(found) == {(message.type, message.body)}, f"the copies differ: {found}")
    expect(len(side.received()) - before == len(found), "a copy arrived under an id of its own")


def several_threads_may_publish(side: OtherSide) -> None:
    """Messages published at the same time all arrive, none mixed with another."""
    messages = [_message() for _ in range(4)]
    together(*(lambda message=message: _publish(side.sink, message) for message in messages))
    for message in messages:
        expect(set(side.arrived(message)) == {(message.type, message.body)}, f"{message.id} was lost or mixed up")


def what_did_not_arrive_raises(side: OtherSide) -> None:
    """When the other side is away, publish raises: returning would lose the message. Needs `away`."""
    if side.away is None:
        return
    message = _message()
    try:
        with side.away():
            _publish(side.sink, message)
    except Exception:  # noqa: BLE001 - whatever a sink raises
        return
    raise PromiseBroken("publish returned although the other side was away")


PROMISES = tuple(
    Promise(check)
    for check in (
        what_is_published_has_arrived,
        a_repetition_keeps_its_id,
        several_threads_may_publish,
        what_did_not_arrive_raises,
    )
)


def _message() -> Message:
    number = identity.new_id()
    data = {"number": number, "text": "ä€😀"}
    return Message(
        id=f"contract-{number}",
        source="contract",
        type="contract.sent",
        version=1,
        data=data,
        body=payload.encode(data),
        headers={"correlation-id": number},
        key=None,
        seq=1,
        attempt=1,
        received_at=datetime.now(UTC),
        consumer="onceward.outbox",
    )


def _publish(sink: Sink, message: Message) -> None:
    async def awaited() -> None:
        answer = sink.publish(message)
        if inspect.isawaitable(answer):
            await answer

    if inspect.iscoroutinefunction(sink.publish):
        apart(lambda: asyncio.run(awaited()))
    else:
        sink.publish(message)
