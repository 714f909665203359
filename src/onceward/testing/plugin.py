"""Fixtures for pytest, there when onceward is installed: `inbox`, `fixed_clock`, `drain`, `deliver_twice`, `prove`.

For SQLAlchemy `inbox_engine`; for Django `django_inbox`, which is the project's, and `prove_django` on it.

Invariant: no two tests share an inbox. Override `inbox` in your conftest.py to use your own; the others follow it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack

import pytest

from onceward.domain import identity
from onceward.errors import SchemaMissing
from onceward.inbox import Inbox
from onceward.message import Arguments, Receipt
from onceward.runtime.runner import perform
from onceward.testing.clock import FixedClock
from onceward.testing.proof import prove_exactly_once
from onceward.testing.report import Report
from onceward.testing.restore import keeper_of

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
"""What SQLAlchemy calls the drivers that onceward uses where a URL names none."""


class DeliverTwice(Protocol):
    """What `deliver_twice` is."""

    def __call__(self, **message: Unpack[Arguments]) -> tuple[Receipt, Receipt]:
        """Deliver a message, and the same again; returns both receipts."""


class Prove(Protocol):
    """What `prove` is."""

    def __call__(self, message: Mapping[str, Any], **options: Any) -> Report:
        """Run `prove_exactly_once` on the inbox of the test, which fails with the report where it is not so."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare where inboxes are made."""
    parser.addini(
        "onceward_store",
        "URL of a disposable database for the `inbox` fixture (or ONCEWARD_STORE in the environment); "
        "default: a temporary SQLite file for each test",
        default="",
    )


@pytest.fixture
def inbox(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Inbox]:
    """A new, migrated inbox: in a temporary SQLite file, or with tables of its own in the configured database."""
    url = os.environ.get("ONCEWARD_STORE") or str(pytestconfig.getini("onceward_store"))
    prefix = f"t{identity.new_id()[:12]}_" if url else "onceward_"
    found = Inbox(url or f"sqlite:///{tmp_path / 'onceward.db'}", prefix=prefix)
    found.migrate()
    yield found
    found.close()
    if url:
        _drop_tables(found)


def _drop_tables(inbox: Inbox) -> None:
    try:
        commands = perform(inbox.store, inbox.context.moves.reports.debris)
    except SchemaMissing:  # the test has removed them itself
        commands = []
    finally:
        inbox.store.close()
    with inbox.transaction() as connection:
        for command in commands:
            connection.execute(command)


@pytest.fixture
def fixed_clock(inbox: Inbox) -> Iterator[FixedClock]:
    """The clock of the inbox, standing still: `fixed_clock.advance(hours=1)` makes retries due. Only on SQLite."""
    clock = FixedClock(inbox)
    yield clock
    clock.release()


@pytest.fixture
def drain(inbox: Inbox) -> Callable[..., Any]:
    """Run what is due; in an async test it is awaited. Returns how many messages were finished."""

    def drained(*, concurrency: int = 1) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return inbox.drain(concurrency=concurrency)
        return inbox.adrain(concurrency=concurrency)

    return drained


@pytest.fixture
def deliver_twice(inbox: Inbox) -> DeliverTwice:
    """Deliver a message twice in a row, as senders do; fails unless the second is recognised."""

    def deliver(**message: Unpack[Arguments]) -> tuple[Receipt, Receipt]:
        first, second = inbox.receive(**message), inbox.receive(**message)
        if second.status != "duplicate" or second.seq != first.seq:
            pytest.fail(f"the second delivery was not recognised: {first}, {second}")
        return first, second

    return deliver


@pytest.fixture
def prove(inbox: Inbox) -> Prove:
    """`prove_exactly_once` on the inbox of this test, which fails with the report where it is not exactly once."""
    return _proving(inbox)


@pytest.fixture
def inbox_engine(inbox: Inbox) -> Iterator[Any]:
    """An engine of SQLAlchemy on the database of `inbox`, to make tables and to look at them."""
    from sqlalchemy import create_engine  # noqa: PLC0415 - for those who have it

    scheme, _, rest = inbox.url.partition("://")
    engine = create_engine(f"{_DRIVERS.get(scheme, scheme)}://{rest}")
    yield engine
    engine.dispose()


@pytest.fixture
def django_inbox(transactional_db: None) -> Iterator[Inbox]:  # noqa: ARG001 - pytest-django's
    """The inbox of the Django project in its test database, which is put back afterwards, our tables included.

    Needs pytest-django. Of a `TestCase`, and without it of `django_db`, the transaction is never committed.
    """
    from onceward.integrations.django.project import project_inbox  # noqa: PLC0415 - for those who have it

    found = project_inbox()
    with found.transaction() as connection:
        keeper = keeper_of(found.store, connection)
    found.context.forget()
    yield found
    found.close()
    with found.transaction() as connection:
        keeper.restore(connection)
    found.context.forget()


@pytest.fixture
def prove_django(django_inbox: Inbox) -> Prove:
    """As `prove`, on the inbox of the Django project; `check` has no arguments, and asks the ORM."""
    return _proving(django_inbox)


def _proving(inbox: Inbox) -> Prove:
    def proven(message: Mapping[str, Any], **options: Any) -> Report:
        report = partial(prove_exactly_once, inbox)(message, **options)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return proven
