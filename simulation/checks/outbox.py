"""I4: outgoing rows exist exactly where the handler committed; each is published, under one id, in order."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

from simulation.checks.facts import Facts, Violation


def sent_iff_committed(facts: Facts) -> list[Violation]:
    """A handler that sends n messages leaves n outgoing rows where it committed, and none where it did not."""
    found = []
    causes = Counter(
        facts.bodies[seq]["cause"] for seq in facts.ledger if facts.is_outgoing(seq) and seq in facts.bodies
    )
    for seq in facts.ledger:
        if facts.is_outgoing(seq):
            continue
        kind = facts.bodies[seq]["type"] if seq in facts.bodies else ""
        wanted = facts.history.sends.get(kind, 0) * min(1, len(facts.effects[seq]))
        if causes[seq] != wanted:
            found.append(Violation("outbox", f"message {seq} has {causes[seq]} outgoing rows, expected {wanted}"))
    unknown = [cause for cause in causes if cause not in facts.ledger]
    return found + [Violation("outbox", f"an outgoing row of message {cause}, which is not there") for cause in unknown]


def published_at_least_once(facts: Facts) -> list[Violation]:
    """What is finished was published; what was published was committed before."""
    published = {one.id for one in facts.history.publications}
    known = {facts.bodies[seq]["id"] for seq in facts.ledger if facts.is_outgoing(seq)}
    return [
        Violation("not published", f"outgoing message {seq} is finished and was never published")
        for seq in facts.ledger
        if facts.is_outgoing(seq) and facts.done(seq) and facts.bodies[seq]["id"] not in published
    ] + [
        Violation("published early", f"{one.id[:12]} was published without being committed")
        for one in facts.history.publications
        if not one.committed or one.id not in known
    ]


def published_in_order(facts: Facts) -> list[Violation]:
    """First publications of a key are in the order in which they were sent."""
    found = []
    rows = {facts.bodies[seq]["id"]: seq for seq in facts.ledger if facts.is_outgoing(seq)}
    lines: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for one in facts.history.publications:
        seq = rows.get(one.id)
        if seq is not None and one.key is not None and seq not in lines[one.destination, one.key]:
            lines[one.destination, one.key].append(seq)
    for line in lines.values():
        chain = [seq for seq in line if not facts.was(seq, "release")]
        for earlier, later in itertools.pairwise(chain):
            same = facts.history.store == "sqlite" or facts.bodies[earlier]["cause"] == facts.bodies[later]["cause"]
            if earlier > later and same:
                found.append(Violation("publish order", f"outgoing {earlier} was published before {later}"))
    for seq in rows.values():
        ahead = [other for other in rows.values() if other < seq and _same_line(facts, other, seq)]
        published = {rows.get(one.id) for one in facts.history.publications}
        if seq in published and any(
            other not in published and not facts.was(other, "release", "discard") for other in ahead
        ):
            found.append(Violation("publish order", f"outgoing {seq} was published before one ahead of it"))
    return found


def _same_line(facts: Facts, first: int, second: int) -> bool:
    one, two = facts.bodies[first], facts.bodies[second]
    together = facts.history.store == "sqlite" or one["cause"] == two["cause"]
    return together and one["key"] is not None and (one["destination"], one["key"]) == (two["destination"], two["key"])
