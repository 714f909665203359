"""A history, indexed for the checks."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from onceward.domain.identity import readable_id, stored_id
from onceward.registry import OUTBOX
from simulation.history import History, Row

CASE = "about a mismatch"
"""The reason that simulated operators give when they decide about a mismatch."""

NAMELESS = "(nobody)"
"""What a number stands for that no name has."""

Identity = tuple[str, str, str]
"""(consumer, source, id)"""


_NO_BODY: Row = {"type": "", "key": None, "body": None, "cause": None, "destination": None, "headers": None}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Facts:
    """The final tables by what they are about."""

    def __init__(self, history: History) -> None:
        self.history = history
        tables = self.tables = remembered(history)
        self.ledger: dict[int, Row] = {row["seq"]: row for row in tables["ledger"]}
        used = {row[column] for row in self.ledger.values() for column in ("consumer", "source")}
        self.names: dict[int, str] = dict.fromkeys(used, NAMELESS)
        self.names |= {row["id"]: row["name"] for row in tables["name"]}
        self.bodies: dict[int, Row] = {row["seq"]: row for row in tables["body"]}
        self.bodyless = [seq for seq in self.ledger if seq not in self.bodies]
        for seq in self.bodyless:
            self.bodies[seq] = {**_NO_BODY, "seq": seq, "id": readable_id(bytes(self.ledger[seq]["id"]))}
        self.queue: dict[int, Row] = {row["seq"]: row for row in tables["queue"]}
        self.effects: dict[int, list[Row]] = defaultdict(list)
        for row in tables["effect_log"]:
            self.effects[row["seq"]].append(row)
        self.audits: dict[int, list[Row]] = defaultdict(list)
        for row in tables["audit"]:
            if row["reason"] != CASE:  # "discard" of a mismatch is no discard of the message
                self.audits[row["seq"]].append(row)
        self.attempts: dict[int, list[Row]] = defaultdict(list)
        for row in tables["attempt"]:
            self.attempts[row["seq"]].append(row)
        self.finished_in: dict[int, list[Row]] = defaultdict(list)
        for row in tables["run"]:
            for seq in seqs_of(row):
                self.finished_in[seq].append(row)
        self.by_identity: dict[tuple[str, str, bytes], list[Row]] = defaultdict(list)
        """More than one where retention had forgotten the one before."""
        for seq, row in sorted(self.ledger.items()):
            self.by_identity[self.consumer(seq), self.names[row["source"]], bytes(row["id"])].append(row)

    def consumer(self, seq: int) -> str:
        """Who the message is for."""
        return self.names[self.ledger[seq]["consumer"]]

    def find(self, consumer: str, source: str, message_id: str) -> list[Row]:
        """The ledger rows of a message."""
        return self.by_identity.get((consumer, source, stored_id(message_id)), [])

    def named(self, source: str, message_id: str) -> list[Row]:
        """The ledger rows of a message, whoever it is for."""
        wanted = (source, stored_id(message_id))
        return [row for (_, *identity), rows in self.by_identity.items() if tuple(identity) == wanted for row in rows]

    def came_again(self, seq: int) -> bool:
        """Whether its id came once more when retention had forgotten it, or it is the one that did."""
        row = self.ledger[seq]
        return len(self.by_identity[self.consumer(seq), self.names[row["source"]], bytes(row["id"])]) > 1

    def had_other_bytes(self, source: str, message_id: str, digest: bytes) -> bool:
        """Whether a service accepted the id with other bytes.

        Two services that both do not handle a type may each hold a message of one id, with different bytes. When its
        consumer comes it takes one of them, and the other is a mismatch, though its service had accepted it.
        """
        return any(
            (one.source, one.id) == (source, message_id) and one.hash != digest
            for one in self.history.receptions
            if one.status in ("accepted", "duplicate")
        )

    def identity(self, seq: int) -> Identity:
        """(consumer, source, id) of a message."""
        return self.consumer(seq), self.names[self.ledger[seq]["source"]], str(self.bodies[seq]["id"])

    def is_outgoing(self, seq: int) -> bool:
        """Whether it is a message of the relay."""
        return self.consumer(seq) == OUTBOX

    def was(self, seq: int, *actions: str) -> bool:
        """Whether the audit says that one of these was done to it."""
        return any(row["action"] in actions for row in self.audits[seq])

    def done(self, seq: int) -> bool:
        """Finished by a handler: a ledger row, no queue row, neither discarded nor skipped."""
        return seq not in self.queue and not self.was(seq, "discard", "skip")


def remembered(history: History) -> dict[str, list[Row]]:
    """The final tables, with what retention took out of them: what was so stays so when it is forgotten."""
    found = {name: list(rows) for name, rows in history.tables.items()}
    for removal in reversed(history.removals):  # the last one is the one that was committed
        runs = removal.statement == "forget_runs"
        of = "id" if runs else "seq"
        for name, rows in removal.tables.items():
            if runs != (name == "run"):
                continue
            there = [next(iter(row.values())) for row in found[name]]  # the first column is the primary key
            found[name] += [
                row for row in rows if row.get(of) in removal.numbers and next(iter(row.values())) not in there
            ]
    return found


def seqs_of(run: Row) -> list[Any]:
    """The messages that a run finished."""
    found = run["seqs"]
    return list(json.loads(found)) if isinstance(found, str) else list(found)
