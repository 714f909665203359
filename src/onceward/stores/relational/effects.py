"""The record of external calls, as statements."""

from __future__ import annotations

from onceward.flow import Flow, Query
from onceward.stores.moves.effects import Earlier, Intend
from onceward.stores.relational.transaction import Transactions


class Effects:
    """External calls: their intents and their results."""

    def __init__(self, transactions: Transactions) -> None:
        self._run = transactions.run

    def intend(self, intent: Intend) -> Flow[Earlier | None]:
        while True:
            (fresh,) = yield from self._run(Query("intend", intent._asdict()))
            if fresh:
                return None
            (rows,) = yield from self._run(Query("effect", {"key": intent.key, "seq": intent.seq}))
            if rows:
                return Earlier(*rows[0])
            # Between the two an operator decided that it did not happen, and the row is gone: there is no intent yet.

    def record_effect(self, key: str, result: str) -> Flow[None]:
        yield from self._run(Query("effect_done", {"key": key, "result": result}))

    def forget_intent(self, key: str) -> Flow[None]:
        yield from self._run(Query("effect_undone", {"key": key}))
