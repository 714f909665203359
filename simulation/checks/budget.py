"""I6: the attempt budget is exact, deaths are justified, and only the guilty are charged."""

from __future__ import annotations

from collections import Counter

from simulation.checks.facts import Facts, Violation
from simulation.history import Row

PERMANENT = (
    "Reject", "VersionGap", "OutcomeUnknown", "InvalidMessage", "ContractViolation", "HandlerNotFound",
    "VersionUnknown",
)  # fmt: skip
NOT_RUN = ("VersionGap", "HandlerNotFound", "VersionUnknown")
"""Charged without having been shown to a handler."""
GUILTY = {"raise", "retry", "reject", "timeout"}
INFRASTRUCTURE = ("StoreUnavailable", "StoreConflict", "ClaimLost", "GuardFailed")
MOST_UNCHARGED = 3
"""Deaths beside others: in company, in a group of isolated messages, apart from them."""


def _charged_since_redrive(facts: Facts, seq: int, kind: str) -> list[Row]:
    since = max((row["at"] for row in facts.audits[seq] if row["action"] == "redrive"), default=-1)
    rows = [row for row in facts.attempts[seq] if row["kind"] == kind and row["charged"]]
    # A redrive and an attempt in the same microsecond cannot be told apart by time; ids of different tables neither.
    return [row for row in rows if row["at"] > since]


def attempts_are_exact(facts: Facts) -> list[Violation]:
    """The count on the row is the number of charged attempts since the last redrive."""
    found = []
    jumped = facts.history.clock_jumped
    for seq, row in facts.queue.items():
        if seq not in facts.ledger:
            found.append(Violation("queue without ledger", f"message {seq} is queued and not in the ledger"))
            continue
        charged = len(_charged_since_redrive(facts, seq, "error"))
        if row["attempts"] != charged and not jumped:
            found.append(Violation("budget", f"message {seq}: {row['attempts']} attempts, {charged} were charged"))
        crashes = len(_charged_since_redrive(facts, seq, "crash"))
        if row["crashes"] != crashes and not jumped:
            found.append(Violation("budget", f"message {seq}: {row['crashes']} crashes, {crashes} were charged"))
    return found


def _budget(facts: Facts, seq: int) -> int:
    return facts.history.budgets.get((facts.consumer(seq), facts.bodies[seq]["type"]), 10**9)


def deaths_are_justified(facts: Facts) -> list[Violation]:
    """Dead exactly at the limit: not before, not later."""
    found = []
    for seq, row in facts.queue.items():
        if seq not in facts.ledger:
            continue
        spent = row["attempts"] >= _budget(facts, seq) or row["crashes"] >= facts.history.crash_limit
        if row["state"] != "dead" and spent:
            found.append(Violation("budget", f"message {seq} has used up its budget and is {row['state']}"))
        if row["state"] == "dead" and not spent:
            errors = [attempt["error"] for attempt in facts.attempts[seq] if attempt["charged"]]
            if not errors or not errors[-1].startswith(PERMANENT):
                found.append(Violation("budget", f"message {seq} is dead before its budget is used up"))
    if not facts.history.clock_jumped:
        found += [
            Violation("budget", f"message {seq} was tried more often than its budget allows")
            for seq in facts.ledger
            if len(_charged_since_redrive(facts, seq, "error")) > _budget(facts, seq)
            or len(_charged_since_redrive(facts, seq, "crash")) > facts.history.crash_limit
        ]
    return found


def charges_are_deserved(facts: Facts) -> list[Violation]:
    """Whoever is charged failed in a call of its own; infrastructure and innocents never are."""
    found = []
    failed = Counter(
        (run.consumer, run.source, run.id) for run in facts.history.runs if run.outcome in GUILTY and run.single
    )
    crashes: Counter[int] = Counter()
    for seq, rows in facts.attempts.items():
        if seq not in facts.ledger:
            found.append(Violation("attempt without ledger", f"an attempt of message {seq}, which is not there"))
            continue
        charged = [row for row in rows if row["charged"]]
        errors = [row for row in charged if row["kind"] == "error" and not row["error"].startswith(NOT_RUN)]
        crashes.update(row["worker"] for row in charged if row["kind"] == "crash")
        if any(row["error"].startswith(INFRASTRUCTURE) for row in errors):
            found.append(Violation("infrastructure charged", f"message {seq} was charged for the database's failure"))
        elif len(errors) > failed[facts.identity(seq)]:
            found.append(Violation("innocent charged", f"message {seq} was charged more often than it failed"))
    for worker, count in crashes.items():
        if count > 1:
            found.append(Violation("innocent charged", f"the death of worker {worker} was charged to {count} messages"))
    return found


def suspicion_ends(facts: Facts) -> list[Violation]:
    """A message has a part in three deaths that nobody is charged with, at most: then it runs alone."""
    found = []
    for seq, rows in facts.attempts.items():
        uncharged = 0
        for row in rows:
            uncharged = uncharged + 1 if row["kind"] == "crash" and not row["charged"] else 0
            if uncharged > MOST_UNCHARGED:
                found.append(Violation("endless suspicion", f"message {seq} has had a part in {uncharged} deaths"))
                break
    return found
