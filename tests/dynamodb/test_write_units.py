"""What a message costs, as DynamoDB counts it, beside the same by hand; and what the page says of it."""

from __future__ import annotations

import json

import pytest

from bench.dynamodb import KINDS, MOST, PAGE, RECORD, of_a_message, with_table
from onceward import Inbox
from tests.dynamodb.place import DynamoPlace


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_costs_at_most_a_fifth_more_than_by_hand(inbox: Inbox, place: DynamoPlace, kind: str) -> None:
    """And as much as the record says."""
    ours, hand = of_a_message(inbox, place, KINDS[kind])
    assert ours <= MOST * hand
    assert json.loads(RECORD.read_text(encoding="utf-8"))["units"][kind] == {"onceward": ours, "by_hand": hand}


def test_the_table_is_made_from_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)
