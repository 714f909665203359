"""What an operator types in an incident (R64)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from click.testing import CliRunner

from onceward import Inbox, RetryPolicy
from onceward.admin.guarantees import LEVELS
from onceward.cli.app import COMMANDS, GROUPS, application
from onceward.cli.output import print_table
from onceward.cli.tail import Follower
from onceward.message import Message

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LATER = RetryPolicy(attempts=3, first=timedelta(hours=1))


def told(url: str, *words: str, given: bytes | None = None) -> tuple[int, str]:
    """The exit code and the output of a command."""
    result = CliRunner().invoke(application, [words[0], "--store", url, *words[1:]], input=given)
    return result.exit_code, result.output


def failing(message: Message) -> None:
    """The bank is away."""
    raise RuntimeError(f"the bank is away, says {message.type}")


def test_retry_now(store_url: str) -> None:
    """By error in bulk with a preview, by number with an exit code."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("pay", retry=LATER)(failing)
        for number in (1, 2):
            inbox.receive(source="shop", id=f"p{number}", type="pay", data={})
        inbox.drain()
        first, second = (row.seq for row in reversed(inbox.admin.messages()))
        cause = inbox.admin.explain(first).message.history[-1].fingerprint  # type: ignore[union-attr] # it is there
        code, shown = told(store_url, "retry-now", "--error", cause, "--preview", "--json")
        assert (code, json.loads(shown)) == (0, {"found": [first, second]})
        assert told(store_url, "retry-now", str(first), "--reason", "back") == (0, "made due: 1 message\n")
        assert told(store_url, "retry-now", str(first), "--reason", "back") == (
            1,
            f"made due: 0 messages\nmessage {first} was left alone: it is due\n",
        )
        code, shown = told(store_url, "retry-now", "--type", "pay", "--reason", "back", "--yes", "--json")
        assert (code, json.loads(shown)) == (0, {"changed": 1, "unchanged": {}})
        assert told(store_url, "retry-now", "--all", "--reason", "x", "--yes") == (0, "no retrying messages match\n")
        assert told(store_url, "retry-now", "--all", "--preview") == (0, "no retrying messages match\n")
        assert told(store_url, "retry-now", "--all")[0] == 2, "without a reason"


def test_discard_by_status(store_url: str) -> None:
    """Bulk takes the dead ones, and others where that is said."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        for number in (1, 2):
            inbox.receive(source="shop", id=f"p{number}", type="legacy", data={})
        assert told(store_url, "discard", "--type", "legacy", "--reason", "old", "--yes") == (
            0,
            "no dead messages match\n",
        )
        code, shown = told(store_url, "discard", "--status", "unhandled", "--all", "--reason", "old", "--yes", "--json")
        assert (code, json.loads(shown)["changed"]) == (0, 2)
        assert told(store_url, "discard", "--status", "running", "--all", "--reason", "old", "--yes")[0] == 2
        assert told(store_url, "discard", "1", "--status", "due", "--reason", "old")[0] == 2


def test_pause_and_resume(store_url: str) -> None:
    """Once each; shown by status, pauses and doctor while it lasts."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        what = ("--type", "order.paid", "--reason")
        assert told(store_url, "pauses") == (0, "nothing is paused\n")
        assert told(store_url, "pause", *what, "the bank is away") == (0, "type order.paid: paused\n")
        assert told(store_url, "pause", *what, "again") == (1, "type order.paid: paused already\n")
        code, shown = told(store_url, "pauses", "--json")
        assert (code, [(one["kind"], one["name"], one["reason"]) for one in json.loads(shown)]) == (
            0,
            [("type", "order.paid", "the bank is away")],
        )
        assert "type order.paid is paused by" in told(store_url, "status")[1]
        assert json.loads(told(store_url, "status", "--json")[1])["paused"][0]["name"] == "order.paid"
        assert "--type order.paid --reason TEXT" in told(store_url, "doctor")[1]
        code, shown = told(store_url, "resume", *what, "it is back", "--json")
        assert (code, json.loads(shown)) == (0, {"changed": True, "kind": "type", "name": "order.paid"})
        assert told(store_url, "resume", *what, "again") == (1, "type order.paid: not paused\n")
        assert len(json.loads(told(store_url, "pauses", "--ended", "--json")[1])) == 1
        assert told(store_url, "pause", "--everything", "--reason", "x") == (0, "everything: paused\n")
        for wrong in ((), ("--type", "a", "--source", "b")):
            assert told(store_url, "pause", *wrong, "--reason", "x")[0] == 2


