"""External calls under `message.once`: recorded before and after, made once, settled by an operator where unknown."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.domain import identity
from onceward.message import Message
from onceward.stores.moves.effects import Intend
from onceward.testing.store_suite.shop import LATER, TYPE, Shop


class Provider:
    """The other side."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, message_id: str) -> str:
        """Take the money."""
        self.charged.append(message_id)
        return f"receipt of {message_id}"


def handle(shop: Shop, provider: Provider, fails: int = 0) -> None:
    """A handler that charges, and fails afterwards in its first attempts."""

    def handler(message: Message, tx: Any) -> Any:
        receipt = message.once("charge", lambda: provider.charge(message.id))
        shop.place.write(tx, (message.id, receipt))
        if message.attempt <= fails:
            raise RuntimeError("not yet")

    async def async_handler(message: Message, tx: Any) -> Any:
        receipt = await message.once("charge", lambda: provider.charge(message.id))
        written = shop.place.write(tx, (message.id, receipt))
        if written is not None and hasattr(written, "__await__"):
            await written
        if message.attempt <= fails:
            raise RuntimeError("not yet")

    shop.inbox.on(TYPE, retry=LATER)(handler if shop.kind == "def" else async_handler)


class ExternalCalls:
    """External calls under `message.once`: recorded before and after, made once, settled where unknown."""

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_a_call_is_made_once_however_often_its_handler_runs(self, shop: Shop, how: str) -> None:
        provider = Provider()
        handle(shop, provider, fails=2)
        getattr(shop, how)("m1")
        shop.finish()
        assert (provider.charged, shop.notes()) == (["m1"], [("m1", "receipt of m1")])
        (effect,) = shop.detail("m1").effects
        assert (effect.name, effect.done, effect.result) == ("charge", True, "receipt of m1")

    def test_messages_of_a_group_each_make_their_call(self, shop: Shop) -> None:
        provider = Provider()
        handle(shop, provider)
        for number in range(4):
            shop.receive(f"m{number}")
        shop.finish()
        assert sorted(provider.charged) == [f"m{number}" for number in range(4)] == shop.effects()

    @pytest.mark.parametrize("happened", [True, False])
    def test_an_unknown_outcome_waits_for_an_operator(self, shop: Shop, happened: bool) -> None:  # noqa: FBT001 - a case
        provider = Provider()
        handle(shop, provider)
        seq = shop.receive("m1").seq
        interrupted(shop, seq)
        shop.drain()
        assert (shop.status("m1"), provider.charged) == ("dead", [])
        assert [effect.done for effect in shop.inbox.admin.effects()] == [False]
        told = "told" if happened else None
        assert shop.inbox.admin.settle_effect(seq, "charge", happened=happened, result=told, reason="seen there")
        shop.inbox.admin.redrive(seq, reason="known now")
        shop.finish()
        assert provider.charged == ([] if happened else ["m1"])
        assert shop.notes() == [("m1", "told" if happened else "receipt of m1")]


def interrupted(shop: Shop, seq: int) -> None:
    """What a process leaves that died between its intent and its call."""
    key = identity.effect_key("default", "stripe", "m1", "charge")
    assert shop.step(shop.inbox.context.moves.effects.intend(Intend(key, seq, "charge", worker=1))) is None
