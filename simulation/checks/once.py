"""`message.once`: no call without its committed intent, and none twice unless somebody said it did not happen."""

from __future__ import annotations

from collections import Counter

from simulation.checks.facts import Facts, Violation


def calls_are_intended_and_single(facts: Facts) -> list[Violation]:
    """Calls that are not idempotent happen at most once each."""
    found = [
        Violation("call without intent", f"{call.key[:12]} at step {call.step}")
        for call in facts.history.calls
        if not call.intended
    ]
    happened = Counter(call.key for call in facts.history.calls if not call.refused and not call.idempotent)
    # One that was tried again and answered "nothing" may have been committed by its first try.
    excuses = sum(
        1
        for one in facts.history.actions
        if one.name == "effect did not happen" and (one.answer in ("done", "unknown") or one.retried)
    )
    for key, count in happened.items():
        if count > 1 + excuses:
            found.append(Violation("double call", f"{key[:12]} was called {count} times"))
    return found
