"""Use: whether a handler has its effects in its transaction, where they are applied exactly once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onceward.flow import Outcome
from onceward.message import Message
from onceward.registry import Handler
from onceward.steps.lane import Lane

log = logging.getLogger("onceward")


def record_use(lane: Lane, handler: Handler, outcome: Outcome, messages: Sequence[Message], *, sent: bool) -> None:
    """Notice whether a handler that has done its work did any of it where it is applied exactly once."""
    use = handler.use
    if outcome.error is not None or handler.external or use.through_tx:
        return
    if outcome.touched or lane.called_once or sent:
        use.through_tx = True
        return
    if use.is_apart is None and use.add(messages) and handler.guarantee in (None, "exactly-once"):
        log.warning(
            "%s has finished %d messages of %s without a statement through tx, a send or message.once: its effects are "
            'not in the transaction, so at-least-once. Write them through tx, or declare guarantee="at-least-once"',
            handler.name,
            len(use.apart),
            handler.type,
        )
