"""Services that share tables: each gets its own answers, and what was sent is there, for each destination."""

from __future__ import annotations

from simulation.checks.facts import Facts, Violation


def answers_are_ones_own(facts: Facts) -> list[Violation]:
    """Nobody is shown the answer of another service's endpoint."""
    return [
        Violation("another's answer", f"{one.service} was asked {one.id} and {one.of} has answered")
        for one in facts.history.answers
        if one.of != one.service
    ]


def sent_is_there(facts: Facts) -> list[Violation]:
    """A send that returned has its row: this content, for this destination."""
    there = {
        (facts.identity(seq)[1], body["id"], body["destination"], bytes(facts.ledger[seq]["hash"]))
        for seq, body in facts.bodies.items()
        if seq in facts.ledger and facts.is_outgoing(seq)
    }
    return [
        Violation("send vanished", f"{one.service} sent {one.id} to {one.destination!r}")
        for one in facts.history.sent
        if (one.service, one.id, one.destination, one.hash) not in there
    ]
