"""A message for a plain unit test of a handler, which is then a function like any other.

Invariant: what a handler does with it is what it could do in production: data has been JSON on its way, a model is read
as the inbox would read it, and what is sent must be what a message can be. Only nothing is stored.
"""

from __future__ import annotations

import asyncio
import builtins
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, overload

from onceward.domain import checks, payload
from onceward.domain.data_types import is_model, named
from onceward.errors import ContractViolation, InvalidMessage
from onceward.message import DEFAULT, Delivery, Message, Outgoing
from onceward.models.model import model_of

Data = TypeVar("Data")

SOURCE = "onceward.testing"
_numbers = itertools.count(1)


class Sent(NamedTuple):
    """A message that a handler has sent."""

    type: str
    data: Any
    """What its receiver will read; None where the body is no JSON."""
    key: str | None
    to: str
    """The name of the sink."""
    id: str
    version: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Once:
    """A call that a handler has made through `message.once`."""

    name: str
    idempotent: bool
    result: Any
    made: bool
    """False where the test had its result on record: the call was not made."""


class RecordedMessage(Message[Data]):
    """A `Message` that remembers what its handler did with it."""

    @property
    def sent(self) -> list[Sent]:
        """What the handler has sent, in its order."""
        return [_sent(delivery) for delivery in _outbox(self).deliveries]

    @property
    def calls(self) -> list[Once]:
        """The calls made through `message.once`, in their order."""
        return _calls(self).made

    def commit(self) -> None:
        """Make the calls that the handler left with `after_commit`, as its commit does; `await acommit()` if async."""
        for call in self._left():
            if isinstance(answer := call(), Awaitable):
                getattr(answer, "close", lambda: None)()
                raise ContractViolation("after_commit() got an async function: await message.acommit() in the test")

    async def acommit(self) -> None:
        """As `commit`, for `async def` handlers."""
        for call in self._left():
            answer = call()
            if isinstance(answer, Awaitable):
                await answer

    def _left(self) -> list[Callable[[], Any]]:
        outbox = _outbox(self)
        calls, outbox.calls = outbox.calls, []
        return calls


def _outbox(message: Message[Any]) -> Outgoing:
    assert message.outbox is not None  # noqa: S101 - it was made here
    return message.outbox


def _calls(message: Message[Any]) -> _Calls:
    assert isinstance(message.effects, _Calls)  # noqa: S101 - as above
    return message.effects


class _Calls:
    """Stands in for `message.once`: makes the call, or gives the result that the test has on record."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = {name: _through_json(result) for name, result in known.items()}
        self.made: list[Once] = []

    def __call__(self, message: Message, name: str, call: Callable[[], Any], idempotent: bool | timedelta) -> Any:  # noqa: ARG002, FBT001 - as `once` calls it
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._remembered(name) if name in self.known else self._record(name, call(), idempotent=idempotent)
        return self._awaited(name, call, idempotent=bool(idempotent))

    async def _awaited(self, name: str, call: Callable[[], Any], *, idempotent: bool) -> Any:
        if name in self.known:
            return self._remembered(name)
        value = call()
        return self._record(name, await value if isinstance(value, Awaitable) else value, idempotent=idempotent)

    def _remembered(self, name: str) -> Any:
        self.made.append(Once(name, idempotent=False, result=self.known[name], made=False))
        return self.known[name]

    def _record(self, name: str, value: Any, *, idempotent: bool | timedelta) -> Any:
        if isinstance(value, Awaitable):
            raise ContractViolation(f"message.once({name!r}) got an async function outside of an event loop")
        self.known[name] = result = _through_json(value)  # asked again under this name, it is on record
        self.made.append(Once(name, bool(idempotent), result, made=True))
        return result


class MessageOptions(TypedDict, total=False):
    """The arguments of `message` beside type and data."""

    id: str
    source: str
    body: bytes
    headers: Mapping[str, str]
    key: Any
    version: int
    attempt: int
    consumer: str
    received_at: datetime
    model: builtins.type[Any]
    known: Mapping[str, Any]


@overload
def message(
    type: builtins.type[Data],
    data: Data | Mapping[str, Any],
    **options: Unpack[MessageOptions],
) -> RecordedMessage[Data]: ...
@overload
def message(type: str, data: Data, **options: Unpack[MessageOptions]) -> RecordedMessage[Data]: ...
@overload
def message(type: str, **options: Unpack[MessageOptions]) -> RecordedMessage[Any]: ...
def message(type: Any, data: Any = None, **options: Unpack[MessageOptions]) -> RecordedMessage[Any]:  # noqa: A002
    """Make a message to call a handler with: `handler(message("order.paid", {"order_id": 7}), tx)`.

    `data` may be a model; with `model=` or the model's class as `type` it may be its fields. `message.sent` and
    `message.calls` show what the handler sent and called through `once`, `message.commit()` makes the calls that it
    left for after the commit. `known` are results on record: with `known={"charge": "ch_1"}` the handler gets that, as
    on a retry, and the call is not made.

    >>> def pay(message, tx):
    ...     charge = message.once("charge", lambda: provider.charge(message.data["order_id"]))
    ...     message.send("order.charged", {"charge": charge})
    >>> paid = message("order.paid", {"order_id": 7}, known={"charge": "ch_1"})
    >>> pay(paid, tx=None)
    >>> [(sent.type, sent.data) for sent in paid.sent]
    [('order.charged', {'charge': 'ch_1'})]
    """
    checks.no_others("message()", options, tuple(MessageOptions.__annotations__))
    number, version = next(_numbers), options.get("version")
    kind = options.get("model", type if is_model(type) else data.__class__)
    if is_model(type):
        type, usual = named("message()", type)  # noqa: A001
        version = usual if version is None else version
    delivery = Delivery.of(
        source=options.get("source", SOURCE),
        id=options.get("id", f"test-{number}"),
        type=type,
        data=data,
        body=options.get("body"),
        headers=options.get("headers"),
        key=options.get("key"),
        version=version,
    )
    outbox = Outgoing(SOURCE)
    outbox.begin()
    return RecordedMessage(
        id=delivery.id,
        source=delivery.source,
        type=delivery.type,
        version=delivery.version,
        data=_read(delivery.body, kind) if is_model(kind) else _json(delivery.body),
        body=delivery.body,
        headers=delivery.headers,
        key=delivery.key,
        seq=number,
        attempt=checks.whole("message()", "attempt", options.get("attempt", 1)),
        received_at=options.get("received_at", datetime.now(UTC)),
        consumer=options.get("consumer", SOURCE),
        outbox=outbox,
        effects=_Calls(options.get("known", {})),
    )


def _read(body: bytes, model: Any) -> Any:
    data = payload.decode(body)
    reader = None if model is None else model_of("message()", model)
    return data if reader is None else reader.read(data, body)


def _json(body: bytes) -> Any:
    """The data of a body; None where a handler with raw=True would get it, as it is no JSON."""
    try:
        return payload.decode(body)
    except InvalidMessage:
        return None


def _through_json(value: Any) -> Any:
    return payload.decode_text(payload.encode_text(value))


def _sent(delivery: Delivery) -> Sent:
    return Sent(
        type=delivery.type,
        data=_json(delivery.body),
        key=delivery.key,
        to=delivery.destination or DEFAULT,
        id=delivery.id,
        version=delivery.version,
        headers=delivery.headers,
        body=delivery.body,
    )
