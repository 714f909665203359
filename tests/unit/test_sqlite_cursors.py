"""A connection that lives for months does not grow with every statement."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from onceward import Inbox, Message


def noted() -> int:
    gc.collect()
    return sum(type(one) is weakref.ref for one in gc.get_objects())


def test_what_a_connection_remembers_of_its_cursors_is_bounded(tmp_path: Path) -> None:
    """Ours and the handler's: thousands of statements leave a few hundred notes at most."""
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}")
    inbox.migrate()

    @inbox.on("t")
    def handle(message: Message, tx: object) -> None:
        for number in range(20):
            tx.execute("SELECT ?", [number]).fetchall()  # type: ignore[attr-defined] # it is a connection
        assert message.id

    def work(first: int) -> None:
        for number in range(first, first + 100):
            inbox.receive(source="s", id=f"m{number}", type="t", data=1)
        inbox.drain()

    work(0)
    before = noted()
    work(100)
    assert noted() - before < 500
    inbox.close()
