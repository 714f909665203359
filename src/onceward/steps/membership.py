"""Membership: a process registers, renews its lease, deregisters; the claims of one that died are taken over.

Invariant: claims come off and the worker row goes in one transaction, so a process that was declared dead can
neither finish what it held nor claim anything new. A worker number is random and never used twice, not even when the
database has gone back to an earlier state, and a heartbeat also says whose it is. A message is charged for a crash
only if it was the only one its process held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from onceward.domain import identity
from onceward.domain.activity import Series
from onceward.domain.circuits import OpenCircuit, told
from onceward.domain.fingerprint import fingerprint
from onceward.domain.selection import EVERYTHING, Selection
from onceward.domain.text import count
from onceward.errors import StoreError
from onceward.flow import ROLLBACK, Flow
from onceward.steps.context import Context
from onceward.steps.isolated import ALONE, APART
from onceward.stores.moves.membership import Charge, Crash, Heartbeat, Member, NewWorker
from onceward.stores.moves.queue import AttemptRow

log = logging.getLogger("onceward")


def register(  # noqa: PLR0913 - who it is
    context: Context,
    *,
    process: str,
    host: str,
    pid: int,
    inline: bool,
    lanes: int = 0,
    selection: Selection = EVERYTHING,
    draw: Callable[[], int] = identity.new_number,
) -> Flow[int]:
    """Make this process known, and take over the process that had its name before; returns its worker number."""
    moves = context.moves.membership
    while True:
        registered = NewWorker(
            worker=draw(),
            process=process,
            host=host,
            pid=pid,
            code_version=context.code_version,
            handles=context.registry.handles(selection),
            lanes=lanes,
            inline=inline,
            lease=context.settings.lease.total_seconds(),
        )
        crashes = _Crashes(context)
        is_ours = yield from moves.register(registered, lambda member: _replaced(member, process), crashes.charge)
        if is_ours:  # else another process of this name has registered in between
            yield from crashes.count()
            return registered.worker


def _replaced(member: Member, process: str) -> str:
    return f"process {member.pid} on {member.host} was replaced by a new one of the same name, {process}"


def heartbeat(context: Context, worker: int, process: str, *, inline: bool) -> Flow[bool]:
    """Renew the lease, and tell which circuits are open; False when this process was declared dead."""
    lease = context.settings.lease.total_seconds()
    circuits = told(OpenCircuit(one.consumer, one.type, one.pause_left) for one in context.registry if one.is_paused)
    return (yield from context.moves.membership.heartbeat(Heartbeat(worker, process, lease, inline, circuits)))


def namesakes(context: Context, process: str) -> Flow[list[Member]]:
    """The processes that are registered under a name."""
    return (yield from context.moves.membership.members_named(process))


def take_over_lapsed(context: Context, worker: int) -> Flow[int]:
    """Take over processes whose lease has run out; returns how many workers that were."""
    crashes = _Crashes(context)
    taken = yield from context.moves.membership.take_over_lapsed(worker, _lapsed, crashes.charge)
    yield from crashes.count()
    return taken


def _lapsed(member: Member) -> str:
    return f"process {member.pid} on {member.host} stopped renewing its lease"


def take_over_process(context: Context, process: str, cause: str) -> Flow[int]:
    """Take over a process that is known to be dead, by its parent; returns how many workers that were."""
    crashes = _Crashes(context)
    taken = yield from context.moves.membership.take_over_process(process, cause, crashes.charge)
    yield from crashes.count()
    return taken


def deregister(context: Context, worker: int) -> Flow[None]:
    """Leave: whatever is still claimed is given back, uncharged."""
    yield from context.moves.membership.deregister(worker)


def unclaim_strays(context: Context, worker: int, held: Callable[[], set[int]]) -> Flow[int]:
    """Give back, uncharged, claims in our name that no lane holds; returns how many claims they were.

    Their lane is gone, or the database went back to a moment before it finished them.
    """
    claimed = yield from context.moves.membership.tokens(worker)
    # Asked only now: a lane holds a token before it is written, and until its rows are known to be gone.
    strays = claimed - held()
    if strays:
        yield from context.moves.claims.unclaim_tokens(worker, sorted(strays))
    return len(strays)


class _Crashes:
    """What a take-over finds: how it is charged, and its place in the history once that is committed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._charged: dict[int, Crash] = {}
        self.charge = Charge(context.settings.crash_limit, self._row)

    def _row(self, crash: Crash) -> AttemptRow:
        if crash.held == 1:
            self._charged[crash.seq] = crash
        return _crash_row(self._context, crash)

    def count(self) -> Flow[None]:
        """Count them in the history, which is for looking back only: no failure here is another one's."""
        if not self._context.activity.is_kept:
            return
        try:
            for crash in self._charged.values():
                found = yield from self._context.moves.reports.message(crash.seq)
                if found is not None:
                    spent = crash.crashes + 1 >= self._context.settings.crash_limit
                    series = Series(found.consumer, found.source, found.destination or found.type or "")
                    self._context.activity.count("dead" if spent else "failed", series)
        except StoreError as error:
            log.debug("crashes are missing in the history: %s", error)
            with suppress(StoreError):  # the next one on this connection finds it as it must be, or broken
                yield ROLLBACK


def _runs_next(level: int) -> str:
    if level == ALONE:
        return "it runs alone in its process next"
    if level == APART:
        return "it runs without another isolated message next"
    return f"it runs with at most {count(level - 2, 'other isolated message')} next"


def _crash_row(context: Context, crash: Crash) -> AttemptRow:
    limit = context.settings.crash_limit
    if crash.held == 1:
        text = f"crash {crash.crashes + 1} of {limit}: {crash.cause} while it handled this message alone"
    else:
        text = f"{crash.cause} while it held {crash.held} messages; not charged, {_runs_next(crash.isolation)}"
    return {
        "seq": crash.seq,
        "attempt": crash.attempts,
        "kind": "crash",
        "charged": crash.held == 1,
        "error": text,
        "traceback": None,
        "worker": crash.worker,
        "code_version": context.code_version,
        "fingerprint": fingerprint(text),
    }
