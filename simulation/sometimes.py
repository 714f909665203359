"""The hard states that a long run must reach; one that was never reached fails it."""

from __future__ import annotations

from collections import Counter

ENOUGH = 200
"""From so many seeds on a counter of zero is a failure."""

WANTED = (
    "receipt: accepted",
    "receipt: duplicate",
    "receipt: mismatch",
    "duplicate while in flight",
    "duplicate after redrive",
    "unknown commit, done",
    "unknown commit, not done",
    "unknown claim let go",
    "database away",
    "lock wait ran out",
    "crash",
    "crash charged",
    "crash in company, not charged",
    "crash between publish and finish",
    "suspect runs alone",
    "parent takes over",
    "take-over",
    "take-over while its handler runs",
    "declared dead, registers anew",
    "zombie finish rejected",
    "zombie settle rejected",
    "stopped and resumed",
    "graceful stop",
    "cancelled",
    "clock jump ahead",
    "clock jump back",
    "parked",
    "stepped back behind a later one",
    "key handed over",
    "dead message left its key",
    "rest of a batch released",
    "claim rides with a finish",
    "group of several",
    "batch of several",
    "postponed, not charged",
    "attempt charged",
    "circuit open",
    "gap: held",
    "gap: deadline over",
    "audit: skip",
    "audit: redrive",
    "audit: discard",
    "audit: release",
    "audit: keep-first",
    "audit: accept-as-new",
    "audit: discard-mismatch",
    "audit: effect happened",
    "audit: effect did not happen",
    "redrive: nothing to do",
    "discard: nothing to do",
    "redrive out of order refused",
    "number brought back",
    "unhandled message adopted",
    "unhandled message handed to others",
    "case handed on with its message",
    "outdated catalog",
    "inline: in one transaction",
    "inline: finished",
    "inline: key busy",
    "inline: stored first",
    "inline: known after failure",
    "once: needs to be alone",
    "once: outcome unknown",
    "once: record found",
)


def missing(counters: Counter[str], wanted: tuple[str, ...] = WANTED) -> list[str]:
    """States that were never reached."""
    return [name for name in wanted if not counters[name]]
