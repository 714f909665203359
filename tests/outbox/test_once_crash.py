"""Processes that die around an external call: what was recorded is used, what was begun is parked (R27)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Settings
from tests.contract.behaviour import Do, wrote
from tests.contract.harness import Shop
from tests.nursery import Nursery, lines
from tests.order.conftest import everywhere
from tests.outbox.program import calling


class Scene:
    """A shop whose workers die around a call, and the file in which the calls are."""

    def __init__(self, shop: Shop, nursery: Nursery, folder: Path) -> None:
        self.shop, self._nursery, self._folder = shop, nursery, folder
        self.path = str(folder / "calls")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that reached the other side."""
        return lines(self.path)

    def die(self, moment: str, **arguments: Any) -> None:
        """Run a process that dies at a moment, and do for it what a supervisor does."""
        child = self._nursery.start(
            "tests.outbox.program:once",
            self._folder,
            url=self.shop.url,
            kind=self.shop.kind,
            path=self.path,
            die=moment,
            **arguments,
        )
        assert child.end() == -signal.SIGKILL, child.errors
        for row in self.shop.inbox.admin.workers():
            if row.pid == child.pid:
                self.shop.declare_dead(row.process)

    def go_on(self, *, idempotent: bool = False) -> None:
        """What a healthy process does then."""
        self.shop.handle("charge", calling(self.path, idempotent=idempotent))
        self.shop.finish()


@pytest.fixture
def scene(shop: Shop, nursery: Nursery, tmp_path: Path) -> Scene:
    """A shop whose workers die."""
    return Scene(shop, nursery, tmp_path)


@everywhere
@pytest.mark.parametrize("moment", ["before", "in"])
def test_a_death_between_intent_and_result_leaves_an_unknown_outcome(scene: Scene, moment: str) -> None:
    """Whether the call had reached the other side or not, nobody here knows: dead, listed, and a person settles it."""
    shop = scene.shop
    shop.receive("m1", "charge")
    scene.die(moment)
    made = len(scene.calls)
    assert made == (moment == "in")
    scene.go_on()
    assert shop.status("m1") == "dead"
    assert "whether it happened is unknown" in shop.error("m1")
    assert len(scene.calls) == made
    (effect,) = shop.inbox.admin.effects()
    assert (effect.seq, effect.name) == (shop.seqs["m1"], "charge")
    happened = moment == "in"
    result = {"charge": "found"} if happened else None
    assert shop.inbox.admin.settle_effect(shop.seqs["m1"], "charge", happened=happened, result=result)
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.finish()
    assert shop.notes() == [("m1", "found" if happened else "ch_m1")]
    assert len(scene.calls) == 1


@everywhere
def test_a_death_after_the_result_is_recorded_repeats_nothing(scene: Scene) -> None:
    """The retry gets the record."""
    shop = scene.shop
    shop.receive("m1", "charge")
    scene.die("after")
    scene.go_on()
    assert shop.notes() == [("m1", "ch_m1")]
    assert len(scene.calls) == 1
    assert shop.inbox.admin.effects() == []


def test_an_idempotent_call_is_repeated_after_a_death(scene: Scene) -> None:
    """Under the same key, so that the other side can tell."""
    shop = scene.shop
    shop.receive("m1", "charge")
    scene.die("in")
    scene.go_on(idempotent=True)
    assert shop.notes() == [("m1", "ch_m1")]
    assert len(scene.calls) == 2
    assert len({call["key"] for call in scene.calls}) == 1


def test_a_running_call_is_not_listed_as_unknown(scene: Scene) -> None:
    """`effects()` is for people: a call that a living worker is making now needs nobody."""
    shop = scene.shop
    listed: list[int] = []

    def behaviour(message: Any) -> Any:
        yield Do(lambda _: message.once("charge", lambda: listed.append(len(shop.inbox.admin.effects()))))
        yield wrote(message)

    shop.handle("charge", behaviour)
    shop.receive("m1", "charge")
    shop.drain()
    assert listed == [0]


@pytest.fixture
def inline(postgres_url: str, nursery: Nursery, tmp_path: Path) -> Iterator[Scene]:
    """On PostgreSQL, where inline handlers may call."""
    with Shop(postgres_url, "def", settings=Settings()) as shop:
        yield Scene(shop, nursery, tmp_path)


def test_a_death_inline_leaves_an_unknown_outcome(inline: Scene) -> None:
    """R03, R27: the sender delivers again; nothing is called twice, and the message that is stored can be settled."""
    shop = inline.shop
    inline.die("in", inline="m1")
    shop.handle("charge", calling(inline.path))
    assert not shop.process("m1", "charge").finished
    shop.finish()
    assert shop.status("m1") == "dead"
    assert len(inline.calls) == 1
    assert [effect.seq for effect in shop.inbox.admin.effects()] == [shop.seqs["m1"]]
    assert shop.inbox.admin.settle_effect(shop.seqs["m1"], "charge", happened=True, result={"charge": "found"})
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.finish()
    assert shop.notes() == [("m1", "found")]


@pytest.mark.parametrize("happened", [True, False])
def test_a_call_whose_message_never_comes_again_can_be_settled(inline: Scene, *, happened: bool) -> None:
    """D32: nothing of the message is there; a person settles the call, and the retention takes what is left of it."""
    shop = inline.shop
    inline.die("in", inline="m1")
    (effect,) = shop.inbox.admin.effects()
    assert shop.inbox.admin.message(effect.seq) is None
    assert shop.inbox.admin.settle_effect(effect.seq, "charge", happened=happened, reason="seen at the bank")
    assert shop.inbox.admin.effects() == []
    assert not shop.inbox.admin.settle_effect(effect.seq, "charge", happened=True) if happened else True
    shop.sql(f"UPDATE {shop.prefix}effect SET finished_at = finished_at - 31536000000000")
    shop.inbox.retention.prune()
    assert shop.count("effect") == 0
    if happened:
        assert shop.count("audit") == 0


def test_a_call_that_is_being_made_inline_cannot_be_settled(inline: Scene) -> None:
    """D32: its message is not there yet either; the attempt would go on without its recorded intent."""
    shop = inline.shop
    settled: list[bool] = []

    def behaviour(message: Any) -> Any:
        yield Do(lambda _: message.once("charge", lambda: settled.append(settle(message))))
        yield wrote(message)

    def settle(message: Any) -> bool:
        return shop.inbox.admin.settle_effect(message.seq, "charge", happened=False)

    shop.handle("charge", behaviour)
    assert shop.process("m1", "charge").finished
    assert settled == [False]
