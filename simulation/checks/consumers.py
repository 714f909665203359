"""A consumer gets every message of its types that came, or got its consumers, after it was subscribed."""

from __future__ import annotations

from simulation.checks.facts import Facts, Violation


def everyone_gets_it(facts: Facts) -> list[Violation]:
    """Nobody is left out who was there when a message came."""
    found = []
    arrivals = _arrivals(facts)
    waited = {seq: step for step, seq in facts.history.placed if seq in facts.ledger}
    for (consumer, kind), since in facts.history.subscribed.items():
        for (source, message_id, message_kind), came in arrivals.items():
            if message_kind == kind and came > since and not facts.find(consumer, source, message_id):
                found.append(Violation("left out", f"{source}/{message_id} never reached {consumer!r}"))
        for seq, step in waited.items():
            _, source, message_id = facts.identity(seq)
            if facts.bodies[seq]["type"] == kind and step > since and not facts.find(consumer, source, message_id):
                found.append(Violation("left out", f"{source}/{message_id} waited, and never reached {consumer!r}"))
    return found


def _arrivals(facts: Facts) -> dict[tuple[str, str, str], int]:
    """When each message first came; one that joined a transaction came when that was committed."""
    first: dict[tuple[str, str, str], int] = {}
    stored = set()
    for one in facts.history.receptions:
        message = (one.source, one.id, one.type)
        came = one.began if one.committed < 0 else one.committed
        first[message] = min(came, first.get(message, came))
        if one.status in {"accepted", "duplicate"}:
            stored.add(message)
    return {message: came for message, came in first.items() if message in stored}
