"""Under which id and type an authentic event is stored, whatever it holds.

Invariant: the same request always gets the same id. An id that can be read but not stored becomes its digest; where
there is none to read, the digest of the body stands for it. So nothing that its sender has signed is turned away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceward.domain import identity, payload
from onceward.errors import InvalidMessage
from onceward.webhooks.verifier import digest_id

if TYPE_CHECKING:
    from onceward.webhooks.verifier import Event


class Names(NamedTuple):
    """What an event is stored as."""

    id: str
    type: str
    reason: str
    """Why one of them is not the sender's own; empty where both are."""


def named(event: Event, body: bytes) -> Names:
    """The names of an event; always acceptable to `receive`."""
    problems: list[str] = []
    try:
        message_id = identity.check_id(event.id) if event.id is not None else digest_id(body)
    except InvalidMessage as error:
        message_id = digest_id((event.id or "").encode(errors="surrogatepass"))
        problems.append(str(error))
    try:
        kind = identity.check_name("type", event.type) if event.type is not None else identity.UNIDENTIFIED
    except InvalidMessage as error:
        kind = identity.UNIDENTIFIED
        problems.append(str(error))
    missing = [what for what, value in (("id", event.id), ("type", event.type)) if value is None]
    if missing:
        problems.append(_why_missing(missing, body))
    return Names(message_id, kind, "; ".join(problems)[:300])


def _why_missing(what: list[str], body: bytes) -> str:
    try:
        payload.decode(body)
    except InvalidMessage as error:
        return str(error)
    return f"the event has no {' and no '.join(what)} that can be read"
