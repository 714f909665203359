"""`manage.py migrate` makes our tables: for each inbox, once, with what Django knows of them (R56)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core import checks  # noqa: TC002 - as the rest of Django
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor

from onceward import Inbox
from onceward.errors import SchemaMissing
from onceward.integrations.django import DjangoInbox, tables
from onceward.integrations.django.checks import check_project, check_settings
from onceward.integrations.django.project import SETTING, project_inbox
from onceward.testing.process import apart, together
from tests.integrations.django.project import database

NEWEST = tables.names()[-1]


@pytest.fixture
def inbox(store_url: str) -> Iterator[DjangoInbox]:
    """One in an empty database."""
    with database(store_url), DjangoInbox() as inbox:
        yield inbox


def migrate(*words: str) -> str:
    """Run `manage.py migrate`."""
    out = io.StringIO()
    call_command("migrate", *words, stdout=out)
    return out.getvalue()


def test_migrating_makes_the_tables_and_nothing_is_left_to_do(inbox: DjangoInbox) -> None:
    with pytest.raises(SchemaMissing, match=r"no onceward tables; create them: python manage.py migrate"):
        inbox.receive(source="s", id="a", type="t")
    assert f"Applying onceward.{NEWEST}... OK" in migrate()
    assert inbox.migrate() == []
    assert inbox.receive(source="s", id="a", type="t").status == "accepted"
    assert "No migrations to apply" in migrate()


def test_what_the_command_line_made_is_known(inbox: DjangoInbox) -> None:
    inbox.migrate()
    assert inbox.receive(source="s", id="a", type="t").status == "accepted"
    assert f"Applying onceward.{NEWEST}... OK" in migrate()
    assert inbox.receive(source="s", id="a", type="t").status == "duplicate"


def test_going_back_forgets_nothing(inbox: DjangoInbox) -> None:
    """Older code works with newer tables, and an empty ledger would let every copy take effect again."""
    migrate()
    inbox.receive(source="s", id="a", type="t")
    assert "Unapplying onceward.0001_core... OK" in migrate("onceward", "zero")
    assert inbox.receive(source="s", id="a", type="t").status == "duplicate"
    migrate()
    assert inbox.receive(source="s", id="a", type="t").status == "duplicate"


def test_one_version_after_the_other(inbox: DjangoInbox) -> None:
    """As in a release that brings one of ours."""
    migrate("onceward", "0001")
    assert tables.version_in("default", "onceward_") == 1
    plan = io.StringIO()
    call_command("migrate", "--plan", stdout=plan)
    assert "onceward's tables, version 2" in plan.getvalue()
    migrate()
    assert inbox.migrate() == []


def test_two_migrators_at_once(inbox: DjangoInbox) -> None:
    """The second waits, and finds nothing to do."""
    migrate("contenttypes")

    def migrating() -> None:
        try:
            executor = MigrationExecutor(connection)
            executor.migrate([("onceward", NEWEST)])
        finally:
            connection.close()

    together(migrating, migrating, migrating)
    assert inbox.migrate() == []
    assert apart(lambda: inbox.receive(source="s", id="a", type="t").status) == "accepted"


def test_a_migration_that_fails_leaves_nothing(inbox: DjangoInbox) -> None:
    migrate("contenttypes")
    with suppress(ZeroDivisionError), transaction.atomic():
        assert tables.make(inbox)
        raise ZeroDivisionError
    assert tables.version_in("default", inbox.store.prefix) == 0


def test_an_inbox_that_comes_later_gets_its_tables(inbox: DjangoInbox) -> None:
    migrate()
    with DjangoInbox(prefix="other_") as other:
        migrate()
        assert other.migrate() == []
    assert inbox.store.prefix != "other_"


def test_another_database_than_the_inboxs_gets_none(inbox: DjangoInbox, tmp_path: Any) -> None:
    with database(f"sqlite:///{tmp_path / 'other.db'}", "other"):
        migrate("--database", "other")
        assert tables.version_in("other", inbox.store.prefix) == 0


def test_the_sql_can_be_read_before(inbox: DjangoInbox) -> None:
    out = io.StringIO()
    call_command("sqlmigrate", "onceward", "0001", stdout=out)
    assert "CREATE TABLE onceward_ledger" in out.getvalue()
    assert tables.version_in("default", inbox.store.prefix) == 0


def test_django_finds_nothing_to_change(inbox: DjangoInbox) -> None:
    """Of the models that the admin's permissions are about; and they are in no table."""
    call_command("makemigrations", "onceward", "--check", "--dry-run", stdout=io.StringIO())
    migrate()
    inbox.receive(source="s", id="a", type="t")
    out = io.StringIO()
    call_command("dumpdata", "onceward", stdout=out)
    assert out.getvalue().strip() == "[]"


