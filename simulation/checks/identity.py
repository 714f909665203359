"""I1, I2, I3, I11, I12: nothing is lost, doubled, half done, overwritten or run as a duplicate."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from onceward.domain.identity import body_hash
from onceward.steps.first_seen import ECHO
from simulation.checks.facts import NAMELESS, Facts, Violation, seqs_of
from simulation.history import Reception

FAR = 10**12
"""A step that no history reaches."""


def no_loss(facts: Facts) -> list[Violation]:
    """Every acknowledged delivery is in the ledger, for every consumer that was known."""
    found = []
    types = {(one.source, one.id): one.type for one in facts.history.receptions}
    known = {(source, stored) for _, source, stored in facts.by_identity}
    for source, message_id, digest in facts.history.acknowledged:
        if (source, message_id, digest) in facts.history.spooled:
            continue
        wanted = facts.history.consumers.get(types.get((source, message_id), ""), [])
        rows = [facts.find(consumer, source, message_id) for consumer in wanted]
        if not all(rows):
            found.append(Violation("loss", f"{source}/{message_id} was acknowledged and is not in the ledger"))
        elif not wanted and (source, b"r" + message_id.encode()) not in known:
            found.append(Violation("loss", f"{source}/{message_id} was acknowledged, and nobody has it"))
        found += [
            Violation("mismatch lost", f"{source}/{message_id}: the other bytes are in no quarantine")
            for same in rows
            if same and all(bytes(row["hash"]) != digest for row in same)
            if not any(_in_quarantine(facts, row["seq"], digest) for row in same)
        ]
    return found


def _in_quarantine(facts: Facts, seq: int, digest: bytes) -> bool:
    if any(action.name == "discard-mismatch" for action in facts.history.actions):
        return True
    return any(row["seq"] == seq and bytes(row["hash"]) == digest for row in facts.tables["quarantine"])


def echoes_are_marked(facts: Facts) -> list[Violation]:
    """Where ids are not signed, a body that came before under another id says so, also when it waited in a spool."""
    found = []
    came: dict[tuple[str, bytes], dict[str, tuple[int, int]]] = defaultdict(dict)
    for one in facts.history.receptions:
        if one.unsigned:  # one that failed may have been the first all the same
            ids = came[one.source, one.hash]
            began, ended = ids.get(one.id, (one.began, FAR))
            ids[one.id] = min(began, one.began), min(ended, one.ended if one.status else FAR)
    for (source, digest), ids in came.items():
        for message_id, (began, _) in ids.items():
            earlier = any(ended < began for other, (_, ended) in ids.items() if other != message_id)
            rows = [row for row in facts.named(source, message_id) if bytes(row["hash"]) == digest]
            if earlier and not all(ECHO in (facts.bodies[row["seq"]]["headers"] or "") for row in rows):
                found.append(Violation("echo", f"{source}/{message_id} has the body of an earlier one, unmarked"))
    return found


def no_double_effect(facts: Facts) -> list[Violation]:
    """Committed effects per (consumer, source, id) are at most one, as long as the id is remembered."""
    counts = Counter((row["consumer"], row["source"], row["message"]) for row in facts.tables["effect_log"])
    return [
        Violation("double effect", f"{who} took effect {count} times")
        for who, count in counts.items()
        if count > max(1, len(facts.find(*who)))
    ]


def forgotten_in_time(facts: Facts) -> list[Violation]:
    """I7: an id is new again only when it was forgotten, and it is forgotten only when the retention is over."""
    found = []
    for who, rows in facts.by_identity.items():
        left = [row["seq"] for row in rows if row["seq"] in {one["seq"] for one in facts.history.tables["ledger"]}]
        if len(left) > 1:
            found.append(Violation("accepted twice", f"{who} is in the ledger as {left}"))
    there = {row["seq"] for row in facts.history.tables["ledger"]}
    for removal in facts.history.removals:
        if removal.statement != "forget_messages":
            continue
        ended = {seq: microseconds(facts.ledger[seq]["received_at"]) for seq in removal.numbers - there}
        for run in removal.tables["run"]:
            for seq in ended.keys() & set(seqs_of(run)):
                ended[seq] = max(ended[seq], microseconds(run["finished_at"]))
        found += [
            Violation("forgotten early", f"message {seq} was forgotten before its retention was over")
            for seq, at in ended.items()
            if removal.at - at < facts.history.dedupe_retention * 1_000_000
        ]
    return found


def microseconds(moment: Any) -> int:
    """A moment of either store."""
    return round(moment.timestamp() * 1_000_000) if isinstance(moment, datetime) else int(moment)


def effect_iff_done(facts: Facts) -> list[Violation]:
    """An effect exists exactly when its message is done."""
    found = [
        Violation("nameless", f"message {seq} is of a source or for a consumer that has no name")
        for seq in facts.ledger
        if NAMELESS in facts.identity(seq)[:2]
    ]
    for seq in facts.ledger:
        if facts.is_outgoing(seq):
            continue
        effects, done = len(facts.effects[seq]), facts.done(seq)
        if effects and not done:
            found.append(Violation("effect without done", f"message {seq} has effects and is not done"))
        if done and not effects:
            found.append(Violation("done without effect", f"message {seq} is done and has no effect"))
    found += [
        Violation("effect without ledger", f"an effect of message {seq}, which the ledger does not know")
        for seq, rows in facts.effects.items()
        if rows and seq not in facts.ledger
    ]
    for seq, rows in facts.effects.items():
        if seq in facts.ledger:
            consumer, source, message_id = facts.identity(seq)
            if any((row["consumer"], row["source"], row["message"]) != (consumer, source, message_id) for row in rows):
                found.append(Violation("effect without ledger", f"an effect of message {seq} under another identity"))
    return found


def runs_and_results(facts: Facts) -> list[Violation]:
    """A finished message is in exactly one run; a result exists only where the effect does."""
    found = []
    for seq in facts.ledger:
        runs = len(facts.finished_in[seq])
        wanted = 1 if seq not in facts.queue and not facts.was(seq, "discard") else 0
        if runs != wanted:
            found.append(Violation("run count", f"message {seq} was finished by {runs} runs, expected {wanted}"))
    claimed = {(claim[1], claim[2], claim[3]) for holders in facts.history.holders for claim in holders.claims}
    for seq, runs_of in facts.finished_in.items():
        found += [
            Violation("finish without claim", f"message {seq} was finished under a claim it never had")
            for run in runs_of
            if run["token"] and (run["worker"], run["token"], seq) not in claimed
        ]
    results = {row["seq"] for row in facts.tables["result"]}
    for seq, rows in facts.effects.items():
        answers = seq in facts.bodies and facts.bodies[seq]["type"] in facts.history.answering
        if rows and answers and seq not in results and not facts.was(seq, "erase"):
            found.append(Violation("effect without result", f"message {seq} has its effect and not its result"))
    found += [
        Violation("result without effect", f"message {row['seq']} has a result and no effect")
        for row in facts.tables["result"]
        if not facts.effects[row["seq"]]
    ]
    return found


def bodies_and_mismatches(facts: Facts) -> list[Violation]:
    """Bodies are never overwritten, and only the body that was accepted runs."""
    found = []
    for seq, row in facts.ledger.items():
        body = facts.bodies[seq]
        if seq in facts.bodyless:
            found.append(Violation("body missing", f"message {seq} has no body row"))
        elif body["body"] is not None and body_hash(bytes(body["body"])) != bytes(row["hash"]):
            found.append(Violation("body overwritten", f"message {seq}: its body is not what the ledger remembers"))
        found += [
            Violation("mismatch ran", f"message {seq} took effect with other bytes than its own")
            for effect in facts.effects[seq]
            if bytes(effect["hash"]) != bytes(row["hash"])
        ]
    for reception in facts.history.receptions:
        if reception.status != "mismatch":
            continue
        rows = facts.named(reception.source, reception.id)
        if not any(_in_quarantine(facts, row["seq"], reception.hash) for row in rows):
            found.append(Violation("mismatch lost", f"{reception.source}/{reception.id} is in no quarantine"))
    return found


def _identity_of(reception: Reception) -> tuple[str, str, bytes]:
    return reception.source, reception.id, reception.hash


def duplicates_are_recognised(facts: Facts) -> list[Violation]:
    """A message is new at most once for each consumer, and a copy with its own bytes is never a mismatch.

    Receptions that overlap may each be the first for one of several consumers. A type that was unknown is new to the
    service first and then, before it is fanned out, to its consumer.
    """
    found = []
    # Copies that came in one call and found their message forgotten are new together, under one number.
    calls = {(one.source, one.id, one.type, one.began) for one in facts.history.receptions if one.status == "accepted"}
    counts = Counter((source, message_id, kind) for source, message_id, kind, _ in calls)
    for (source, message_id, kind), count in counts.items():
        stored = len(facts.named(source, message_id))  # more than its consumers where it was forgotten in between
        if count > max(stored, len(facts.history.consumers.get(kind, ())) or 2):
            found.append(Violation("accepted twice", f"{source}/{message_id} was new {count} times"))
    for reception in facts.history.receptions:
        rows = facts.named(reception.source, reception.id)
        same = rows and all(bytes(row["hash"]) == reception.hash for row in rows)
        if reception.status == "mismatch" and same and not facts.had_other_bytes(*_identity_of(reception)):
            found.append(Violation("false mismatch", f"{reception.source}/{reception.id} came with its own bytes"))
        differs = rows and all(bytes(row["hash"]) != reception.hash for row in rows)
        settled = any(one.name in ("keep-first", "accept-as-new", "erase") for one in facts.history.actions)
        quarantined = any(
            _in_quarantine(facts, row["seq"], reception.hash) for row in rows
        )  # when it got its consumers
        if reception.status in ("accepted", "duplicate") and differs and not (settled or quarantined):
            found.append(Violation("mismatch accepted", f"{reception.source}/{reception.id} came with other bytes"))
    return found
