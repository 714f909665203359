"""`message.once`: no call without its committed intent, and none twice unless somebody said it did not happen."""

from __future__ import annotations

from collections import Counter

from simulation.checks.facts import Facts, Violation
from simulation.history import ExternalCall


def calls_are_intended_and_single(facts: Facts) -> list[Violation]:
    """Calls that are not idempotent happen at most once each."""
    # One that was tried again and answered "nothing" may have been committed by its first try.
    denied = [
        one
        for one in facts.history.actions
        if one.name == "effect did not happen" and (one.answer in ("done", "unknown") or one.retried)
    ]

    def is_denied_before(call: ExternalCall) -> bool:
        return any(one.effect == call.key and one.step <= call.step for one in denied)

    # A process that was stopped between its intent and its call may have lost its message. A person who says "did not
    # happen" then tells the truth, and takes away the intent of a call that comes when the process goes on.
    found = [
        Violation("call without intent", f"{call.key[:12]} at step {call.step}")
        for call in facts.history.calls
        if not call.intended and (call.held or not is_denied_before(call))
    ]
    happened = Counter(call.key for call in facts.history.calls if not call.refused and not call.idempotent)
    for key, count in happened.items():
        if count > 1 + sum(1 for one in denied if one.effect == key):
            found.append(Violation("double call", f"{key[:12]} was called {count} times"))
    return found
