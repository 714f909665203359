"""A history, indexed for the checks."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from onceward.identity import readable_id, stored_id
from onceward.registry import OUTBOX
from simulation.history import History, Row

CASE = "about a mismatch"
"""The reason that simulated operators give when they decide about a mismatch."""

Identity = tuple[str, str, str]
"""(consumer, source, id)"""


_NO_BODY: Row = {"type": "", "key": None, "body": None, "cause": None, "destination": None}


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
        tables = history.tables
        self.names: dict[int, str] = {row["id"]: row["name"] for row in tables["name"]}
        self.ledger: dict[int, Row] = {row["seq"]: row for row in tables["ledger"]}
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
        self.by_identity: dict[tuple[str, str, bytes], Row] = {
            (self.consumer(seq), self.names[row["source"]], bytes(row["id"])): row for seq, row in self.ledger.items()
        }

    def consumer(self, seq: int) -> str:
        """Who the message is for."""
        return self.names[self.ledger[seq]["consumer"]]

    def find(self, consumer: str, source: str, message_id: str) -> Row | None:
        """The ledger row of a message."""
        return self.by_identity.get((consumer, source, stored_id(message_id)))

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


def seqs_of(run: Row) -> list[Any]:
    """The messages that a run finished."""
    found = run["seqs"]
    return list(json.loads(found)) if isinstance(found, str) else list(found)
