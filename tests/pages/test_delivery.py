"""The food-delivery exercise ends with each order once, whatever order its events came in (R69)."""

from __future__ import annotations

import pytest

from examples import delivery


@pytest.mark.parametrize("seed", [1, 2])
def test_each_order_is_charged_and_delivered_once(sqlite_url: str, seed: int) -> None:
    found = delivery.play(sqlite_url, orders=12, seed=seed)
    assert found.pop("duplicates") > 0
    assert set(found.values()) == {12}, found


def test_it_runs_on_postgresql_too(postgres_url: str) -> None:
    found = delivery.play(postgres_url, orders=6)
    assert found.pop("duplicates") > 0
    assert set(found.values()) == {6}, found
