"""The end of a lease without the wait for it."""

from __future__ import annotations

from onceward import Inbox
from onceward.flow import run_sync
from onceward.steps import membership


def bury(inbox: Inbox, alive: int) -> None:
    """Let the leases of every process but this one be over now: killed ones keep theirs for a quarter of a minute."""
    with inbox.transaction() as tx:
        tx.execute(f"UPDATE {inbox.context.prefix}worker SET alive_until = 0 WHERE pid <> {alive}")


def take_over_all(inbox: Inbox) -> None:
    """What a supervisor would do that has seen every process die that is registered."""
    with inbox.transaction() as tx:
        names = [row[0] for row in tx.execute(f"SELECT process FROM {inbox.context.prefix}worker").fetchall()]
    with inbox.store.session() as session:
        for name in names:
            run_sync(membership.take_over_process(inbox.context, name, "killed by the test"), session.perform)
