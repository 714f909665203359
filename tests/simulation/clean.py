"""A small history in which everything went well, as data; corrupted copies of it test the checker."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from onceward.domain.identity import stored_id
from onceward.registry import OUTBOX
from simulation.history import Action, ExternalCall, History, Holders, Publication, Reception, Run

NAMES = {1: OUTBOX, 2: "svc", 3: "shop", 4: "other"}
KEYED, COUNTED = -7, -9


def body_of(number: int, **fields: Any) -> bytes:
    """The body of the message with this sequence number."""
    return json.dumps({"i": number, **fields}).encode()


def digest(body: bytes) -> bytes:
    """As the ledger remembers it."""
    return hashlib.sha256(body).digest()


MESSAGES: dict[int, tuple[str, str | None, bytes]] = {
    1: ("keyed", "a", body_of(1, key="a")),
    2: ("keyed", "a", body_of(2, key="a")),
    3: ("sender", "b", body_of(3, key="b")),
    6: ("counted", "c", body_of(6, key="c", n=1)),
    7: ("counted", "c", body_of(7, key="c", n=2)),
    8: ("plain", None, body_of(8, key="a")),
    9: ("plain", None, body_of(9, key="a")),
    10: ("plain", None, body_of(10, key="a")),
    11: ("caller", None, body_of(11, key="a")),
    12: ("keyed", "w", body_of(12, key="w")),
    13: ("keyed", "w", body_of(13, key="w")),
}
DONE = (1, 2, 3, 6, 7, 11)
OUTGOING = {4: "out-4", 5: "out-5"}


def clean() -> History:
    """Done, dead, retried, discarded, waiting, sent, counted and called messages, all as they should be."""
    history = History("safety")
    history.consumers = {kind: ["svc"] for kind in ("keyed", "sender", "counted", "plain", "caller")}
    history.sends = {"sender": 2}
    history.answering = {"keyed", "sender", "counted", "plain", "caller"}
    history.budgets = {("svc", "plain"): 2, ("svc", "keyed"): 2}
    for seq, (kind, key, body) in MESSAGES.items():
        name = f"m{seq}"
        history.receptions.append(Reception("shop", name, digest(body), kind, key, seq * 10, seq * 10 + 5, "accepted"))
        history.acknowledged.append(("shop", name, digest(body)))
    twin = digest(b"{}")
    history.receptions.append(Reception("shop", "m1", digest(MESSAGES[1][2]), "keyed", "a", 200, 201, "duplicate"))
    history.receptions.append(Reception("shop", "m1", twin, "keyed", "a", 202, 203, "mismatch"))
    history.runs = [_run(8, "raise"), _run(8, "raise"), _run(9, "raise"), *(_run(seq, "ok") for seq in DONE)]
    history.publications = [
        Publication(300 + seq, "svc", name, "out", "b", committed=True) for seq, name in OUTGOING.items()
    ]
    history.calls = [ExternalCall(250, "charge-11", intended=True, idempotent=False)]
    history.actions = [Action(260, "discard", 10, "done"), Action(261, "redrive", 8, "nothing")]
    history.holders = [Holders(seq, [(KEYED if seq < 3 else None, 1, seq, seq)]) for seq in (*DONE, *OUTGOING)]
    history.departed = [2]
    history.tables = _tables(twin)
    return history


def _run(seq: int, outcome: str) -> Run:
    _, key, body = MESSAGES[seq]
    return Run(
        step=100 + seq,
        seq=seq,
        consumer="svc",
        source="shop",
        id=f"m{seq}",
        key=key,
        number=None,
        body_hash=digest(body),
        attempt=1,
        single=True,
        process="p1",
        worker=1,
        outcome=outcome,
        ended=150,
    )


def _queue(seq: int, state: str, **fields: Any) -> dict[str, Any]:
    row = {"seq": seq, "subscription": 1, "key_hash": None, "place": seq, "sequence": None, "outgoing": 0}
    rest = {"state": state, "due_at": None, "worker": None, "token": None, "attempts": 0, "crashes": 0, "isolation": 0}
    return {**row, **rest, **fields}


def _attempt(number: int, seq: int, attempt: int) -> dict[str, Any]:
    return {
        "id": number, "seq": seq, "attempt": attempt, "kind": "error", "charged": 1, "error": "ValueError: no",
        "worker": 1, "at": 1000 + number,
    }  # fmt: skip


def _tables(twin: bytes) -> dict[str, list[dict[str, Any]]]:
    ledger, bodies = [], []
    for seq, (kind, key, body) in MESSAGES.items():
        name = f"m{seq}"
        ledger.append({"seq": seq, "consumer": 2, "source": 3, "id": stored_id(name), "hash": digest(body)})
        bodies.append(
            {
                "seq": seq,
                "id": name,
                "type": kind,
                "key": key,
                "body": body,
                "cause": None,
                "destination": None,
                "headers": None,
            }
        )
    for seq, name in OUTGOING.items():
        body = body_of(seq)
        ledger.append({"seq": seq, "consumer": 1, "source": 2, "id": stored_id(name), "hash": digest(body)})
        bodies.append(
            {
                "seq": seq,
                "id": name,
                "type": "note",
                "key": "b",
                "body": body,
                "cause": 3,
                "destination": "out",
                "headers": None,
            }
        )
    effects = [_effect(number, seq) for number, seq in enumerate(DONE, 1)]
    runs = [{"id": seq, "worker": 1, "token": seq, "seqs": f"[{seq}]", "finished_at": 0} for seq in (*DONE, *OUTGOING)]
    return {
        "name": [{"id": number, "name": name} for number, name in NAMES.items()],
        "ledger": ledger,
        "body": bodies,
        "queue": [
            _queue(8, "dead", attempts=2),
            _queue(9, "retry", attempts=1, due_at=5),
            _queue(12, "ready", key_hash=-11, worker=1, token=90),
            _queue(13, "waiting", key_hash=-11),
        ],
        "run": runs,
        "result": [{"seq": seq, "result": "{}"} for seq in DONE],
        "attempt": [_attempt(1, 8, 1), _attempt(2, 8, 2), _attempt(3, 9, 1)],
        "worker": [{"id": 1}],
        "quarantine": [{"id": 1, "seq": 1, "hash": twin, "resolution": None}],
        "audit": [{"id": 1, "at": 2000, "actor": "ann", "action": "discard", "seq": 10, "reason": "test"}],
        "effect": [],
        "effect_log": effects,
        "progress": [],
        "subscription": [],
        "duplicate": [],
        "catalog": [],
    }


def _effect(number: int, seq: int) -> dict[str, Any]:
    body = json.loads(MESSAGES[seq][2])
    return {
        "id": number, "consumer": "svc", "source": "shop", "message": f"m{seq}", "seq": seq, "key": body["key"],
        "number": body.get("n"), "hash": digest(MESSAGES[seq][2]), "attempt": 1,
    }  # fmt: skip