def found(*more: checks.CheckMessage) -> list[str]:
    """What is wrong with the settings, by number."""
    return [str(one.id) for one in (*check_settings(), *more)]


def test_settings_that_an_inbox_cannot_live_with(sqlite_url: str, postgres_url: str) -> None:
    """Each with what to do."""
    immediate = {"transaction_mode": "IMMEDIATE"}
    for url, more, wanted in (
        (sqlite_url, {}, ["onceward.W005"]),
        (sqlite_url, {"OPTIONS": immediate}, []),
        (sqlite_url, {"OPTIONS": {**immediate, "init_command": "PRAGMA cache_size = 1"}}, ["onceward.W006"]),
        (sqlite_url, {"OPTIONS": immediate, "ATOMIC_REQUESTS": True}, ["onceward.I001"]),
        ("sqlite:///:memory:", {"OPTIONS": immediate}, ["onceward.W004"]),
        (postgres_url, {}, []),
        (postgres_url, {"AUTOCOMMIT": False}, ["onceward.E002"]),
        (postgres_url, {"OPTIONS": {"isolation_level": 4}}, ["onceward.W007"]),
        (postgres_url, {"OPTIONS": {"isolation_level": 2}}, []),
    ):
        with database(url, **more), DjangoInbox():
            assert found() == wanted, (url, more)
            assert all(one.hint for one in check_settings())


def test_a_database_without_a_store_is_an_error(sqlite_url: str) -> None:
    with database(sqlite_url), DjangoInbox():
        connections["default"].vendor = "oracle"
        (wrong,) = check_settings()
    assert (wrong.id, "has no store for; use PostgreSQL, " in str(wrong.msg)) == ("onceward.E001", True)


def test_missing_tables_are_said(inbox: DjangoInbox) -> None:
    out = io.StringIO()
    call_command("check", "--database", "default", stderr=out, stdout=out)
    assert "onceward.W003) the onceward tables 'onceward_' in DATABASES['default'] are not there yet" in out.getvalue()
    migrate()
    out = io.StringIO()
    call_command("check", "--database", "default", stderr=out, stdout=out)
    assert "W003" not in out.getvalue()
    assert inbox.using == "default"


def test_a_plain_inbox_is_no_home_for_the_orm(sqlite_url: str, settings_of_django: Any) -> None:
    """Its handlers' ORM works on another connection."""
    settings_of_django.ONCEWARD_INBOX = f"{__name__}:plain"
    globals()["plain"] = Inbox(sqlite_url)
    try:
        assert [one.id for one in check_project()] == ["onceward.W002"]
        assert project_inbox() is globals()["plain"]
    finally:
        globals().pop("plain").close()
        del settings_of_django.ONCEWARD_INBOX


@pytest.fixture
def settings_of_django() -> Any:
    """Changed and put back by the test."""
    from django.conf import settings  # noqa: PLC0415 - once it is set up

    return settings


def test_which_inbox_the_project_has(sqlite_url: str, settings_of_django: Any) -> None:
    """The only one, or that of the setting."""
    with database(sqlite_url), DjangoInbox() as first, DjangoInbox(prefix="two_"):
        with pytest.raises(Exception, match=f"inboxes; name the one of the commands in the settings: {SETTING}"):
            project_inbox()
        globals()["first"] = first
        settings_of_django.ONCEWARD_INBOX = f"{__name__}:first"
        try:
            assert project_inbox() is first
            for wrong, sentence in (("first", "must be of the form"), (f"{__name__}:NEWEST", "is no inbox; write")):
                settings_of_django.ONCEWARD_INBOX = wrong
                with pytest.raises(Exception, match=sentence):
                    project_inbox()
        finally:
            del settings_of_django.ONCEWARD_INBOX
            del globals()["first"]
