"""Units of work on items: of two that meet, one commits; a call that was made twice by its client counts once."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import Inbox, Message
from onceward.flow import Flow, run_sync
from onceward.steps import membership
from onceward.stores.dynamodb.unit import Ask, Cancelled, Unit
from onceward.stores.moves.claims import Claim


def performed(inbox: Inbox, flow: Flow[Any]) -> Any:
    """What a flow returns, on a session of its own."""
    with inbox.store.session() as session:
        return run_sync(flow, session.perform)


def test_of_two_units_that_read_an_item_one_commits(inbox: Inbox) -> None:
    """Also where the item was not there; and the second sees the first when it begins again."""
    store: Any = inbox.store
    place = store._base.layout.at("test")
    for known in (None, {"n": 1}):
        units = [Unit(store._base), Unit(store._base)]
        for number, unit in enumerate(units, 1 + bool(known)):
            (found,) = performed(inbox, unit.get(place))
            assert (found or {}).get("n") == (known or {}).get("n")
            unit.set(place, {"n": number})
        performed(inbox, units[0].commit())
        with pytest.raises(Cancelled):
            performed(inbox, units[1].commit())


@pytest.mark.parametrize("key", [None, "k"])
def test_a_claim_that_the_client_made_twice_is_ours(inbox: Inbox, key: str | None) -> None:
    """The answer to the first call was lost, and the second one found that the item had changed."""

    @inbox.on("order.paid", key=key)
    def pay(message: Message, tx: Any) -> None:
        """Never run here."""

    inbox.drain()
    inbox.receive(source="shop", id="m1", type="order.paid", data={"k": 1})
    with inbox.store.session() as session:

        def twice(request: Any) -> Any:
            if isinstance(request, Ask) or not hasattr(request, "writes"):
                return session.perform(request)
            session.perform(request)
            return session.perform(request)

        joining = membership.register(inbox.context, process="w", host="h", pid=1, inline=False)
        worker = run_sync(joining, session.perform)
        claimed = run_sync(inbox.context.moves.claims.claim(Claim(worker, 1, [1], limit=1)), twice)
    assert [row.id for row, _ in claimed.kept] == ["m1"]
