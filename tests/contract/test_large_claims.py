"""What a claim brings at once is bounded, and a claim that is too much is not repeated unchanged (D19)."""

from __future__ import annotations

from typing import Any

from onceward import Message
from onceward.steps import claim, lane
from onceward.stores.moves.claims import ClaimedRow
from onceward.stores.relational import fan_out
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Shop

LARGE = 300_000


def telling(message: Message) -> Steps:
    yield wrote(message, f"{len(message.body)} {message.data['number']}")


def test_large_bodies_are_fetched_one_by_one(shop: Shop, monkeypatch: Any) -> None:
    """Not with the claim, which would bring a hundred of them; the handler sees them all the same, in order."""
    brought: list[int] = []
    claimed = lane.claimed

    def watched(by: Any, token: int, row: ClaimedRow, *more: Any) -> Any:
        brought.append(sum(len(value) for value in row if isinstance(value, bytes)))
        return claimed(by, token, row, *more)

    monkeypatch.setattr(claim, "claimed", watched)
    shop.handle(behaviour=telling, key="key")
    for number in range(6):
        filling = "x" * LARGE if number % 2 else ""
        shop.receive(f"m{number}", data={"key": 1, "number": number, "filling": filling})
    assert shop.drain() == 6
    assert [note.split()[1] for (note,) in shop.sql("SELECT note FROM effects")] == list("012345")
    assert sum(int(note.split()[0]) > LARGE for _, note in shop.notes()) == 3
    assert max(brought) < LARGE


def test_large_bodies_are_placed_one_by_one(shop: Shop, monkeypatch: Any) -> None:
    """Nor with the fan-out of the start, for the same reason; each consumer has its copy, in order."""
    planned: list[int] = []
    whole = fan_out._whole

    def watched(rows: list[tuple[Any, ...]]) -> Any:
        kept = yield from whole(rows)
        planned.append(sum(len(row.body) for row in kept))
        return kept

    monkeypatch.setattr(fan_out, "_whole", watched)
    for number in range(6):
        filling = "x" * LARGE if number in {0, 2, 3} else ""
        shop.receive(f"m{number}", data={"key": 1, "number": number, "filling": filling})
    worker = shop.another()
    worker.handle(consumer="billing", behaviour=telling, key="key")
    assert worker.drain() == 6
    assert [note.split()[1] for (note,) in shop.sql("SELECT note FROM effects")] == list("012345")
    assert max(planned) < 2 * LARGE
