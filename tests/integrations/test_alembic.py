"""Alembic makes our tables in its own migration, with the program's, and leaves them alone when it compares."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, MetaData, create_engine, inspect, text

from onceward import Inbox
from onceward.integrations.alembic import include_name, upgrade
from tests.integrations.shop import sync_url


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    """The program's own."""
    engine = create_engine(sync_url(store_url))
    yield engine
    engine.dispose()


def test_our_tables_are_made_in_the_programs_migration(store_url: str, engine: Engine) -> None:
    """Once, whatever calls it again; with the program's own, or not at all."""
    with Inbox(store_url, prefix="shop_inbox_") as inbox:
        with engine.begin() as connection:
            op = Operations(MigrationContext.configure(connection))
            op.execute(text("CREATE TABLE orders (id integer)"))
            made = upgrade(op, inbox)
            assert upgrade(op, inbox) == []
        assert made
        assert inbox.migrate() == []
        inbox.on("t")(lambda _, tx: tx.execute("INSERT INTO orders VALUES (1)") and None)
        inbox.receive(source="s", id="1", type="t")
        assert inbox.drain() == 1


def test_a_migration_that_fails_leaves_none_of_our_tables(postgres_url: str) -> None:
    engine = create_engine(sync_url(postgres_url))
    with Inbox(postgres_url) as inbox:
        with engine.connect() as connection:
            assert upgrade(Operations(MigrationContext.configure(connection)), inbox)
            connection.rollback()
        assert inspect(engine).get_table_names() == []
    engine.dispose()


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection")  # of our indexes, where nothing keeps it off them
def test_autogenerate_keeps_off_our_tables(store_url: str, engine: Engine) -> None:
    """It would drop them, for the program's metadata has none of them; what else is there is still found."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE forgotten (id integer)"))

        def dropped(**options: Any) -> set[str]:
            with engine.connect() as connection:
                context = MigrationContext.configure(connection, opts=options)
                changes = compare_metadata(context, MetaData())
            return {change[1].name for change in changes if change[0] == "remove_table"}

        assert "onceward_ledger" in dropped()
        assert dropped(include_name=include_name(inbox)) == {"forgotten"}
        assert dropped(include_name=include_name(inbox, lambda name, *_: name != "forgotten")) == set()


def test_offline_it_writes_the_statements_out(postgres_url: str) -> None:
    written = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written, "literal_binds": True}
    )
    with Inbox(postgres_url) as inbox:
        assert upgrade(Operations(context), inbox) == []
        with inbox.transaction() as tx:
            tx.execute(written.getvalue().encode())
        assert inbox.migrate() == []
