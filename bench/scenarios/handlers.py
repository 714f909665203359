"""The inbox of the scenarios: an effect is a row, and whoever listens hears of it when it is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceward import Inbox, Message, Settings

SLOW_SECONDS = 0.1
LEASE = timedelta(seconds=2)
"""How long the claims of a process that was killed are its own; all else is as by default."""
TABLES = """
    CREATE TABLE effect (number bigint NOT NULL);
    CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_notify('done', NEW.number::text); RETURN NULL; END $$;
    CREATE TRIGGER announce AFTER INSERT ON effect FOR EACH ROW EXECUTE FUNCTION announce();
"""


class Refused(Exception):
    """What a failing handler raises."""


def _no_hold() -> None:
    """Nothing to wait for."""


def effect(message: Message, tx: Any) -> None:
    """The effect of a message; it has no unique key that would hide a second one."""
    tx.execute("INSERT INTO effect VALUES (%s)", [message.data["number"]])


def inbox_at(url: str, hold: Callable[[], object] = _no_hold) -> Inbox:
    """The inbox; `hold` is called for messages that say so."""
    inbox = Inbox(url, settings=Settings(lease=LEASE))
    inbox.on("quick")(effect)

    @inbox.on("slow")
    def slow(message: Message, tx: Any) -> None:
        time.sleep(SLOW_SECONDS)
        effect(message, tx)

    @inbox.on("failing")
    def failing(message: Message, _tx: Any) -> None:
        raise Refused(str(message.data["number"]))

    def held(message: Message, tx: Any) -> None:
        if message.data.get("hold"):
            hold()
        effect(message, tx)

    inbox.on("isolated")(held)
    inbox.on("keyed", key="key")(held)
    return inbox
