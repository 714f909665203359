"""I4: outgoing rows exist exactly where the handler committed; each is published, under one id, in order."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

from simulation.checks.facts import Facts, Violation
from simulation.checks.identity import microseconds
from simulation.history import Publication

PROMPT = 15.0
"""Seconds after which a destination that takes everything must have a message: some lanes, some rests, a stop."""


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
    unknown = [cause for cause in causes if cause is not None and cause not in facts.ledger]
    return found + [Violation("outbox", f"an outgoing row of message {cause}, which is not there") for cause in unknown]


Address = tuple[str, str, str]
"""(source, id, destination) of an outgoing message."""


def _address(facts: Facts, seq: int) -> Address:
    body = facts.bodies[seq]
    return facts.names[facts.ledger[seq]["source"]], body["id"], body["destination"]


def _published(one: Publication) -> Address:
    return one.source, one.id, one.destination


def published_at_least_once(facts: Facts) -> list[Violation]:
    """What is finished was published; what was published was committed before."""
    published = {_published(one) for one in facts.history.publications}
    known = {_address(facts, seq) for seq in facts.ledger if facts.is_outgoing(seq)}
    return (
        [
            Violation("not published", f"outgoing message {seq} is finished and was never published")
            for seq in facts.ledger
            if facts.is_outgoing(seq) and facts.done(seq) and _address(facts, seq) not in published
        ]
        + [
            Violation("published early", f"{one.id[:12]} was published without being committed")
            for one in facts.history.publications
            if not one.committed or _published(one) not in known
        ]
        + [
            Violation("wrong sink", f"{one.id[:12]} is for {one.destination!r} and went to {one.sink!r}")
            for one in facts.history.publications
            if one.sink not in {"", one.destination}
        ]
    )


def nobody_is_held_up(facts: Facts) -> list[Violation]:
    """One destination that hangs is no reason for another to wait."""
    first: dict[Address, int] = {}
    for one in facts.history.publications:
        first.setdefault(_published(one), one.at)
    found = []
    for seq in facts.ledger:
        if not facts.is_outgoing(seq) or facts.bodies[seq]["destination"] not in facts.history.prompt:
            continue
        sent = microseconds(facts.ledger[seq]["received_at"])
        until = first.get(_address(facts, seq), facts.history.ended_at)
        waited = (until - sent - _in_dead_hands(facts, seq, sent, until)) / 1_000_000
        if waited > PROMPT:
            found.append(Violation("held up", f"outgoing {seq} waited for {waited:.0f} s"))
    return found


def _in_dead_hands(facts: Facts, seq: int, began: int, ended: int) -> int:
    """For how long in a span it, or one ahead of it in its key, was claimed by a process that had died.

    Such a claim stays until the lease is over: that is the promise, and no destination is to blame.
    """
    ahead = [one for one in facts.ledger if one < seq and facts.is_outgoing(one) and _same_line(facts, one, seq)]
    spans = []
    for one in (*ahead, seq):
        held = [(row["worker"], row["at"]) for row in facts.attempts[one] if row["kind"] == "crash"]
        if one in facts.queue and facts.queue[one]["token"] is not None:
            held.append((facts.queue[one]["worker"], ended))
        deaths = facts.history.deaths
        spans += [(max(deaths[worker], began), min(at, ended)) for worker, at in held if worker in deaths]
    total, last = 0, began
    for start, end in sorted(spans):  # they may overlap
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def published_in_order(facts: Facts) -> list[Violation]:
    """First publications of a key are in the order in which they were sent.

    One that a failover has undone in the database counts: outside it has happened, and is repeated later. Not so for a
    message that the failover took with it: its handler sends it anew, in an order of its own.
    """
    found = []
    happened = sorted((*facts.history.taken_back, *facts.history.publications), key=lambda one: one.step)
    rows = {_address(facts, seq): seq for seq in facts.ledger if facts.is_outgoing(seq)}
    lines: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for one in happened:
        seq = rows.get(_published(one))
        if seq is not None and one.key is not None and seq not in lines[one.destination, one.key]:
            lines[one.destination, one.key].append(seq)
    for line in lines.values():
        chain = [seq for seq in line if not facts.was(seq, "unblock")]
        for earlier, later in itertools.pairwise(chain):
            same = facts.history.store == "sqlite" or facts.bodies[earlier]["cause"] == facts.bodies[later]["cause"]
            if earlier > later and same:
                found.append(Violation("publish order", f"outgoing {earlier} was published before {later}"))
    published = {rows.get(_published(one)) for one in happened}
    for seq in rows.values():
        ahead = [other for other in rows.values() if other < seq and _same_line(facts, other, seq)]
        if seq in published and any(
            other not in published and not facts.was(other, "unblock", "discard") for other in ahead
        ):
            found.append(Violation("publish order", f"outgoing {seq} was published before one ahead of it"))
    return found


def _same_line(facts: Facts, first: int, second: int) -> bool:
    one, two = facts.bodies[first], facts.bodies[second]
    together = facts.history.store == "sqlite" or one["cause"] == two["cause"]
    return together and one["key"] is not None and (one["destination"], one["key"]) == (two["destination"], two["key"])
