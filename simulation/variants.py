"""Known-bad variants of the real code: each breaks one rule, and the simulation must notice.

Each says which kinds of violation it is expected to show, and on which kinds of messages to look for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from onceward import retry
from onceward.errors import StoreUnavailable
from onceward.flow import COMMIT, Begin, Call, Each, Outcome, Query
from onceward.message import Receipt
from onceward.registry import OUTBOX
from onceward.steps import attempt, claim, effect, operate, process, receive, settle, subscribe
from onceward.steps.lane import PASS
from simulation.sabotage import nothing, replaced, rewritten, without

NOTE = "AND worker = :worker AND token = :token"
CATALOG = "WHERE coalesce((SELECT version FROM o_catalog) = :catalog, 1)"
SHORT = Begin(10.0, 2.0, 20.0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One deliberate mistake."""

    name: str
    expected: tuple[str, ...]
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[None]] = nullcontext
    focus: tuple[str, ...] = ()
    stress: dict[str, float] = field(default_factory=dict)
    """Faults that bring it out."""
    schema: tuple[str, str] = ("", "")
    """Text of the tables to replace."""
    trouble: bool = False
    """Messages fail and kill more often."""


# Steps that are wrong


def _receipts_without_commit(context: Any, cache: Any, deliveries: Any, **options: Any) -> Generator[Any, Any, Any]:
    try:
        return (yield from receive_original(context, cache, deliveries, **options))
    except StoreUnavailable:
        return [Receipt("accepted", 0) for _ in deliveries]


def _hash_not_compared(context: Any, delivery: Any, known: Any, copies: Any) -> Generator[Any, Any, Any]:
    return (yield from meet_again_original(context, delivery, replace(known, hash=delivery.hash), copies))


