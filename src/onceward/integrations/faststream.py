"""FastStream: what a subscriber gets is received before it is acknowledged (R57).

    from onceward.integrations.faststream import add_subscriber

    orders = broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
    add_subscriber(inbox, orders, source="orders", id="header:event-id", type="=order.paid")

Invariant: FastStream acknowledges when the function has returned, which is after the commit; whatever it raises makes
the broker deliver again. Policies that acknowledge or drop what has failed are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from onceward.brokers.envelope import POSITION, Envelope
from onceward.brokers.protocol import Arrival
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox

__all__ = ["add_subscriber"]

SAFE = "nack_on_error"
_WHY = {
    "ack_first": "acknowledges before the message is stored, so a death in between loses it",
    "ack": "acknowledges what has failed, so a message is lost while the database is away",
    "reject_on_error": "drops what has failed, so a message is lost while the database is away",
    "manual": "acknowledges nothing by itself",
}


def add_subscriber(  # noqa: PLR0913 - each is a property of the source
    inbox: Inbox,
    subscriber: Any,
    *,
    source: str,
    id: str | None = None,  # noqa: A002 - the words every sender uses
    type: str | None = None,  # noqa: A002
    envelope: str | None = None,
    inline: bool = False,
) -> None:
    """Receive what a subscriber of FastStream gets; with `inline=True` handle it at once.

    `id`, `type` and `envelope` name the place where a message carries its names, as in `inbox.add_source`; without them
    it must be a CloudEvent. FastStream's own `message_id` is none: where the producer sets none, each delivery gets
    another one.
    """
    policy = str(getattr(getattr(subscriber, "ack_policy", None), "value", None))
    if policy != SAFE:
        raise ConfigurationError(
            f"add_subscriber(source={source!r}): ack_policy={policy.upper()} {_WHY.get(policy, 'is not known')}. Write "
            "broker.subscriber(..., ack_policy=AckPolicy.NACK_ON_ERROR)"
        )
    if id == POSITION:
        raise ConfigurationError(
            f"add_subscriber(source={source!r}): FastStream gives no position; name the id with id="
        )
    names = Envelope(source, id, type, envelope)
    from faststream import Context  # noqa: PLC0415 - a package that the program brings

    async def receive(arrived: Any = Context("message")) -> None:  # noqa: B008 - how FastStream passes it
        headers = {name: value for name, value in arrived.headers.items() if isinstance(value, str)}
        message = names.message(Arrival(arrived.body, headers, None, position=_digest(arrived.body, headers)))
        await (inbox.aprocess(**message) if inline else inbox.areceive(**message))

    subscriber(receive)


def _digest(body: bytes, headers: Mapping[str, str]) -> str:
    """What a delivery without an id is known by: all that it carries."""
    return hashlib.sha256(json.dumps(sorted(headers.items())).encode() + body).hexdigest()
