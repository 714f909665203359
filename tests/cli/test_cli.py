"""The commands, as people and scripts use them: what they print, what they change, how they fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from onceward.cli.app import COMMANDS, application
from tests.cli.conftest import PROGRAM, Shop, dead_message

if TYPE_CHECKING:
    from pathlib import Path


def command(*words: str) -> Result:
    """Run a command in this process, with its output in a pipe."""
    return CliRunner().invoke(application, words)


def answer(*words: str) -> Result:
    """As `command`, for one that must succeed."""
    result = command(*words)
    assert result.exit_code == 0, result.output
    return result


def test_migrate_twice_changes_nothing_the_second_time(new_shop: Shop) -> None:
    assert "applied 0001_core" in answer("migrate", "--store", new_shop.url).output
    assert "nothing to do" in answer("migrate", "--store", new_shop.url).output
    assert json.loads(answer("migrate", "--store", new_shop.url, "--json").output) == {"applied": [], "newer": []}


def test_migrate_prints_the_sql_without_touching_the_database(new_shop: Shop) -> None:
    printed = answer("migrate", "--store", new_shop.url, "--print").output
    assert printed == new_shop.inbox.migration_sql()
    assert command("status", "--store", new_shop.url).exit_code == 2


@pytest.mark.parametrize("words", [("status",), ("list",), ("show", "1"), ("quarantine", "list"), ("effects", "list")])
def test_a_missing_schema_is_refused_with_the_command_that_creates_it(new_shop: Shop, words: tuple[str, ...]) -> None:
    result = command(*words, "--store", new_shop.url)
    assert result.exit_code == 2
    assert "onceward migrate --store" in result.stderr
    assert "Traceback" not in result.output


def test_a_database_that_is_away_is_exit_code_3() -> None:
    result = command("status", "--store", "postgresql://nobody@127.0.0.1:1/nothing")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr


def test_status_has_every_number(any_shop: Shop) -> None:
    any_shop.deliver("plain", 1)
    any_shop.deliver("plain", 1)
    found = json.loads(answer("status", "--store", any_shop.url, "--json").output)
    wanted = "due waiting running retrying dead quarantined done unhandled duplicates oldest_due_seconds discarded"
    assert {*wanted.split(), "failures", "workers", "done_last_minute"} <= found.keys()
    assert (found["unhandled"], found["duplicates"], found["workers"]) == (1, 1, 0)
    shown = answer("status", "--store", any_shop.url).output
    assert re.search(r"unhandled +1 ", shown)
    assert "no worker is running" in shown


def test_list_filters_and_pages(any_shop: Shop) -> None:
    for number in range(5):
        any_shop.deliver("plain", number)
    any_shop.deliver("other", 1)
    store = ("--store", any_shop.url)
    everything = json.loads(answer("list", *store, "--json").output)
    assert [row["id"] for row in everything] == ["other-1", *(f"plain-{number}" for number in (4, 3, 2, 1, 0))]
    page = answer("list", *store, "--type", "plain", "--limit", "2")
    assert "plain-4" in page.output
    assert "plain-2" not in page.output
    before = everything[2]["seq"]
    assert f"--before {before}" in page.output
    following = json.loads(answer("list", *store, "--type", "plain", "--before", str(before), "--json").output)
    assert [row["id"] for row in following] == ["plain-2", "plain-1", "plain-0"]
    assert "no messages match" in answer("list", *store, "--status", "dead").output
    assert command("list", *store, "--status", "nonsense").exit_code == 2


def test_show_finds_a_message_by_number_and_by_its_producers_id(any_shop: Shop) -> None:
    seq = any_shop.deliver("plain", 1, order=7)
    store = ("--store", any_shop.url)
    detail = json.loads(answer("show", *store, str(seq), "--json").output)
    assert (detail["seq"], detail["id"], detail["body"]) == (seq, "plain-1", '{"order":7}')
    by_id = answer("show", *store, "--service", "shop", "--source", "test", "--id", "plain-1").output
    assert by_id.splitlines()[0].split() == ["message", str(seq)]
    assert any_shop.inbox.admin.find("test", "plain-1") == [seq]
    assert any_shop.inbox.admin.find("test", "plain-2") == []
    for missing in (("12345",), ("--source", "test", "--id", "nobody")):
        result = command("show", *store, *missing)
        assert (result.exit_code, "there is no message" in result.stderr) == (1, True)
    assert command("show", *store, "abc").exit_code == 1, "there is no such id"
    for wrong in ((), ("1", "2"), ("--source", "test"), ("1", "--source", "test", "--id", "x")):
        assert command("show", *store, *wrong).exit_code == 2


def test_redrive_and_discard_by_number_write_the_audit(any_shop: Shop) -> None:
    seq, other = dead_message(any_shop, 1), dead_message(any_shop, 2)
    store = ("--store", any_shop.url)
    assert "redriven: 1 message" in answer("redrive", *store, str(seq), "--reason", "the bank is back").output
    again = command("redrive", *store, str(seq), "--reason", "once more")
    assert again.exit_code == 1
    assert f"message {seq} was left alone: it is due" in again.output
    assert "discarded: 1 message" in answer("discard", *store, str(other), "--reason", "test order").output
    assert command("discard", *store, "98765", "--reason", "x").exit_code == 1
    audit = any_shop.ask("SELECT seq, action, reason FROM onceward_audit ORDER BY id")
    assert audit == [(seq, "redrive", "the bank is back"), (other, "discard", "test order")]
    shown = answer("show", *store, str(other)).output
    assert "discarded" in shown
    assert "test order" in shown


def test_bulk_asks_first_and_refuses_where_nobody_can_be_asked(any_shop: Shop) -> None:
    for number in range(3):
        dead_message(any_shop, number)
    store = ("--store", any_shop.url)
    for verb in ("redrive", "unblock", "discard"):
        refused = command(verb, *store, "--all", "--reason", "x")
        assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
        assert command(verb, *store, "--reason", "x").exit_code == 2
        assert command(verb, *store, "1", "--all", "--reason", "x", "--yes").exit_code == 2
        assert command(verb, *store, "1").exit_code == 2  # no reason
    nothing = json.loads(answer("redrive", *store, "--type", "plain", "--reason", "x", "--yes", "--json").output)
    assert nothing == {"changed": 0, "unchanged": {}}
    looked = json.loads(answer("redrive", *store, "--type", "bad", "--preview", "--json").output)
    assert looked == {"found": [1, 2, 3]}
    assert re.search(r"1 +bad +test +shop", answer("discard", *store, "2", "--preview").output)
    named = command("discard", *store, "--source", "test", "--id", "unknown", "--reason", "x")
    assert (named.exit_code, any_shop.inbox.admin.stats().dead) == (1, 3)
    done = answer("redrive", *store, "--type", "bad", "--reason", "fixed", "--yes").output
    assert re.search(r"3 +bad +test +shop", done)
    assert "redriven: 3 messages" in done
    assert any_shop.inbox.admin.stats().dead == 0


def test_unblock_lets_a_key_go_on_and_redrive_then_needs_a_word(any_shop: Shop) -> None:
    seq = dead_message(any_shop, 1, order=7)
    behind = any_shop.deliver("bad", 2, why="later", order=7)
    any_shop.inbox.drain()
    store = ("--store", any_shop.url, "--service", "shop")
    assert json.loads(answer("show", *store, str(behind), "--json").output)["status"] == "waiting"
    assert "unblocked: 1 message" in answer("unblock", *store, str(seq), "--reason", "by hand").output
    any_shop.inbox.drain()
    refused = command("redrive", *store, str(seq), "--reason", "x")
    assert (refused.exit_code, "--out-of-order" in refused.output) == (1, True)
    answer("redrive", *store, str(seq), "--reason", "x", "--out-of-order")


def test_quarantine_shows_what_differs_and_takes_a_decision_once(any_shop: Shop) -> None:
    seq = any_shop.deliver("plain", 1, amount=7, same=1)
    any_shop.deliver("plain", 1, amount="7", same=1)
    store = ("--store", any_shop.url, "--service", "shop")
    listed = answer("quarantine", "list", *store).output
    assert re.search(r'amount +7 +"7"', listed)
    assert "same" not in listed
    (case,) = json.loads(answer("quarantine", "list", *store, "--json").output)
    assert case["differences"] == [{"field": "amount", "first": 7, "other": "7"}]
    for wrong in (("1", "maybe"), ("1",), ("x", "keep-first")):
        assert command("quarantine", "resolve", *store, *wrong, "--reason", "x").exit_code == 2
    decision = ("quarantine", "resolve", *store, str(case["case"]), "keep-first", "--reason", "sender bug")
    assert f"message {seq} stays" in answer(*decision).output
    assert command(*decision).exit_code == 1
    assert "no open mismatches" in answer("quarantine", "list", *store).output


def test_effects_are_listed_and_a_wrong_one_is_refused(any_shop: Shop) -> None:
    seq = any_shop.deliver("plain", 1)
    store = ("--store", any_shop.url)
    assert "no external call has an unknown outcome" in answer("effects", "list", *store).output
    settle = ("effects", "settle", *store, str(seq), "charge")
    assert command(*settle, "happened", "--reason", "x").exit_code == 1
    assert command(*settle, "perhaps", "--reason", "x").exit_code == 2
    assert command(*settle, "happened", "--reason", "x", "--result", "{").exit_code == 2


def test_wrong_targets_are_explained(sqlite_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    (tmp_path / "wrong.py").write_text("from onceward import Inbox\nInbox('sqlite://', prefix='No!')\n")
    for words, sentence in (
        (("nowhere:inbox",), "there is no module 'nowhere'"),
        (("tests.cli.nowhere:inbox",), "there is no module 'tests.cli.nowhere'"),
        (("tests.cli.shop:nowhere",), "module tests.cli.shop has no 'nowhere'; it has: tests.cli.shop:inbox"),
        (("tests.cli.shop:nothing",), "tests.cli.shop:nothing is NoneType, not an onceward Inbox"),
        (("tests.cli.shop",), "is not of the form MODULE:ATTR"),
        (("sqlite:///x.db",), "write --store sqlite:///x.db"),
        ((), "which inbox?"),
        ((PROGRAM, "--store", "sqlite://"), "not both"),
        ((PROGRAM, "--prefix", "x_"), "go with --store"),
        ((PROGRAM, "surplus"), "unexpected: surplus"),
        (("--store", "oracle://x"), "no store for 'oracle' URLs"),
    ):
        result = command("status", *words)
        assert (result.exit_code, sentence in result.stderr) == (2, True), (words, result.output)
    for program, sentence in (("broken:inbox", "not_there_at_all"), ("wrong:inbox", "prefix 'No!'")):
        done = sqlite_shop.call("status", program, folder=tmp_path)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr


def test_a_program_is_found_from_the_current_folder(sqlite_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "corner.py").write_text(
        f"from onceward import Inbox\nclass app:\n    inbox = Inbox({sqlite_shop.url!r}, service='shop')\n"
    )
    seq = sqlite_shop.deliver("plain", 1)
    assert sqlite_shop.call("show", "corner:app.inbox", str(seq), folder=tmp_path).returncode == 0
    done = sqlite_shop.call("run", "corner:app.inbox", folder=tmp_path)
    assert (done.returncode, "has no handlers to run" in done.stderr) == (2, True)
    sqlite_shop.environment["ONCEWARD_STORE"] = sqlite_shop.url
    assert sqlite_shop.call("status").returncode == 0


def test_the_doctor_says_what_is_wrong(any_shop: Shop) -> None:
    def findings() -> dict[str, str]:
        found = json.loads(command("doctor", "--store", any_shop.url, "--json").output)
        return {finding["what"]: finding["level"] for finding in found}

    assert findings()["no stuck messages"] == "ok"
    any_shop.deliver("unknown", 1)
    dead_message(any_shop, 1)
    any_shop.deliver("bad", 2, why="x", order=7)
    assert findings()["1 message of a type without a handler: unknown"] == "warning"
    assert findings()["1 dead message; later messages of the same key wait behind"] == "warning"
    assert findings()["1 message waiting, and no worker is running"] == "warning"
    with any_shop.inbox.transaction() as connection:
        connection.execute("UPDATE onceward_queue SET state = 'waiting' WHERE key_hash IS NOT NULL AND state = 'ready'")
    assert findings()["1 row in a state that no worker would ever move"] == "error"


def test_the_doctors_exit_code_is_about_errors_alone(sqlite_shop: Shop) -> None:
    dead_message(sqlite_shop, 1)
    assert re.search(r"0 errors, [12] warnings?", answer("doctor", "--store", sqlite_shop.url).output)
    sqlite_shop.deliver("bad", 2, why="x", order=7)
    with sqlite_shop.inbox.transaction() as connection:
        connection.execute("UPDATE onceward_queue SET state = 'waiting' WHERE key_hash IS NOT NULL AND state = 'ready'")
    assert command("doctor", "--store", sqlite_shop.url).exit_code == 1


def test_the_doctor_sees_a_server_that_does_not_keep_its_promises(postgres_url: str) -> None:
    assert command("migrate", "--store", postgres_url).exit_code == 0
    result = command("doctor", "--store", postgres_url)  # the tests' server is fast because it never syncs
    assert (result.exit_code, "fsync" in result.output) == (1, True)


def test_the_doctor_compares_the_program_with_the_work(sqlite_shop: Shop) -> None:
    sqlite_shop.inbox.on("retired")(lambda message, tx: None)  # noqa: ARG005 - never called
    sqlite_shop.deliver("retired", 1)
    done = sqlite_shop.call("doctor", PROGRAM)
    assert "1 due message of type retired for consumer shop: no handler here" in done.stdout
    assert "held, killer, ordered, plain" in done.stdout


def test_the_doctor_on_a_database_without_tables(new_shop: Shop) -> None:
    result = command("doctor", "--store", new_shop.url)
    assert (result.exit_code, "onceward migrate --store" in result.output) == (1, True)


def test_without_its_packages_the_command_line_says_what_it_needs() -> None:
    for package in ("click", "rich"):
        code = f"import sys; sys.modules[{package!r}] = None; from onceward.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (2, "the command line needs: pip install 'onceward[cli]'\n")


def test_every_command_has_help_with_an_example() -> None:
    names = [(name,) for name in COMMANDS if name not in {"quarantine", "effects", "alerts"}]
    for words in (
        *names,
        ("quarantine", "list"),
        ("quarantine", "resolve"),
        ("effects", "list"),
        ("effects", "settle"),
        ("alerts", "list"),
        ("alerts", "test"),
    ):
        shown = answer(*words, "--help").output
        assert f"onceward {' '.join(words)}" in shown.partition("Example")[2], words
    assert "Exit codes" in answer("--help").output
    assert "onceward" in answer("--version").output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert f"_ONCEWARD_COMPLETE={shell}_complete" in answer("completion", shell).output


def test_bench_measures_a_store_and_leaves_nothing_behind(any_shop: Shop) -> None:
    """In tables of its own, which it removes; the shop's own are as they were."""
    before = relations(any_shop)
    found = json.loads(command("bench", "--store", any_shop.url, "--messages", "100", "--json").output)
    names = [figure["name"] for figure in found["figures"]]
    assert [name.split(",")[0] for name in names] == [
        "plain INSERT", "plain INSERT", "receive_many", "receive", "drain", "handle", "process",
    ]  # fmt: skip
    assert all(figure["per_second"] > 0 for figure in found["figures"])
    assert relations(any_shop) == before


def test_bench_needs_a_store() -> None:
    """There is no default: it makes tables."""
    result = command("bench")
    assert result.exit_code == 2
    assert "--store URL" in result.stderr


def relations(shop: Shop) -> set[str]:
    """The names of everything in the database that begins with onceward."""
    catalog = {"postgres": "SELECT relname FROM pg_class UNION ALL SELECT proname FROM pg_proc"}
    query = catalog.get(shop.inbox.store.dialect, "SELECT name FROM sqlite_master")
    with shop.inbox.transaction() as connection:
        return {name for (name,) in connection.execute(query).fetchall() if name.startswith("onceward")}
