"""Replay from the database itself: by time, type, key or id, to a new consumer, or again on purpose (R49)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceward import Inbox, Message, Settings
from onceward.cli.app import application
from onceward.retention.replay import chosen, replay
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


@pytest.mark.parametrize("from_files", [False, True])
def test_a_new_consumer_finds_its_own_keys_and_keeps_positions(
    inbox: Inbox, tmp_path: Path, *, from_files: bool
) -> None:
    """D12: only a key that the caller gave is given again; another consumer's would overlap and disorder its own."""
    pay(inbox)
    for number, position in ((1, 900), (2, 800)):
        data = {"account": "a", "amount": 1, "customer": {"id": f"c{number}"}, "n": 1}
        inbox.receive(source=SOURCE, id=f"evt-{number}", type="paid", data=data, position=position)
    inbox.receive(source=SOURCE, id="evt-3", type="paid", data={"account": "a", "amount": 1, "n": 1}, key="mine")
    inbox.drain()
    folder = None
    if from_files:
        folder, at_once = tmp_path, Settings(body_retention=timedelta(0))
        with Inbox(inbox.url, service="shop", settings=at_once) as other:
            assert other.retention.archive(folder) >= 3
    inbox.on("paid", consumer="places", key="customer.id")(lambda message, tx: None)  # noqa: ARG005 - its signature
    inbox.on("paid", consumer="numbers", key="customer.id", sequence="n")(lambda message, tx: None)  # noqa: ARG005
    assert replay(inbox, folder) == {"accepted": 3}
    with inbox.transaction() as tx:
        rows = tx.execute(
            "SELECT c.name, b.id, b.key, q.place = q.seq, q.place FROM onceward_queue q JOIN onceward_body b "
            "ON b.seq = q.seq JOIN onceward_ledger l ON l.seq = q.seq JOIN onceward_name c ON c.id = l.consumer "
            "WHERE NOT q.outgoing ORDER BY 1, 2"
        ).fetchall()
    assert [(name, one, key) for name, one, key, _, _ in rows] == [
        (name, f"evt-{number}", key)
        for name in ("numbers", "places")
        for number, key in ((1, "c1"), (2, "c2"), (3, "mine"))
    ]
    assert [place for name, _, _, own, place in rows if not own] == [1, 1, 1, 900, 800]
    inbox.drain()
    assert inbox.admin.stats().dead == 0