def _later(name: str) -> Callable[..., Generator[Any, Any, Any]]:
    """Finish without a statement, and run it in a transaction of its own after the commit."""

    def finish(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        kept: list[Any] = []

        def hold_back(part: Any) -> Any:
            if getattr(part, "name", "") == name and isinstance(part, Each):
                kept.append(part)
                return None
            return part

        result = yield from rewritten(finish_original, hold_back)(*arguments, **options)
        if kept:
            yield (SHORT, *kept, COMMIT)
        return result

    return finish


def _marked_first(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
    """The relay finishes its messages before it publishes them."""
    calls: list[Call] = []
    flow = attempt_original(*arguments, **options)
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            yield from calls
            return stop.value
        error = None
        if isinstance(request, Call) and request.handler.consumer == OUTBOX:
            calls.append(request)
            answer = Outcome()
            continue
        try:
            answer = yield request
        except Exception as problem:  # noqa: BLE001 - belongs to the step
            error = problem


def _charged(lane: Any, message: Any, error: BaseException) -> Generator[Any, Any, None]:
    yield from settle.settle(lane, message, error)


def _generous(policy: Any, error: BaseException, *, attempt: int, **options: Any) -> Any:
    return decide_original(policy, error, attempt=attempt - 1, **options)


def _everything_passes(_lane: Any, _token: int, rows: list[Any]) -> Generator[Any, Any, Any]:
    yield from ()
    return [(row, PASS) for row in rows]


def _stale_runs(lane: Any, token: int, rows: list[Any]) -> Generator[Any, Any, Any]:
    kept = yield from in_sequence_original(lane, token, rows)
    return [(row, replace(verdict, stale=False)) for row, verdict in kept]


def _intent_inside(_context: Any, worker: Any, message: Any, name: Any, call: Any, **_options: Any) -> Any:
    key = message.idempotency_key(name)
    yield SHORT
    yield Query("intend", {"key": key, "seq": message.seq, "name": name, "worker": worker})
    value = call()
    yield Query("effect_done", {"key": key, "result": "null"})
    yield COMMIT
    return value


def _key_not_checked(*_arguments: Any) -> Generator[Any, Any, str]:
    yield from ()
    return "now"


receive_original = receive.receive
meet_again_original = receive.meet_again
finish_original = attempt._finish
attempt_original = attempt.attempt
decide_original = retry.decide
in_sequence_original = claim._in_sequence
turn_original = process._turn


def _patched(original: Any, replacement: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: replaced((original, replacement))


ZOMBIES = {"stop_resume": 0.02, "crash": 0.0, "shutdown": 0.0, "away": 0.0}
CONFLICTS = {"conflict": 0.05, "cut_after": 0.02}
KEYED = ("keyed", "single", "sheaf", "moving")
COUNTED = ("counted", "tally")

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "acknowledge although the commit failed",
        ("loss",),
        patch=_patched(receive.receive, _receipts_without_commit),
    ),
    Variant(
        "insert without the unique key",
        ("double effect", "accepted twice"),
        edits={"receive": ("ON CONFLICT (consumer, source, id) DO NOTHING", "ON CONFLICT (seq) DO NOTHING")},
        schema=("UNIQUE (consumer, source, id)", "CHECK (1)"),
        focus=("plain", "keyed"),
    ),
    Variant("settle without the guard", ("old token",), edits={"settle": (NOTE, "")}, stress=ZOMBIES, trouble=True),
    Variant("finish by id only", ("old token", "double effect"), edits={"finish": (NOTE, "")}),
    Variant("postpone without the guard", ("old token",), edits={"postpone": (NOTE, "")}, stress=ZOMBIES | CONFLICTS),
    Variant(
        "release without the guard", ("old token",), edits={"release_some": (NOTE, "")}, stress=ZOMBIES, trouble=True
    ),
    Variant(
        "order without the head rule",
        ("order", "two holders"),
        edits={"park": ("AND (o.earlier OR o.busy)", "AND 0")},
        focus=KEYED,
    ),
    Variant(
        "the head rule overlooks messages that wait for a retry",
        ("order",),
        edits={"park": ("WHERE e.key_hash = m.key_hash", "WHERE e.state = 'ready' AND e.key_hash = m.key_hash")},
        focus=KEYED,
    ),
    Variant(
        "the head rule overlooks other claims",
        ("two holders", "order"),
        edits={"park": ("AND (o.earlier OR o.busy)", "AND o.earlier")},
        focus=KEYED,
    ),
    Variant("nobody promotes", ("stuck",), edits={"promote": ("WHERE seq IN", "WHERE 0 AND seq IN")}, focus=KEYED),
    Variant(
        "a crash is charged to the whole batch", ("budget",), edits={"take_over": ("crashes + :charge", "crashes + 1")}
    ),
    Variant(
        "crashes without a limit",
        ("budget",),
        edits={"take_over": ("crashes + :charge >= :crash_limit", "0")},
        trouble=True,
    ),
    Variant("take-over leaves the worker row", ("ghost worker",), edits={"forget_worker": ("WHERE", "WHERE 0 AND")}),
    Variant("take-over leaves the notes", ("stuck",), edits={"take_over": ("WHERE worker = :worker", "WHERE 0")}),
    Variant("claim ignores notes", ("stolen note",), edits={"claim": ("AND token IS NULL", "")}),
    Variant(
        "claim without the worker's own row",
        ("stuck",),
        edits={"claim": ("EXISTS (SELECT 1 FROM o_worker WHERE id = :worker)", "1")},
    ),
    Variant(
        "the rest of a batch is not released",
        ("stuck",),
        patch=_patched(settle.release, nothing),
        trouble=True,
    ),
    Variant("unknown claims are forgotten", ("stuck",), patch=_patched(attempt.forget_claims, nothing)),
    Variant(
        "the result is stored outside of the transaction",
        ("effect without result", "result without effect"),
        patch=_patched(finish_original, _later("store_results")),
        focus=("plain", "keyed", "single"),
    ),
    Variant(
        "the outbox is written after the commit",
        ("outbox",),
        patch=_patched(finish_original, _later("receive")),
        focus=("sender", "teller"),
    ),
    Variant(
        "the relay finishes before it publishes",
        ("not published",),
        patch=_patched(attempt.attempt, _marked_first),
        focus=("sender", "teller"),
    ),
    Variant(
        "the intent is not committed before the call",
        ("call without intent",),
        patch=_patched(effect.guarded, _intent_inside),
        focus=("caller", "payer"),
    ),
    Variant(
        "dedupe without the source",
        ("loss", "false mismatch", "mismatch lost"),
        edits={
            "receive": (
                CATALOG,
                f"{CATALOG} AND NOT EXISTS (SELECT 1 FROM o_ledger WHERE consumer = :consumer AND id = :stored_id)",
            ),
            "known": ("AND l.source = :source", ""),
        },
    ),
    Variant(
        "the hash is not compared",
        ("mismatch accepted", "mismatch lost"),
        patch=_patched(receive.meet_again, _hash_not_compared),
    ),
    Variant("one attempt too many", ("budget",), patch=_patched(retry.decide, _generous)),
    Variant(
        "the database's failures are charged",
        ("infrastructure charged",),
        patch=_patched(settle.postpone, _charged),
    ),
    Variant(
        "redrive of what is not dead",
        ("redrive of the living", "budget"),
        edits={"redrive": ("AND state = 'dead'", "AND state IN ('dead', 'ready')")},
    ),
    Variant(
        "discard without promote",
        ("stuck",),
        patch=lambda: replaced((operate.discard, rewritten(operate.discard, without("promote")))),
        focus=KEYED,
    ),
    Variant(
        "discard of what is running",
        ("done without effect", "effect without done", "audit", "run count"),
        edits={"discard": ("AND token IS NULL", "")},
    ),
    Variant(
        "redrive without its line in the audit",
        ("audit",),
        patch=lambda: replaced((operate.redrive, rewritten(operate.redrive, without("add_audit")))),
    ),
    Variant(
        "a gap holds nobody up",
        ("number gap", "number order"),
        patch=_patched(in_sequence_original, _everything_passes),
        focus=COUNTED,
    ),
    Variant(
        "stale numbers run",
        ("number order",),
        patch=_patched(in_sequence_original, _stale_runs),
        focus=COUNTED,
    ),
    Variant(
        "a gap has no deadline",
        ("stuck",),
        edits={"hold": ("due_at = :now + CAST(:delay * 1000000 AS integer)", "due_at = NULL")},
        focus=COUNTED,
    ),
    Variant(
        "inline work does not look at its key",
        ("order", "number order", "number gap"),
        patch=_patched(turn_original, _key_not_checked),
        focus=(*KEYED, *COUNTED),
    ),
    Variant(
        "another body overwrites the first",
        ("body overwritten", "mismatch ran"),
        edits={
            "quarantine": (
                "INSERT INTO o_quarantine",
                "UPDATE o_body SET body = :body WHERE seq = :seq;; INSERT INTO o_quarantine",
            )
        },
    ),
    Variant(
        "a handed-over message stays unhandled",
        ("stuck",),
        patch=lambda: replaced((subscribe.fan_out, rewritten(subscribe.fan_out, without("remove_unhandled")))),
        focus=("later",),
    ),
    Variant("goodbye keeps the notes", ("stuck",), edits={"let_go": ("WHERE", "WHERE 0 AND")}),
    Variant(
        "skipped without its line in the audit",
        ("done without effect",),
        patch=lambda: replaced((finish_original, rewritten(finish_original, without("add_audit")))),
        focus=COUNTED,
    ),
)
