"""A table that remembers the order in which effects were written, for promises about order."""

from __future__ import annotations

from onceward import Message
from tests.contract.behaviour import Sql, Steps, wrote
from tests.contract.harness import Shop

NUMBERED = {
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
    "postgres": "bigserial",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
}


def open_journal(shop: Shop) -> None:
    """Create the table."""
    shop.sql(f"CREATE TABLE journal (n {NUMBERED[shop.dialect]}, message_id text, key_of text)")


def journaling(message: Message) -> Steps:
    """A behaviour: one effect, and a line in the journal."""
    yield wrote(message)
    yield line(message)


def line(message: Message) -> Sql:
    """The step that writes the line."""
    return Sql("INSERT INTO journal (message_id, key_of) VALUES (%s, %s)", (message.id, message.key))


def journal(shop: Shop, key: str | None = None) -> list[str]:
    """The ids in the order of their effects; of one key, or all."""
    rows = shop.sql("SELECT message_id, key_of FROM journal ORDER BY n")
    return [message_id for message_id, its_key in rows if key in (None, its_key)]