def paying(message: Message) -> None:
    """It takes an amount."""
    message.once("charge", lambda: "ch_1")
    if "amount" not in message.data:
        raise KeyError("amount")


def test_edit(store_url: str, tmp_path: Path) -> None:
    """What changes is shown, with the calls on record; by id as by number; an exit code says when it was too late."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("pay", retry=RetryPolicy(attempts=1))(paying)
        seq = inbox.receive(source="shop", id="p-1", type="pay", data={"order": 7}).seq
        inbox.drain()
        fixed = tmp_path / "fixed.json"
        fixed.write_text('{"order": 7, "amount": 12}')
        code, shown = told(store_url, "edit", "p-1", "--file", str(fixed), "--preview")
        assert (code, "amount" in shown, "ch_1" in shown, "(missing)" in shown) == (0, True, True, True)
        code, shown = told(store_url, "edit", str(seq), "--file", str(fixed), "--preview", "--json")
        assert (code, json.loads(shown)["differences"]) == (0, [["amount", "(missing)", 12]])
        assert told(store_url, "edit", "p-1", "--body", '{"order":7}', "--reason", "x", "--yes")[0] == 2, "no change"
        assert told(store_url, "edit", "p-1", "--body", "{}")[0] == 2, "without a reason"
        assert told(store_url, "edit", "p-1", "--reason", "x", "--yes")[0] == 2, "without a body"
        words = ("edit", "p-1", "--file", "-", "--reason", "it was missing", "--yes")
        code, shown = told(store_url, *words, given=fixed.read_bytes())
        assert (code, shown.splitlines()[-1]) == (0, f"edited: message {seq}; it is due")
        assert told(store_url, *words, given=b"{}")[0] == 1, "it is due"
        assert inbox.drain() == 1
        assert told(store_url, "show", "p-1")[1].count("it was missing") == 1
        assert "its body was corrected" in told(store_url, "explain", "p-1")[1]


def test_an_id_is_as_good_as_a_number(store_url: str) -> None:
    """Wherever one message, or several, are named."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("pay", retry=LATER)(failing)
        for number in (1, 2):
            inbox.receive(source="shop", id=f"p-{number}", type="pay", data={})
        inbox.drain()
        assert told(store_url, "retry-now", "p-1", "p-2", "--reason", "back") == (0, "made due: 2 messages\n")
        assert told(store_url, "discard", "p-1", "--reason", "x") == (0, "discarded: 1 message\n")
        assert told(store_url, "erase", "p-1", "--reason", "x", "--yes")[0] == 0
        for words in (("show", "p-3"), ("explain", "p-3"), ("discard", "p-3", "--reason", "x"), ("edit", "p-3")):
            code, shown = told(
                store_url, *words, *(("--body", "{}", "--reason", "x", "--yes") if "edit" in words else ())
            )
            assert (code, "there is no message with id p-3" in shown) == (1, True), words


