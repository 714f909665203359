"""The table of brokers says what the last recorded run of their contracts says, and that run was of these contracts."""

from __future__ import annotations

import pytest

from onceward.testing.broker_suite import SinkSuite, SourceSuite
from proof.brokers import BROKERS, BROKERS_PAGE, record, with_table


def cases(suite: type) -> set[str]:
    """The cases of a suite."""
    return {name for name in dir(suite) if name.startswith("test_")}


def test_the_table_is_made_from_the_record() -> None:
    """`make brokers` runs the contracts and writes it again."""
    page = BROKERS_PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


@pytest.mark.parametrize("broker", [key for _, _, key in BROKERS])
def test_every_broker_has_passed_every_case(broker: str) -> None:
    entry = record()[broker]
    assert set(entry["in"]) == cases(SourceSuite)
    assert set(entry["out"]) == cases(SinkSuite)
    assert all(entry["in"].values())
    assert all(entry["out"].values())
    assert len(entry["in"]) >= 30
