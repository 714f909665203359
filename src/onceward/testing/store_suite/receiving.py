"""Receiving: what a receipt says is committed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

from onceward.domain.marks import Mark, Read
from onceward.testing.store_suite.shop import SOURCE, Shop, arguments


class Receiving:
    """Receiving: what a receipt says is committed."""

    @pytest.mark.parametrize("method", ["receive_many", "process_many"])
    def test_a_position_is_kept_with_what_was_read_before_it(self, shop: Shop, method: str) -> None:
        """Only from where the reader believes the database to be: else it has lost something, and stays behind."""
        shop.handle()

        def read(name: str, since: str | None, position: str) -> dict[str, str]:
            batch = [arguments(f"{name}{n}") for n in range(2)]
            getattr(shop, method)(Read(cast("Any", batch), [Mark(SOURCE, "log/0", since, position)]))
            found: dict[str, str] = shop.step(shop.inbox.context.moves.ledger.positions(SOURCE))
            return found

        assert read("lost", "1", "2") == {}, "the reader knows of a row that is not there"
        assert read("a", None, "2") == {"log/0": "2"}
        assert read("b", "2", "4") == {"log/0": "4"}
        assert read("b", "4", "5") == {"log/0": "5"}, "nothing of it is new"
        assert read("c", "9", "11") == read("d", None, "2") == {"log/0": "5"}
        shop.drain()
        assert len(shop.effects()) == 10

    def test_overlapping_batches_accept_each_message_exactly_once(self, shop: Shop) -> None:
        """The same ids in different orders at the same time: no deadlock, and one acceptance each in all."""
        shop.handle()
        ids = [f"m{number}" for number in range(120)]
        batches = [random.Random(seed).sample(ids, len(ids)) for seed in range(6)]
        calls = [{"messages": [arguments(message_id) for message_id in batch]} for batch in batches]
        answers = shop.at_once("receive_many", calls)
        accepted: Counter[str] = Counter()
        for batch, receipts in zip(batches, answers, strict=True):
            accepted.update(i for i, receipt in zip(batch, receipts, strict=True) if receipt.status == "accepted")
        assert accepted == Counter(ids)
        shop.drain()
        assert shop.effects() == sorted(ids)
        assert shop.inbox.admin.stats().duplicates == 5 * 120
