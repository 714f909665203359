"""I13: every action of a person has its line in the audit, and no line is without its action."""

from __future__ import annotations

from collections import Counter

from simulation.checks.facts import CASE, Facts, Violation


def every_action_is_written_down(facts: Facts) -> list[Violation]:
    """Between the actions that were answered and those plus the unanswered ones."""
    found = []
    done: Counter[tuple[str, int]] = Counter()
    unknown: Counter[tuple[str, int]] = Counter()
    for action in facts.history.actions:
        name = (action.name, 0) if action.seq < 0 else (action.name, action.seq)
        if action.answer == "done":
            done[name] += 1
        elif action.answer == "unknown":
            unknown[name] += 1
    lines: Counter[tuple[str, int]] = Counter()
    for row in facts.tables["audit"]:
        if row["actor"] != "onceward":
            lines[row["action"], 0 if row["reason"] == CASE else row["seq"]] += 1
    for name in done.keys() | unknown.keys() | lines.keys():
        least = done[name]
        # The first try of a retried action may have been committed unanswered, and has its line all the same.
        most = done[name] + unknown[name] + _retried(facts, name)
        if not least <= lines[name] <= most:
            found.append(Violation("audit", f"{name}: {lines[name]} lines, expected {least} to {most}"))
    for seq, rows in facts.audits.items():
        discards = [row for row in rows if row["action"] == "discard"]
        if discards and seq in facts.queue:
            found.append(Violation("audit", f"message {seq} was discarded and is still queued"))
    return found


def _retried(facts: Facts, name: tuple[str, int]) -> int:
    return sum(1 for one in facts.history.actions if one.retried and (one.name, max(one.seq, 0)) == name)
