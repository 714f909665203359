"""`onceward import-ids`: what it counts, what it says, what it refuses (R73)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cli.conftest import PROGRAM, Shop
from tests.cli.test_cli import answer, command

WORDS = ("--from-table", "processed", "--source", "test", "--id-column", "message_id")


def processed(shop: Shop, *rows: tuple[str, datetime | None]) -> None:
    mark = "?" if shop.url.startswith("sqlite") else "%s"
    with shop.inbox.transaction() as connection:
        connection.execute("CREATE TABLE processed (message_id text, seen timestamp)")
        for name, seen in rows:
            value: Any = seen if seen is None or mark == "%s" else seen.isoformat()
            connection.execute(f"INSERT INTO processed VALUES ({mark}, {mark})", (name, value))


def test_import_ids_from_a_table(any_shop: Shop) -> None:
    long_ago = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=4000)
    processed(any_shop, ("good-1", None), ("good-2", None), ("good-3", long_ago), ("a\nb", None))
    target = ("import-ids", "--store", any_shop.url, *WORDS, "--seen-column", "seen", "--consumer", "default")
    shown = answer(*target, "--preview").output
    assert "would import: 2 of 4 ids from test, for default" in shown
    assert any_shop.ask("SELECT count(*) FROM onceward_ledger") == [(0,)]
    told = answer(*target).output
    assert "imported: 2 of 4 ids" in told
    assert "skipped: 1 handled longer ago than the dedupe retention" in told
    assert "skipped: 1 that cannot be message ids" in told
    found = json.loads(answer(*target, "--json", "--where", "message_id LIKE 'good%'").output)
    assert (found["read"], found["imported"], found["known"], found["too_old"], found["preview"]) == (3, 0, 2, 1, False)
    assert json.loads(answer(*target, "--json", "--after", "good-2").output)["read"] == 1


def test_import_ids_for_all_consumers_of_a_program(sqlite_shop: Shop) -> None:
    processed(sqlite_shop, ("good-1", None))
    told = sqlite_shop.json("import-ids", PROGRAM, *WORDS)
    assert told["imported"] == len(told["consumers"])
    assert sqlite_shop.deliver("good", 1) > 0
    assert sqlite_shop.inbox.drain() == 0


def test_import_ids_needs_to_know_for_whom(sqlite_shop: Shop) -> None:
    result = command("import-ids", "--store", sqlite_shop.url, *WORDS)
    assert result.exit_code == 2
    assert "--consumer" in result.stderr
    assert command("import-ids", PROGRAM, "--source", "test").exit_code == 2
