"""`onceward prune`: what it removes, what it says, what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from onceward import Inbox, Settings
from onceward.admin.doctor import examine
from onceward.message import Delivery
from onceward.runtime.spool import Spool
from tests.cli.conftest import PROGRAM, Shop, dead_message
from tests.cli.test_cli import answer, command


def finished(shop: Shop) -> None:
    """A message that is done, and one that is dead."""
    dead_message(shop, 1)
    shop.deliver("bad", 2)
    shop.inbox.drain()
    shop.inbox.admin.discard(2, reason="test")


def test_prune_removes_what_is_old_and_finished(any_shop: Shop) -> None:
    finished(any_shop)
    words = ("prune", "--store", any_shop.url, "--body-days", "0", "--dedupe-days", "0")
    assert json.loads(answer(*words, "--json").output) == {
        "messages": 1,
        "bodies": 0,
        "partitions": 0,
        "runs": 0,
        "blobs": 0,
    } | ({"bodies": 1} if any_shop.url.startswith("sqlite") else {})
    assert any_shop.ask("SELECT count(*) FROM onceward_ledger") == [(1,)]
    assert "removed: 0 bodies, 0 partitions of bodies, 0 messages forgotten" in answer(*words).output


def test_prune_needs_to_know_how_long_where_no_program_says_so(sqlite_shop: Shop) -> None:
    result = command("prune", "--store", sqlite_shop.url)
    assert result.exit_code == 2
    assert "--body-days and --dedupe-days" in result.stderr


def test_prune_keeps_what_the_program_keeps(any_shop: Shop) -> None:
    finished(any_shop)
    assert any_shop.json("prune", PROGRAM) == {"messages": 0, "bodies": 0, "partitions": 0, "runs": 0, "blobs": 0}


def test_prune_shows_its_progress_on_a_terminal(sqlite_shop: Shop) -> None:
    finished(sqlite_shop)
    written = sqlite_shop.terminal("prune", PROGRAM, "--body-days", "0", "--dedupe-days", "0")
    assert "pruning" in written
    assert "removed: 1 body, 0 partitions of bodies, 1 message forgotten" in written


def test_erase_shows_then_erases_what_it_showed(any_shop: Shop) -> None:
    seq = dead_message(any_shop, 1, email="ann@example.com")
    words = ("erase", "--store", any_shop.url, "--field", "email=ann@example.com")
    shown = answer(*words, "--preview").output
    assert "dead" in shown
    assert json.loads(answer(*words, "--preview", "--json").output)["found"][0]["seq"] == seq
    assert any_shop.ask("SELECT count(*) FROM onceward_body WHERE body IS NOT NULL") == [(1,)]
    assert "Not a terminal" in command(*words, "--reason", "x").stderr
    assert "erased: 1 message" in answer(*words, "--reason", "request 7", "--yes").output
    assert any_shop.ask("SELECT count(*) FROM onceward_body WHERE body IS NOT NULL") == [(0,)]
    assert "no messages match" in answer(*words, "--preview").output
    assert json.loads(answer(*words, "--reason", "x", "--yes", "--json").output) == {
        "erased": 0,
        "left": [],
        "archived": 0,
    }


def test_erase_by_number_and_by_id(sqlite_shop: Shop) -> None:
    first, second = dead_message(sqlite_shop, 1), dead_message(sqlite_shop, 2)
    store = ("--store", sqlite_shop.url)
    assert json.loads(answer("erase", *store, str(first), "--reason", "x", "--yes", "--json").output)["erased"] == 1
    found = answer("erase", *store, "--source", "test", "--id", "bad-2", "--reason", "x", "--yes").output
    assert "erased: 1 message" in found
    assert sqlite_shop.inbox.admin.message(second).body is None  # type: ignore[union-attr] # it is there
    assert command("erase", *store, "99", "--reason", "x", "--yes").exit_code == 1


def test_erase_says_what_it_needs(sqlite_shop: Shop) -> None:
    for words, said in (
        ((), "name what to erase"),
        (("1", "--key", "k"), "name what to erase"),
        (("--source", "s"), "name what to erase"),
        (("--field", "email"), "PATH=VALUE"),
    ):
        result = command("erase", "--store", sqlite_shop.url, *words, "--preview")
        assert result.exit_code == 2
        assert said in result.stderr
    assert "--reason" in command("erase", "--store", sqlite_shop.url, "1").stderr


def test_erase_asks_on_a_terminal(sqlite_shop: Shop) -> None:
    seq = dead_message(sqlite_shop, 1)
    assert "for good? [y/N]" in sqlite_shop.terminal("erase", PROGRAM, str(seq), "--reason", "x", keys="n\n")
    assert sqlite_shop.inbox.admin.message(seq).status == "dead"  # type: ignore[union-attr] # it is there
    sqlite_shop.terminal("erase", PROGRAM, str(seq), "--reason", "x", keys="y\n")
    assert sqlite_shop.inbox.admin.message(seq).status == "discarded"  # type: ignore[union-attr] # it is there


def test_archive_verify_replay_and_erase(any_shop: Shop, tmp_path: Path) -> None:
    any_shop.inbox.on("plain")(lambda _message, _tx: None)
    any_shop.deliver("plain", 1, email="ann@example.com")
    any_shop.inbox.drain()
    store, folder = ("--store", any_shop.url), str(tmp_path / "archive")
    assert "--store needs --days" in command("archive", *store, folder).stderr
    assert f"archived: 1 message to {folder}" in answer("archive", *store, folder, "--days", "0").output
    assert json.loads(answer("archive", *store, folder, "--days", "0", "--json").output) == {"archived": 0}
    assert json.loads(answer("archive", *store, folder, "--verify", "--json").output) == {"files": 1, "messages": 1}
    assert "1 file with 1 message" in answer("archive", *store, folder, "--verify").output
    assert "plain" in answer("replay", *store, folder, "--preview").output
    assert json.loads(answer("replay", *store, folder, "--preview", "--json").output) == {"messages": 1}
    assert "Not a terminal" in command("replay", *store, folder).stderr
    assert "replayed: 1 duplicate" in answer("replay", *store, folder, "--yes").output
    words = ("replay", *store, folder, "--again", "x", "--yes", "--json")
    assert json.loads(answer(*words).output) == {"accepted": 1}
    erased = answer("erase", *store, "--field", "email=ann@example.com", "--archive", folder, "--reason", "x", "--yes")
    assert "erased: 1 message, and 1 in the archive" in erased.output
    assert json.loads(answer("replay", *store, folder, "--preview", "--json").output) == {"messages": 0}
    assert "give one FOLDER" in command("archive", *store, "--days", "0").stderr


def test_a_day_is_copied_and_stays_where_it_is(any_shop: Shop, tmp_path: Path) -> None:
    any_shop.inbox.on("plain")(lambda _message, _tx: None)
    for number in range(3):
        any_shop.deliver("plain", number)
    any_shop.inbox.drain()
    store, folder = ("--store", any_shop.url), str(tmp_path / "day")
    assert f"copied: 3 messages to {folder}" in answer("archive", *store, folder, "--copy", "--since", "1d").output
    before = answer("archive", *store, f"{folder}-before", "--copy", "--until", "1d", "--json").output
    assert json.loads(before) == {"copied": 0}
    assert json.loads(answer("archive", *store, folder, "--verify", "--json").output) == {"files": 1, "messages": 3}
    assert all(any_shop.inbox.admin.message(seq).body for seq in (1, 2, 3))  # type: ignore[union-attr]
    assert "need --copy" in command("archive", *store, folder, "--since", "1d").stderr
    assert "--copy takes --since" in command("archive", *store, folder, "--copy", "--days", "1").stderr


def test_the_doctor_looks_at_the_retention_and_the_spool(any_shop: Shop, tmp_path: Path) -> None:
    any_shop.inbox.retention.declare_source("sqs", redelivers_for=timedelta(days=14))
    any_shop.deliver("plain", 1)
    found = {finding.what: finding.level for finding in examine(any_shop.inbox)}
    kept, window = "30 days", "14 days"
    assert found[f"messages are remembered for {kept}; sqs may redeliver for up to {window}"] == "ok"
    short = Inbox(any_shop.url, settings=Settings(dedupe_retention=timedelta(days=7)), spool=tmp_path / "spool")
    Spool(tmp_path / "spool").append([Delivery.of(source="s", id="a", type="t", data=1)])
    levels = {finding.what: finding.level for finding in examine(short)}
    problem = f"source sqs may redeliver for up to {window}, and messages are forgotten after 7 days"
    assert levels[problem] == "error"
    assert levels["messages wait in the spool of this host"] == "warning"
    short.close()
