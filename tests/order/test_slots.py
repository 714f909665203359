"""Which part of all messages a row belongs to: that of its key, as far as it is known (docs/schema.md, Slots)."""

from __future__ import annotations

from onceward import Message
from onceward.domain.identity import slot
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Shop

Slots = dict[str, tuple[int, int | None]]
"""Of each message: in the ledger, and in the queue if it is there."""


def slots(shop: Shop) -> Slots:
    p = shop.prefix
    rows = shop.sql(
        f"SELECT b.id, l.slot, q.slot FROM {p}ledger l "
        f"JOIN {p}body b ON b.seq = l.seq LEFT JOIN {p}queue q ON q.seq = l.seq"
    )
    return {name: (stored, runs) for name, stored, runs in rows}


def failing(message: Message) -> Steps:
    if message.data.get("fail"):
        raise RuntimeError("not yet")
    yield wrote(message)


def test_a_message_is_in_the_slot_of_its_key_or_of_its_id(shop: Shop) -> None:
    """Every consumer of a key, and what goes out under it, has the same; the ledger keeps it to the end."""
    shop.handle(key="k", behaviour=failing)
    shop.handle("other", consumer="mail", key="k", behaviour=failing)
    shop.handle("plain", behaviour=failing)
    shop.receive("m1", data={"k": "a"})
    shop.receive("m2", "other", data={"k": "a"})
    shop.receive("m3", "plain", data={})
    shop.process("m4", data={"k": "b", "fail": True})
    shop.process("m5", data={"k": "c"})
    shop.inbox.send(type="t", data=1, id="m6", key="a", to="elsewhere")
    found = {name: (slot(text),) * 2 for name, text in {"m1": "a", "m2": "a", "m3": "m3", "m4": "b", "m6": "a"}.items()}
    assert slots(shop) == {**found, "m5": (slot("c"), None)}
    shop.drain()
    assert slots(shop)["m1"] == (slot("a"), None)


def test_the_queue_follows_a_key_that_is_known_later_and_the_ledger_does_not(shop: Shop) -> None:
    """A message that came before its handler, and one that its handler puts elsewhere."""
    receiver = shop.another()
    receiver.receive("early", data={"k": "a", "fail": True})
    assert slots(shop) == {"early": (slot("early"),) * 2}
    shop.handle(key=lambda message: message.data["k"], behaviour=failing)
    shop.drain()
    assert slots(shop)["early"] == (slot("early"), slot("a"))
    receiver.receive("moved", data={"k": "b", "fail": True})  # has no function that finds the key
    shop.drain()
    assert slots(shop)["moved"] == (slot("moved"), slot("b"))


def test_a_row_for_another_consumer_has_the_slot_of_its_key(shop: Shop) -> None:
    """The copy that a fan-out makes is stored under the key that it has for its consumer."""
    shop.another().receive("early", data={"k": "a", "fail": True})
    shop.handle(consumer="mail", key="k", behaviour=failing)
    shop.drain()
    assert slots(shop) == {"early": (slot("a"),) * 2}
