"""Read: a delivery as its handler sees it, and the key and the number that are found there.

Invariant: keys are looked for in the data of the handler's own version, so that messages of older versions have their
places in the order too. What cannot be read has no key; its worker says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onceward.domain import identity, payload
from onceward.errors import HandlerNotFound
from onceward.message import Delivery, Message, Outgoing, moment
from onceward.registry import Handler, Subscription, Upcaster, key_at
from onceward.steps.context import Context

KEY_FUNCTION = "raised by the key function"


def finds_key(context: Context, subscription: Subscription) -> bool:
    """Whether this process has what finds a message's key: a path, or the function of a handler of its own."""
    if not subscription.key_function:
        return True
    handler = context.registry.of_type(subscription.consumer, subscription.type)
    return handler is not None and callable(handler.key)


def value_at(path: str, delivery: Delivery, upcasters: Sequence[Upcaster]) -> Any:
    """What a path leads to in the data as its handler sees it; None where that cannot be read: it ends dead then."""
    if path.startswith("header:"):
        return key_at(path, None, delivery.headers)
    try:
        return key_at(path, plain_data(delivery.body, upcasters), delivery.headers)
    except Exception:  # noqa: BLE001 - the worker does the same and records what it raises
        return None


def upcasters_of(context: Context, subscription: Subscription, delivery: Delivery) -> Sequence[Upcaster]:
    """What brings the data up to its handler's version; nothing where this process has no handler, or it is raw."""
    try:
        handler, upcasters = context.registry.find(subscription.consumer, subscription.type, delivery.version)
    except HandlerNotFound:
        return ()
    return () if handler.raw else upcasters


def whole_number(value: Any) -> int | None:
    """A number within a key; None where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value.lstrip("0")[:20] or "0")  # 20 digits are too many already
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def find_key(context: Context, subscription: Subscription, delivery: Delivery) -> str | None:
    """The ordering key; None where the body cannot be read: such a message ends dead at its worker."""
    if subscription.key_function:
        handler = context.registry.of_type(subscription.consumer, subscription.type)
        assert handler is not None  # noqa: S101 - the caller has looked
        return _called_key(context, handler, delivery)
    if subscription.key_path is None:
        return None
    upcasters = upcasters_of(context, subscription, delivery)
    return identity.key_text(value_at(subscription.key_path, delivery, upcasters))


def _called_key(context: Context, handler: Handler, delivery: Delivery) -> str | None:
    assert callable(handler.key)  # noqa: S101 - the caller has looked
    try:
        exact, upcasters = context.registry.find(handler.consumer, handler.type, delivery.version)
        message = message_of(exact, delivery, seq=0, received_at=0, attempt=1, upcasters=upcasters)
        return identity.key_text(handler.key(message))
    except Exception:  # noqa: BLE001 - the worker calls it again and records what it raises
        return None


def find_key_again(handler: Handler, message: Message) -> None:
    """Call a key function that gave no key when the message came: what it raised was not told then."""
    if message.key is None and callable(handler.key):
        try:
            identity.key_text(handler.key(message))
        except Exception as error:
            error.add_note(f"{KEY_FUNCTION} of {handler.name}")
            raise


def message_of(  # noqa: PLR0913 - what a message is made of
    handler: Handler,
    delivery: Delivery,
    *,
    seq: int,
    received_at: int,
    attempt: int,
    upcasters: Sequence[Upcaster] = (),
    service: str = "",
    effects: Callable[..., Any] | None = None,
) -> Message:
    """A delivery as its handler will see it; raises `InvalidMessage` when it cannot be read."""
    return Message(
        id=delivery.id,
        source=delivery.source,
        type=delivery.type,
        version=delivery.version + len(upcasters),
        data=data_of(handler, delivery.body, upcasters),
        body=delivery.body,
        headers=delivery.headers,
        key=delivery.key,
        seq=seq,
        attempt=attempt,
        received_at=moment(received_at),
        consumer=handler.consumer,
        to=delivery.destination,
        outbox=Outgoing(service, handler.outlets),
        effects=effects,
    )


def data_of(handler: Handler, body: bytes, upcasters: Sequence[Upcaster]) -> Any:
    """A body as its handler gets it; raises `InvalidMessage` when it cannot be read."""
    data = None if handler.raw else payload.decode(body)
    if upcasters:
        data = upcast(data, upcasters)
    if handler.model is None or handler.raw:  # the usual case
        return data
    return handler.model.read(data, None if upcasters else body)


def plain_data(body: bytes, upcasters: Sequence[Upcaster]) -> Any:
    """A body of an older version as data of its handler's, where keys and numbers are looked for: never a model."""
    data = payload.decode(body)
    return payload.decode(payload.encode(upcast(data, upcasters))) if upcasters else data


def upcast(data: Any, upcasters: Sequence[Upcaster]) -> Any:
    """Data of an older version as that of its handler."""
    for upcaster in upcasters:
        data = upcaster(data)
    return data
