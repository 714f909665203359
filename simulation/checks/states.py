"""I9, I10: nothing is stuck, every delivery is settled, and no step ends in a way nobody foresaw."""

from __future__ import annotations

from simulation.checks.facts import Facts, Violation


def nobody_is_stuck(facts: Facts) -> list[Violation]:
    """Every unfinished row has somebody who moves it next; after the faults nothing is left."""
    found = []
    workers = {row["id"] for row in facts.tables["worker"]}
    rows = facts.queue.values()
    # A row that is held for a missing number moves at its deadline, whoever waits behind it moves then.
    moving = {row["key_hash"] for row in rows if row["state"] != "waiting" or row["due_at"] is not None}
    for row in rows:
        if row["state"] == "waiting" and row["key_hash"] not in moving:
            found.append(Violation("stuck", f"message {row['seq']} waits behind nobody"))
        if row["token"] is not None and row["worker"] not in workers:
            found.append(Violation("stuck", f"message {row['seq']} is claimed by a worker that is gone"))
    if facts.history.mode == "liveness" and not facts.history.drained:
        left = {row["seq"]: row["state"] for row in rows}
        found.append(Violation("stuck", f"not drained: {left}, the broker has {facts.history.unsettled}"))
    return found


def everything_is_settled(facts: Facts) -> list[Violation]:
    """Every delivery is settled exactly once."""
    found = [Violation("settled twice", message_id) for message_id in facts.history.doubly_settled]
    if facts.history.mode == "liveness" and facts.history.drained and facts.history.unsettled:
        found.append(Violation("unsettled", f"the broker still waits for {facts.history.unsettled}"))
    return found


def nothing_unexpected(facts: Facts) -> list[Violation]:
    """No actor ended with an error that its step should have handled; no write got past its guard."""
    found = [Violation("surprise", text) for text in facts.history.surprises]
    found += [Violation(kind, text) for kind, text in facts.history.misdeeds]
    workers = {row["id"] for row in facts.tables["worker"]}
    found += [
        Violation("ghost worker", f"{one} has left and is still there")
        for one in facts.history.departed
        if one in workers
    ]
    return found
