"""`explain` and the overview: one history per message, one number everywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from onceward import Inbox
from onceward.cli.app import application
from onceward.cli.target import MOMENT
from onceward.domain.fingerprint import fingerprint
from tests.seeing.conftest import SOURCE, deliver, pay


def command(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_timeline_has_every_delivery_attempt_and_decision(inbox: Inbox) -> None:
    pay(inbox)
    seq = deliver(inbox, 1, amount=-3)
    for _ in range(3):
        deliver(inbox, 1, amount=-3)
    deliver(inbox, 1, amount=-4)  # the same id with other bytes
    inbox.drain()
    inbox.admin.redrive(seq, reason="looked at it", actor="ada")
    inbox.drain()
    told = inbox.admin.explain(seq)
    assert told is not None
    kinds = [event.kind for event in told.events]
    assert kinds[0] == "delivery"
    assert sorted(kinds[1:]) == sorted(["duplicate", "duplicate", "mismatch", "failure", "action", "failure", "next"])
    text = "\n".join(event.what for event in told.events)
    for part in ("latest of 3 copies suppressed", "code 1.4.2", "redrive by ada: looked at it", "not tried again"):
        assert part in text
    moments = [event.at for event in told.events if event.at]
    assert moments == sorted(moments)
    assert inbox.admin.explain(999) is None


def test_cause_and_consequence_are_linked(inbox: Inbox) -> None:
    pay(inbox)
    seq = deliver(inbox, 1)
    inbox.drain()
    (sent,) = inbox.admin.messages(outgoing=True)
    told, other = inbox.admin.explain(seq), inbox.admin.explain(sent.seq)
    assert told is not None
    assert other is not None
    assert [event.seq for event in told.events if event.kind == "sent"] == [sent.seq]
    assert [event.seq for event in other.events if event.kind == "delivery"] == [seq]
    shown = command("explain", "--store", inbox.url, "--source", SOURCE, "--id", "evt-1")
    assert f"-> message {sent.seq}" in shown
    (printed,) = json.loads(command("explain", "--store", inbox.url, str(seq), "--json"))
    assert printed["message"]["seq"] == seq


def test_errors_are_grouped_by_kind_and_chosen_by_it(inbox: Inbox) -> None:
    pay(inbox)
    seqs = [deliver(inbox, number, amount=-number, account=f"k{number}") for number in range(1, 4)]
    other = inbox.receive(source=SOURCE, id="evt-9", type="paid", data={"account": "z"}).seq  # no amount: KeyError
    inbox.receive(source=SOURCE, id="evt-10", type="paid", data={"account": "k1", "amount": 1})
    inbox.drain()
    (group,) = inbox.admin.dead_groups()
    assert (group.messages, group.first_seq, group.last_seq, group.type) == (3, seqs[0], seqs[-1], "paid")
    assert group.fingerprint == fingerprint("Reject: amount -9 of evt-77 is negative")
    assert [row.seq for row in inbox.admin.messages(fingerprint=group.fingerprint)] == seqs[::-1]
    assert other not in [row.seq for row in inbox.admin.messages(fingerprint=group.fingerprint)]
    waiting = inbox.admin.messages(status="waiting")[0].seq
    told = inbox.admin.explain(waiting)
    assert told is not None
    assert (told.events[-1].kind, told.events[-1].seq) == ("next", seqs[0])
    assert "which is dead" in told.events[-1].what
    blocked = inbox.admin.blocked_keys()
    assert {(one.key, one.behind) for one in blocked} == {("k1", 1), ("k2", 0), ("k3", 0)}
    words = ("redrive", "--store", inbox.url, "--error", group.fingerprint, "--yes", "--reason", "x", "--json")
    assert json.loads(command(*words)) == {"changed": 3, "unchanged": {}}
    assert [line.action for line in inbox.admin.audit()] == ["redrive"] * 3


def test_an_unhandled_message_that_holds_its_key_is_shown(inbox: Inbox) -> None:
    """D29: it was given a key, nobody handles its type, and a known type waits behind it for ever."""
    pay(inbox)
    odd = inbox.receive(source=SOURCE, id="odd-1", type="odd", key="k1", data={}).seq
    inbox.receive(source=SOURCE, id="odd-2", type="odd", key="k2", data={})  # holds up nobody
    behind = deliver(inbox, 1, account="k1")
    inbox.drain()
    assert [(one.seq, one.state, one.behind, one.next_seq) for one in inbox.admin.blocked_keys()] == [
        (odd, "unhandled", 1, behind)
    ]
    inbox.admin.discard(odd, reason="nobody wants it")
    assert inbox.admin.blocked_keys() == []
    assert inbox.drain() == 1


def test_messages_are_chosen_by_time(inbox: Inbox) -> None:
    seq = deliver(inbox, 1)
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    assert [row.seq for row in inbox.admin.messages(since=now - hour, until=now + hour)] == [seq]
    assert inbox.admin.messages(since=now + hour) == []
    assert inbox.admin.messages(until=now - hour) == []
    assert json.loads(command("list", "--store", inbox.url, "--json", "--until", "1h")) == []
    assert len(json.loads(command("list", "--store", inbox.url, "--json", "--since", "2000-01-01"))) == 1


@pytest.mark.parametrize("text", ["yesterday", "1w", "-3h", "99999999d", "2026-13-01"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    result = CliRunner().invoke(application, ["list", "--store", "sqlite://", "--since", text])
    assert result.exit_code == 2
    assert "is neither a time" in result.stderr


def test_moments_are_utc_unless_they_say_otherwise() -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert MOMENT.convert("2026-11-15T12:00", None, None) == noon
    assert MOMENT.convert("2026-11-15T14:00+02:00", None, None) == noon
    assert MOMENT.convert(noon, None, None) == noon


def test_the_overview_counts_what_is_there(inbox: Inbox) -> None:
    pay(inbox)
    inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=3))
    for number in range(4):
        deliver(inbox, number)
    deliver(inbox, 0)
    inbox.drain()
    (source,) = [row for row in inbox.admin.sources() if row.name == SOURCE]
    assert (source.recent, source.duplicates, source.redelivers_for) == (4, 1, timedelta(days=3))
    assert source.last_at is not None
    now = inbox.admin.traffic()[-2:]  # the minute may have turned
    assert sum(minute.received for minute in now) == 4  # not what they sent
    assert sum(minute.done for minute in now) == 4
    storage = inbox.admin.storage()
    assert {"ledger", "queue", "body"} <= {table.name for table in storage.tables}
    assert any(table.bytes for table in storage.tables)
    assert storage.ledger_since is not None
    assert inbox.admin.running() == []
    assert inbox.admin.find_anywhere("evt-2") == [row.seq for row in inbox.admin.messages() if row.id == "evt-2"]
