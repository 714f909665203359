"""The end of a lease without the wait for it."""

from __future__ import annotations

from onceward import Inbox


def bury(inbox: Inbox, alive: int) -> None:
    """Let the leases of every process but this one be over now: killed ones keep theirs for a quarter of a minute."""
    over = "0" if inbox.store.dialect == "sqlite" else "'epoch'"
    with inbox.transaction() as tx:
        tx.execute(f"UPDATE {inbox.context.prefix}worker SET alive_until = {over} WHERE pid <> {alive}")
