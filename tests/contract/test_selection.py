"""Workers for a part of the types (R59): `run(only=..., exclude=...)`."""

from __future__ import annotations

import pytest

from onceward import ConfigurationError
from onceward.admin import doctor
from tests.contract.harness import Shop


def in_key(shop: Shop, message_id: str, kind: str) -> None:
    """Store a message of the one key."""
    shop.receive(message_id, kind, data={"k": "1"})


@pytest.mark.parametrize("part", [{"only": ["a"]}, {"exclude": ["b"]}])
def test_a_worker_runs_the_types_that_it_is_told(shop: Shop, part: dict[str, list[str]]) -> None:
    """The others stay due, and the doctor says that no worker runs them."""
    for kind in "ab":
        shop.handle(kind)
    shop.receive("b1", "b")
    with shop.running(**part):
        shop.receive("a1", "a")
        shop.wait(lambda: shop.effects() == ["a1"])
        assert shop.status("b1") == "due"
        found = [one for one in doctor.examine(shop.inbox) if "leave this type out" in one.what]
        assert [one.level for one in found] == ["warning"]
        assert "1 due message of type b" in found[0].what
    shop.drain()
    assert shop.effects() == ["a1", "b1"]


def test_types_that_share_a_key_are_kept_in_order(shop: Shop) -> None:
    """What the other process runs holds its successors here."""
    for kind in "ab":
        shop.handle(kind, key="k")
    for message_id, kind in (("b1", "b"), ("a1", "a"), ("b2", "b"), ("a2", "a")):
        in_key(shop, message_id, kind)
    other = shop.another()
    for kind in "ab":
        other.handle(kind, key="k")
    with shop.running(only=["a"]):
        shop.wait(lambda: shop.status("a1") == "waiting")
        assert shop.effects() == []
        with other.running(only=["b"]):
            shop.wait(lambda: len(shop.effects()) == 4)
    assert [message_id for message_id, _ in shop.journal()] == ["b1", "a1", "b2", "a2"]


def test_what_is_not_run_is_not_said_to_be_handled(shop: Shop) -> None:
    """Others do not leave messages of a version to a process that leaves out their type."""
    for kind in "ab":
        shop.handle(kind)
    registry, claims = shop.inbox.context.registry, shop.inbox.context.moves.claims
    with shop.running(only=["a"]):
        handled = shop.step(claims.handled_elsewhere(registry.lines()))
    assert handled == {line for line in registry.lines() if "\ta\t" in line}


def test_a_type_without_a_handler_is_a_mistake(shop: Shop) -> None:
    """The sentence names what is meant, and what there is."""
    shop.handle("order.paid")
    with pytest.raises(ConfigurationError, match=r"did you mean .order\.paid."), shop.running(only=["order.payed"]):
        pass
    with pytest.raises(ConfigurationError, match="leave no type"), shop.running(exclude=["order.paid"]):
        pass
    with pytest.raises(ConfigurationError, match="a list of types"), shop.running(only="order.paid"):
        pass
