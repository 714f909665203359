"""A table that remembers the order in which effects were written, for promises about order."""

from __future__ import annotations

from onceward import Message
from tests.contract.behaviour import Sql, Steps, wrote
from tests.contract.harness import Shop


def open_journal(shop: Shop) -> None:
    """Create the table."""
    number = "integer PRIMARY KEY AUTOINCREMENT" if shop.dialect == "sqlite" else "bigserial"
    shop.sql(f"CREATE TABLE journal (n {number}, message_id text, key text)")


def journaling(message: Message) -> Steps:
    """A behaviour: one effect, and a line in the journal."""
    yield wrote(message)
    yield line(message)


def line(message: Message) -> Sql:
    """The step that writes the line."""
    return Sql("INSERT INTO journal (message_id, key) VALUES (%s, %s)", (message.id, message.key))


def journal(shop: Shop, key: str | None = None) -> list[str]:
    """The ids in the order of their effects; of one key, or all."""
    rows = shop.sql("SELECT message_id, key FROM journal ORDER BY n")
    return [message_id for message_id, its_key in rows if key in (None, its_key)]
