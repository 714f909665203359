"""Revisions: what an edit of a message's body would change, and what its handler will find done already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceward.admin import messages
from onceward.admin.messages import Effect
from onceward.domain import payload
from onceward.errors import ConfigurationError
from onceward.flow import Flow
from onceward.steps import revise
from onceward.steps.context import Context


@dataclass(frozen=True, slots=True)
class Revision:
    """A corrected body beside the one it takes the place of."""

    seq: int
    status: str
    """Only a dead or retrying message can be edited."""
    before: bytes
    after: bytes
    differences: tuple[tuple[str, Any, Any], ...]
    """Field by field: path, value before, value after."""
    effects: tuple[Effect, ...]
    """What `message.once` has on record: calls that were made with the body before. They are not made again."""

    @property
    def is_possible(self) -> bool:
        """Whether the message can be edited now."""
        return self.status in revise.EDITABLE


def corrected(where: str, data: Any, body: bytes | None) -> bytes:
    """The corrected body, given as `data` that becomes JSON, or as it is."""
    if (data is None) == (body is None):
        raise ConfigurationError(f"{where}: pass data= (it becomes JSON) or body= (bytes)")
    if body is None:
        return payload.encode(data)
    if not isinstance(body, bytes):
        raise ConfigurationError(f"{where}: body must be bytes, not {type(body).__name__}; use data= for JSON")
    return body


def revision(context: Context, seq: int, body: bytes) -> Flow[Revision | None]:
    """What an edit would change; None where there is no such message."""
    edited = yield from revise.look(context, seq, body)
    if edited is None:
        return None
    effects = yield from messages.effects(context, seq=seq)
    before = edited.before.body
    changes = tuple(messages.differences(before, body))
    return Revision(seq, edited.stored.status, before, body, changes, tuple(one for one in effects if one.done))
