"""Tables that a newer release has migrated: older code works with `deploy: before`, and refuses `after` (D65)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from onceward import Inbox, Message
from onceward.admin.doctor import examine
from onceward.cli.app import application
from onceward.errors import SchemaOutdated
from onceward.stores import migrate, statements
from tests.migration.catalogs import run
from tests.migration.test_refusals import ENTRIES
from tests.waiting import wait_until

ADDITIVE = """-- deploy: before
CREATE TABLE {prefix}invoice (seq integer PRIMARY KEY);
ALTER TABLE {prefix}ledger ADD COLUMN region text;
ALTER TABLE {prefix}body ADD COLUMN region text NOT NULL DEFAULT 'eu';
ALTER TABLE {prefix}queue ADD COLUMN region text;
ALTER TABLE {prefix}subscription ADD COLUMN region text;
ALTER TABLE {prefix}worker ADD COLUMN region text;
"""
BREAKING = """-- deploy: after
ALTER TABLE {prefix}invoice RENAME TO {prefix}bill;
"""
FIRST, SECOND, THIRD = (migrate.newest("sqlite", "onceward_") + step for step in (1, 2, 3))

Release = Callable[..., list[str]]


@pytest.fixture
def newer_release(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """Migrates the database as a release with these further files does."""

    def migrated(**files: str) -> list[str]:
        sql = tmp_path / "newer"
        shutil.copytree(statements._SQL, sql)
        for number, (name, text) in enumerate(files.items(), FIRST):
            for dialect in ("sqlite", "postgres"):
                (sql / "migrations" / f"{number:04d}_{name}.{dialect}.sql").write_text(text)
        with monkeypatch.context() as patch, Inbox(store_url) as inbox:
            patch.setattr(statements, "_SQL", sql)
            statements.migrations.cache_clear()
            applied = inbox.migrate()
        statements.migrations.cache_clear()
        return applied

    return migrated


def test_code_that_was_rolled_back_works_on(
    store_url: str, newer_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    """D65: it starts, says so once, and receives, processes and drains as before."""
    added = f"{FIRST:04d}_invoices"
    assert newer_release(invoices=ADDITIVE)[-1] == added
    caplog.set_level(logging.INFO, "onceward")
    ran: list[str] = []
    with Inbox(store_url) as inbox:

        @inbox.on("t", key="k")
        def handler(message: Message, _tx: object) -> None:
            ran.append(message.id)

        assert inbox.migrate() == []
        assert inbox.receive(source="s", id="m1", type="t", data={"k": 1}).status == "accepted"
        assert inbox.drain() == 1
        assert inbox.process(source="s", id="m2", type="t", data={"k": 1}).finished
        assert inbox.receive(source="s", id="m1", type="t", data={"k": 1}).status == "duplicate"
        assert any(found.level == "ok" and f"which works with them: {added}" in found.what for found in examine(inbox))
    assert ran == ["m1", "m2"]
    (line,) = (line for line in caplog.messages if added in line)
    assert line.endswith(f" are newer than this onceward, which works with them: {added}")
    printed = CliRunner().invoke(application, ["migrate", "--store", store_url]).output
    assert f"which works with them: {added}" in printed


async def test_async_code_that_was_rolled_back_works_on(store_url: str, newer_release: Release) -> None:
    """D65: the same for handlers that are awaited."""
    newer_release(invoices=ADDITIVE)
    ran: list[str] = []
    inbox = Inbox(store_url)

    @inbox.on("t")
    async def handler(message: Message, _tx: object) -> None:
        ran.append(message.id)

    assert (await inbox.areceive(source="s", id="m1", type="t", data=1)).status == "accepted"
    assert await inbox.adrain() == 1
    assert (await inbox.aprocess(source="s", id="m2", type="t", data=1)).finished
    await inbox.aclose()
    assert ran == ["m1", "m2"]


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_migration_that_meets_a_lock_is_made_again(
    store_url: str, newer_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    """R73: a worker that locks the same tables the other way round makes a deadlock, and it is not the worker's end."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
    caplog.set_level(logging.INFO, "onceward")
    with psycopg.connect(store_url) as worker, ThreadPoolExecutor(1) as pool:
        worker.execute("SET LOCAL deadlock_timeout = '1min'")  # so that the other one is chosen to give way
        worker.execute("LOCK TABLE onceward_queue IN ROW EXCLUSIVE MODE")
        migrating = pool.submit(newer_release, invoices=ADDITIVE)
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'onceward_queue'::regclass AND NOT granted"
        wait_until(lambda: run(store_url, waiting) == [(1,)])
        worker.execute("LOCK TABLE onceward_body IN ROW EXCLUSIVE MODE")
        worker.commit()
        assert migrating.result() == [f"{FIRST:04d}_invoices"]
    assert any("in use, migrating again" in line for line in caplog.messages)


def test_code_that_a_migration_left_behind_is_refused(store_url: str, newer_release: Release) -> None:
    """D65: by every entry and by the migrator, naming the migration that it lacks and no other; nothing is stored."""
    newer_release(invoices=ADDITIVE, bills=BREAKING, regions="-- deploy: before\nCREATE TABLE {prefix}region (a text)")
    words = rf"by {SECOND:04d}_bills, .*; deploy the onceward that has {SECOND:04d}_bills$"
    for entry in [*ENTRIES.values(), Inbox.migrate]:
        with Inbox(store_url) as inbox:
            inbox.on("t")(lambda *_: None)
            with pytest.raises(SchemaOutdated, match=words):
                entry(inbox)
    with Inbox(store_url) as inbox:
        (finding,) = examine(inbox)
        assert (finding.level, finding.advice) == ("error", f"deploy the onceward that has {SECOND:04d}_bills")
    assert run(store_url, "SELECT count(*) FROM onceward_ledger") == [(0,)]
    rows = run(store_url, f"SELECT version, deploy FROM onceward_migration WHERE version >= {FIRST} ORDER BY version")
    assert rows == [(FIRST, "before"), (SECOND, "after"), (THIRD, "before")]