def test_the_parts_of_an_inbox_are_listed(store_url: str) -> None:
    """Each has a table for people and JSON for programs, also where there is nothing."""
    parts = ("keys", "sources", "workers", "handlers", "audit", "storage", "polls", "pauses")
    with Inbox(store_url) as inbox:
        inbox.migrate()
        assert [told(store_url, part)[0] for part in parts] == [0] * len(parts)
        inbox.on("pay", key="order", retry=RetryPolicy(attempts=1))(failing)
        for number in (1, 2):
            inbox.receive(source="shop", id=f"p-{number}", type="pay", data={"order": 1})
        inbox.drain()
        inbox.admin.pause(type="pay", reason="a test", actor="ann")
        shown = {part: json.loads(told(store_url, part, "--json")[1]) for part in parts}
        assert [(one["key"], one["behind"]) for one in shown["keys"]] == [("1", 1)]
        assert [(one["name"], one["recent"]) for one in shown["sources"]] == [("shop", 2)]
        assert [(one["action"], one["reason"]) for one in shown["audit"]] == [("pause", "type pay. a test")]
        assert {one["name"] for one in shown["storage"]["tables"]} >= {"queue", "ledger"}
        (handler,) = shown["handlers"]
        assert (handler["type"], handler["key"], handler["name"]) == ("pay", "order", None)
        assert "type pay is paused by ann" in handler["paused"]
        (mine,) = inbox.admin.handlers()
        assert (mine.attempts, mine.guarantee in LEVELS, mine.is_async, mine.name) == (1, True, False, "failing")
        for part, words in (("keys", "pay"), ("sources", "shop"), ("handlers", "paused"), ("audit", "ann")):
            assert words in told(store_url, part)[1], part


def test_tail_shows_what_is_new(store_url: str) -> None:
    """At first the newest messages; then each change of one, and what people do, and nothing twice."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("pay", retry=LATER)(failing)
        inbox.on("calm")(lambda message: None)  # noqa: ARG005 - it has no effect
        inbox.receive(source="shop", id="p-1", type="pay", data={})
        follower = Follower(inbox.admin, {})
        failures = Follower(inbox.admin, {"type": "pay"}, failures=True)
        assert [(line.what, line.id) for line in follower.look()] == [("due", "p-1")]
        assert failures.look() == follower.look() == []
        inbox.receive(source="shop", id="c-1", type="calm", data={})
        inbox.drain()
        assert sorted((line.what, line.id) for line in follower.look()) == [("done", "c-1"), ("retrying", "p-1")]
        (line,) = failures.look()
        assert (line.what, line.more) == ("retrying", "RuntimeError: the bank is away, says pay")
        inbox.admin.retry_now(type="pay", reason="back", actor="ann")
        assert [(line.what, line.more) for line in follower.look() if not line.id] == [("hasten", "by ann: back")]
        inbox.drain()
        assert [line.what for line in follower.look()] == ["retrying"], "it has failed once more"
        code, shown = told(store_url, "tail", "--once", "--json")
        lines = [json.loads(line) for line in shown.splitlines()]
        assert (code, {line["what"] for line in lines}) == (0, {"done", "retrying", "hasten"})
        assert "RuntimeError" in told(store_url, "tail", "--once", "--failures")[1]


def test_commands_are_grouped_and_a_misspelt_one_names_the_nearest() -> None:
    """Every command is in one group; what is not there is wrong usage."""
    shown = CliRunner().invoke(application, ["--help"]).output
    assert [title for title in GROUPS if f"{title}:" in shown] == ["Run", "Look", "Decide", "Maintain", "Develop"]
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for word, near in (("redirve", "redrive"), ("retry", "retry-now"), ("statsu", "status")):
        result = CliRunner().invoke(application, [word])
        assert (result.exit_code, near in result.output) == (2, True), word
    result = CliRunner().invoke(application, ["xyzzy"])
    assert (result.exit_code, "onceward --help lists them" in result.output) == (2, True)


def test_a_narrow_terminal_leaves_out_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets all of them, and so does --wide."""
    table: dict[str, Any] = {"columns": ("a", "b", "c"), "rows": [(1, 2, 3)], "more": ("b",)}
    print_table(**table)
    assert capsys.readouterr().out.split() == ["A", "B", "C", "1", "2", "3"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(**table)
    assert click.unstyle(capsys.readouterr().out).split() == ["a", "c", "1", "3"]
    print_table(**table, wide=True)
    assert click.unstyle(capsys.readouterr().out).split() == ["a", "b", "c", "1", "2", "3"]
