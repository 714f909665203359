"""I5, I8: effects of a key in the order of arrival (or of their numbers), and one holder of a key at a time."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from simulation.checks.facts import Facts, Violation
from simulation.history import Row


def _arrivals(facts: Facts) -> dict[tuple[str, str], tuple[int, int]]:
    """(source, id): when its first reception began, and when the first one ended."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    far = 10**12
    for one in facts.history.receptions:
        began, ended = found.get((one.source, one.id), (far, far))
        over = one.ended if one.status else far
        found[one.source, one.id] = (min(began, one.began), min(ended, over))
    return found


def _joined(facts: Facts) -> dict[int, tuple[int, int]]:
    """Of scheduled messages: a step at which it was not due yet, and one after it had joined its key, by number."""
    far = 10**12
    found = {}
    for seq, body in facts.bodies.items():
        if body.get("due_at") is not None:
            before = [one.step for one in facts.history.holders if one.at < body["due_at"]]
            held = (one.step for one in facts.history.holders if any(claim[3] == seq for claim in one.claims))
            found[seq] = (max(before, default=0), next(held, far))
    return found


def not_before_they_are_due(facts: Facts) -> list[Violation]:
    """A scheduled message neither fails nor finishes before its time."""
    found = []
    for seq, body in facts.bodies.items():
        due = body.get("due_at")
        if due is None:
            continue
        at = [row["finished_at"] for row in facts.finished_in[seq]] + [row["at"] for row in facts.attempts[seq]]
        if at and min(at) < due:
            found.append(Violation("too early", f"message {seq} ran {(due - min(at)) / 1e6:.3f} s before its time"))
    return found


def _left_the_order(facts: Facts, seq: int) -> bool:
    """Whether a person or its handler's policy took the message out of its key."""
    consumer, _, message_id = facts.identity(seq)
    kind = facts.bodies[seq]["type"]
    row = facts.queue.get(seq)
    if facts.was(seq, "unblock", "discard", "skip") or "#" in message_id:
        return True
    if row is not None and row["state"] == "dead" and row["key_hash"] is None:
        return True
    return (consumer, kind) in facts.history.continuing and bool(facts.attempts[seq])


def effects_in_order(facts: Facts) -> list[Violation]:
    """If the receive of A returned before that of B began, A takes effect before B."""
    found = []
    arrivals, joined = _arrivals(facts), _joined(facts)
    lines: dict[tuple[str, Any], list[tuple[int, int, int]]] = defaultdict(list)
    for seq, row in facts.ledger.items():
        body = facts.bodies.get(seq)
        if body is None or facts.is_outgoing(seq) or body["key"] is None:
            continue
        consumer, source, message_id = facts.identity(seq)
        if (source, message_id) not in arrivals or _counted(facts, seq) or _left_the_order(facts, seq):
            continue
        if arrivals[source, message_id][0] <= _since(
            facts, consumer, body["type"]
        ):  # it came to others, in their order
            continue
        # Its first arrival says nothing about a later one.
        if _came_before(facts, seq):
            continue
        came = joined.get(seq, arrivals[source, message_id])
        lines[row["consumer"], body["key"]].append((*came, seq))
    for line in lines.values():
        for _, ended, first in line:
            for began, _, second in line:
                if ended < began and _comparable(facts, first, second) and _overtaken(facts, first, second):
                    found.append(Violation("order", f"message {second} took effect before {first} of the same key"))
    return found


def _came_before(facts: Facts, seq: int) -> bool:
    """Whether its first arrival was that of another row."""
    digest = bytes(facts.ledger[seq]["hash"])
    return (
        facts.came_again(seq)
        or _discarded_before(facts, seq)
        or facts.had_other_bytes(*facts.identity(seq)[1:], digest)
    )


def _discarded_before(facts: Facts, seq: int) -> bool:
    """Whether a person discarded the first of its copies, which nobody handled: to a later consumer the next is new."""
    same = facts.identity(seq)[1:]
    return any(
        facts.was(other, "discard") and facts.identity(other)[1:] == same
        for other in facts.ledger
        if other != seq and other in facts.bodies
    )


def _comparable(facts: Facts, first: int, second: int) -> bool:
    """Whether their key was known when they came: that of an unknown type is found when its consumer is."""
    late = {facts.identity(seq)[1:] for _, seq in facts.history.placed if seq in facts.ledger}
    return facts.identity(first)[1:] not in late or facts.bodies[first]["type"] == facts.bodies[second]["type"]


def _since(facts: Facts, consumer: str, kind: str) -> int:
    """Since when the messages of a type come to a consumer by themselves; the first one gets what waited for it too."""
    subscribed = facts.history.subscribed
    first = min((step for (_, one), step in subscribed.items() if one == kind), default=-1)
    mine = subscribed.get((consumer, kind), -1)
    return mine if mine > first else -1


def _counted(facts: Facts, seq: int) -> bool:
    return any(row["number"] is not None for row in facts.effects[seq]) or (
        seq in facts.queue and facts.queue[seq]["sequence"] is not None
    )


def _overtaken(facts: Facts, first: int, second: int) -> bool:
    later = facts.effects[second]
    if not later:
        return False
    earlier = facts.effects[first]
    return not earlier or earlier[0]["id"] > later[0]["id"]


def numbers_in_order(facts: Facts) -> list[Violation]:
    """Numbers of a key take effect in rising order, each after the one before it was applied or given up."""
    found = []
    lines: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in facts.tables["effect_log"]:
        if row["number"] is not None:
            lines[row["consumer"], row["key"]].append(row)
    for (consumer, key), rows in lines.items():
        rows.sort(key=lambda row: int(row["id"]))
        given_up = _given_up(facts, consumer, key)
        applied: set[int] = set()
        for row in rows:
            number = row["number"]
            if applied and number <= max(applied):
                found.append(Violation("number order", f"number {number} of {key!r} took effect after a later one"))
            if number > 1 and number - 1 not in applied | given_up and not _brought_back(facts, row["seq"]):
                found.append(Violation("number gap", f"number {number} of {key!r} took effect without {number - 1}"))
            applied.add(number)
    return found


def _given_up(facts: Facts, consumer: str, key: str) -> set[int]:
    """Numbers that people or `on_dead="continue"` gave up."""
    found = set()
    for seq, body in facts.bodies.items():
        if seq not in facts.ledger or facts.consumer(seq) != consumer or body["key"] != key or body["body"] is None:
            continue
        continues = (consumer, body["type"]) in facts.history.continuing and bool(facts.attempts[seq])
        if continues or facts.was(seq, "discard", "unblock"):
            found.add(json.loads(bytes(body["body"])).get("n"))
    return found


def _brought_back(facts: Facts, seq: int) -> bool:
    """Whether a person redrove it after it had left its key: it runs whatever is missing before it."""
    left = (facts.consumer(seq), facts.bodies[seq]["type"]) in facts.history.continuing or facts.was(seq, "unblock")
    return left and facts.was(seq, "redrive")


def one_holder_per_key(facts: Facts) -> list[Violation]:
    """After every claim, the rows of a key are in one claim only."""
    found = []
    for holders in facts.history.holders:
        owner: dict[int, tuple[int, int]] = {}
        for key_hash, worker, token, seq in holders.claims:
            if key_hash is not None and owner.setdefault(key_hash, (worker, token)) != (worker, token):
                found.append(Violation("two holders", f"step {holders.step}: message {seq} and another of its key"))
    return found
