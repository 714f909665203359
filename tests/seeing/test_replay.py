"""Replay from the database itself: by time, type, key or id, to a new consumer, or again on purpose (R49)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from click.testing import CliRunner

from onceward import Inbox, Message
from onceward.cli.app import application
from onceward.replay import chosen, replay
from tests.seeing.conftest import SOURCE, balances, deliver, pay


def test_messages_are_chosen_by_time_type_key_and_id(inbox: Inbox) -> None:
    pay(inbox)
    for number in range(3):
        deliver(inbox, number, account="ab"[number % 2])
    deliver(inbox, 9, amount=-1)  # dead, so not finished
    inbox.drain()

    def ids(**filters: Any) -> list[str]:
        return [record["id"] for record in chosen(inbox, **filters)]

    now, hour = datetime.now(UTC), timedelta(hours=1)
    assert ids() == ["evt-0", "evt-1", "evt-2"]
    assert ids(key="b") == ["evt-1"]
    assert ids(id="evt-2", source=SOURCE, type="paid") == ["evt-2"]
    assert ids(since=now - hour, until=now + hour) == ids()
    assert ids(since=now + hour) == ids(until=now - hour) == []


def test_a_new_consumer_gets_what_the_others_had(inbox: Inbox) -> None:
    pay(inbox)
    deliver(inbox, 1)
    inbox.drain()
    seen: list[str] = []

    @inbox.on("paid", consumer="reports")
    def report(message: Message, tx: Any) -> None:
        del tx
        seen.append(message.id)

    before = balances(inbox)
    replay(inbox)
    inbox.drain()
    assert seen == ["evt-1"]
    assert balances(inbox) == before


def test_again_runs_on_purpose_and_the_same_label_only_once(inbox: Inbox) -> None:
    pay(inbox)
    deliver(inbox, 1)
    inbox.drain()
    became = []
    for _ in range(2):
        words = ["replay", "--store", inbox.url, "--service", "shop", "--id", "evt-1", "--again", "fixed", "--yes"]
        result = CliRunner().invoke(application, [*words, "--json"])
        assert result.exit_code == 0, result.output
        became.append(json.loads(result.output))
        inbox.drain()
    assert became == [{"accepted": 1}, {"duplicate": 1}]
    assert balances(inbox)["a"] == 110  # twice five, not three times
