"""Known-bad variants of the real code: each breaks one rule, and the simulation must notice.

Each says which kinds of violation it is expected to show, and on which kinds of messages to look for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from onceward import retry
from onceward.errors import StoreUnavailable
from onceward.flow import COMMIT, Begin, Call, Each, Outcome, Query
from onceward.message import Receipt
from onceward.registry import OUTBOX
from onceward.steps import attempt, effect, membership, operate, receive, settle, subscribe
from onceward.steps.group import Group, failure_of
from onceward.stores.moves.claims import PASS
from onceward.stores.relational import claims
from simulation.sabotage import method, nothing, replaced, rewritten, without
from simulation.themes import PLAIN, SCHEDULED, THEMES, Theme

CLAIM = "AND worker = :worker AND token = :token"
CATALOG = "WHERE coalesce((SELECT version FROM o_catalog) = :catalog, 1)"
SHORT = Begin(10.0, 2.0, 20.0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One deliberate mistake."""

    name: str
    expected: tuple[str, ...]
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    theme: Theme = PLAIN
    """What brings it out."""
    seed: int = 0
    """One that is known to show it; where the code has changed since, others are tried too."""
    store: str = "sqlite"
    """Whose text is edited, and where it is looked for."""
    schema: tuple[str, str] = ("", "")
    """Text of the tables to replace."""


# Steps that are wrong


def _receipts_without_commit(context: Any, cache: Any, deliveries: Any, **options: Any) -> Generator[Any, Any, Any]:
    try:
        return (yield from receive_original(context, cache, deliveries, **options))
    except StoreUnavailable:
        return [Receipt("accepted", 0) for _ in deliveries]


def _hash_not_compared(context: Any, delivery: Any, known: Any, copies: Any) -> Generator[Any, Any, Any]:
    return (yield from meet_again_original(context, delivery, known._replace(hash=delivery.hash), copies))


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
    yield from settle.settle(lane, failure_of(message, error))


def _everyone_fails(group: Group, part: list[Any], error: BaseException, *, infrastructure: bool) -> None:
    fails_original(group, part, error, infrastructure=infrastructure)
    if group.failures and group.standing:
        group.failures.append(failure_of(group.standing.pop(), error))


def _generous(policy: Any, error: BaseException, *, attempt: int, **options: Any) -> Any:
    return decide_original(policy, error, attempt=attempt - 1, **options)


def _everything_passes(_claim: Any, _gaps: Any, rows: list[Any]) -> Generator[Any, Any, Any]:
    yield from ()
    return [(row, PASS) for row in rows]


def _stale_runs(claim: Any, gaps: Any, rows: list[Any]) -> Generator[Any, Any, Any]:
    kept = yield from in_sequence_original(claim, gaps, rows)
    return [(row, verdict._replace(stale=False)) for row, verdict in kept]


def _intent_inside(_context: Any, worker: Any, message: Any, name: Any, call: Any, **_options: Any) -> Any:
    key = message.idempotency_key(name)
    yield SHORT
    yield Query("intend", {"key": key, "seq": message.seq, "name": name, "worker": worker})
    value = call()
    yield Query("effect_done", {"key": key, "result": "null"})
    yield COMMIT
    return value


receive_original = receive.receive
meet_again_original = receive.meet_again
finish_original = attempt._finish
fails_original = Group.fails
attempt_original = attempt.attempt
decide_original = retry.decide
in_sequence_original = claims._in_sequence


def _patched(original: Any, replacement: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: replaced((original, replacement))


_ZOMBIES = {"stop_resume": 0.02, "crash": 0.0, "shutdown": 0.0, "away": 0.0}
ZOMBIES = Theme(faults=_ZOMBIES, trouble=True)
CONFLICTS = Theme(faults=_ZOMBIES | {"conflict": 0.05, "cut_after": 0.02})
TROUBLE = Theme(trouble=True)
UNKNOWN = Theme(faults={"commit_lost": 0.3})
FORGETFUL = next(theme for theme in THEMES if theme.forgetful)
LEAVING = Theme(faults={"shutdown": 0.02, "cancel": 0.02, "cut_after": 0.03}, inline=0.9)
MOVING = Theme(("later",), {"shutdown": 0.01, "crash": 0.0, "operators": 0.0}, twins=0.9)
KEYED = Theme(("keyed", "single", "sheaf", "moving"))
COUNTED = Theme(("counted", "tally"))

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "acknowledge although the commit failed",
        ("loss",),
        patch=_patched(receive.receive, _receipts_without_commit),
        seed=1,
    ),
    Variant(
        "insert without the unique key",
        ("double effect", "accepted twice"),
        edits=dict.fromkeys(
            ("receive", "receive_direct"),
            ("ON CONFLICT (consumer, source, id) DO NOTHING", "ON CONFLICT (seq) DO NOTHING"),
        ),
        schema=("UNIQUE (consumer, source, id)", "CHECK (1)"),
        theme=Theme(("plain", "keyed")),
    ),
    Variant(
        "stepping back undoes nothing",
        ("effect without done", "effect without result", "double effect"),
        edits={"rollback_to_savepoint": ("ROLLBACK TO SAVEPOINT onceward_savepoint", "SELECT 1")},
        theme=Theme(("plain", "keyed"), trouble=True, inline=0.0),
        seed=12,
    ),
    Variant(
        "a failure is charged to its neighbours too",
        ("innocent charged",),
        patch=lambda: method(Group, "fails", _everyone_fails),
        theme=Theme(("plain", "keyed"), trouble=True, inline=0.0),
        seed=33,
    ),
    Variant(
        "what follows a failure in its key runs on",
        ("order",),
        patch=lambda: method(Group, "_goes_along", lambda *_: False),
        theme=Theme(("keyed", "growing", "latest", "sheaf"), inline=0.0),
        seed=27,
    ),
    Variant("settle without the guard", ("old token",), edits={"settle": (CLAIM, "")}, theme=ZOMBIES, seed=2),
    Variant("finish by id only", ("old token", "double effect"), edits={"finish": (CLAIM, "")}, theme=ZOMBIES, seed=11),
    Variant("postpone without the guard", ("old token",), edits={"postpone": (CLAIM, "")}, theme=CONFLICTS, seed=4),
    Variant("unclaim without the guard", ("old token",), edits={"unclaim": (CLAIM, "")}, theme=ZOMBIES, seed=2),
    Variant(
        "order without the head rule",
        ("order", "two holders"),
        edits={"park": ("AND (o.earlier OR o.busy OR o.unplaced)", "AND 0")},
        theme=KEYED,
        seed=2,
    ),
    Variant(
        "the head rule overlooks messages that wait for a retry",
        ("order",),
        edits={"park": ("WHERE e.key_hash = m.key_hash", "WHERE e.state = 'ready' AND e.key_hash = m.key_hash")},
        theme=KEYED,
        seed=11,
    ),
    Variant(
        "the head rule overlooks other claims",
        ("two holders", "order"),
        edits={"park": ("AND (o.earlier OR o.busy OR o.unplaced)", "AND (o.earlier OR o.unplaced)")},
        theme=KEYED,
        seed=32,
    ),
    Variant(
        "nobody promotes", ("stuck",), edits={"promote": ("WHERE seq IN", "WHERE 0 AND seq IN")}, theme=KEYED, seed=2
    ),
    Variant(
        "a crash is charged to the whole batch",
        ("budget",),
        edits={"take_over": ("crashes + :charge", "crashes + 1")},
        theme=Theme(("plain", "batch"), {"crash": 0.02, "clock_jump": 0.0}, inline=0.0),
        seed=10,
    ),
    Variant(
        "crashes without a limit",
        ("budget",),
        edits={"take_over": ("crashes + :charge >= :crash_limit", "0")},
        theme=TROUBLE,
        seed=12,
    ),
    Variant(
        "take-over leaves the worker row", ("ghost worker",), edits={"forget_worker": ("WHERE", "WHERE 0 AND")}, seed=2
    ),
    Variant(
        "take-over leaves the claims", ("stuck",), edits={"take_over": ("WHERE worker = :worker", "WHERE 0")}, seed=16
    ),
    Variant(
        "a scheduled message joins its key where it came",
        ("order",),
        edits={"claim": ("UPDATE o_queue AS q SET place = j.place", "UPDATE o_queue AS q SET place = q.seq")},
        theme=SCHEDULED,
        seed=9,
    ),
    Variant(
        "a scheduled message holds its key before it is due",
        ("order", "stuck"),
        edits={
            "park": (
                "WHERE e.key_hash = m.key_hash AND (e.place, e.seq) < (m.place, m.seq)",
                "WHERE e.key_hash = m.key_hash AND e.seq < m.seq",
            )
        },
        theme=SCHEDULED,
        seed=12,
    ),
    Variant(
        "a scheduled message runs before its time",
        ("too early",),
        edits={"claim": ("NOT outgoing AND due_at <= :now", "NOT outgoing AND due_at <= :now + 1500000")},
        theme=SCHEDULED,
        seed=18,
    ),
    Variant("claim takes claimed rows", ("stolen claim",), edits={"claim": ("AND token IS NULL", "")}),
    Variant(
        "claim without the worker's own row",
        ("stuck",),
        edits={"claim": ("EXISTS (SELECT 1 FROM o_worker WHERE id = :worker)", "1")},
        theme=ZOMBIES,
        seed=0,
    ),
    Variant(
        "the rest of a batch is not unclaimed",
        ("stuck",),
        # Without the duty that lets go of what no lane holds, which would mend it a moment later.
        patch=lambda: replaced((settle.unclaim, nothing), (membership.unclaim_strays, nothing)),
        theme=TROUBLE,
        seed=25,
    ),
    Variant(
        "unknown claims are forgotten",
        ("stuck",),
        patch=_patched(attempt.forget_claims, nothing),
        theme=UNKNOWN,
        seed=4,
    ),
    Variant(
        "the result is stored outside of the transaction",
        ("effect without result", "result without effect"),
        patch=_patched(finish_original, _later("store_results")),
        theme=Theme(("plain", "keyed", "single")),
        seed=1,
    ),
    Variant(
        "the outbox is written after the commit",
        ("outbox",),
        patch=_patched(finish_original, _later("receive")),
        theme=Theme(("sender", "teller")),
        seed=1,
    ),
    Variant(
        "the relay finishes before it publishes",
        ("not published",),
        patch=_patched(attempt.attempt, _marked_first),
        theme=Theme(("sender", "teller")),
    ),
    Variant(
        "the intent is not committed before the call",
        ("call without intent",),
        patch=_patched(effect.guarded, _intent_inside),
        theme=Theme(("caller", "payer")),
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
        seed=2,
    ),
    Variant(
        "the hash is not compared",
        ("mismatch accepted", "mismatch lost"),
        patch=_patched(receive.meet_again, _hash_not_compared),
    ),
    Variant("one attempt too many", ("budget",), patch=_patched(retry.decide, _generous), theme=TROUBLE, seed=4),
    Variant(
        "the database's failures are charged",
        ("infrastructure charged",),
        patch=_patched(settle.postpone, _charged),
        seed=24,
    ),
    Variant(
        "redrive of what is not dead",
        ("redrive of the living", "budget"),
        edits={"redrive": ("AND state = 'dead'", "AND state IN ('dead', 'ready')")},
        seed=3,
    ),
    Variant(
        "discard without promote",
        ("stuck",),
        patch=lambda: replaced((operate.discard, rewritten(operate.discard, without("promote")))),
        theme=KEYED,
        seed=22,
    ),
    Variant(
        "discard of what is running",
        ("discard of the running",),
        edits={"discard": ("AND q.token IS NULL", "")},
        seed=10,
    ),
    Variant(
        "redrive without its line in the audit",
        ("audit",),
        patch=lambda: replaced((operate.redrive, rewritten(operate.redrive, without("add_audit")))),
        seed=10,
    ),
    Variant(
        "a gap holds nobody up",
        ("number gap", "number order"),
        patch=_patched(in_sequence_original, _everything_passes),
        theme=COUNTED,
        seed=3,
    ),
    Variant(
        "stale numbers run", ("number order",), patch=_patched(in_sequence_original, _stale_runs), theme=COUNTED, seed=3
    ),
    Variant(
        "a gap has no deadline",
        ("stuck",),
        edits={"hold": ("due_at = :now + CAST(:delay * 1000000 AS integer)", "due_at = NULL")},
        theme=COUNTED,
        seed=8,
    ),
    Variant(
        "inline work does not look at its key",
        ("order", "number order", "number gap"),
        edits={"busy_keys": ("SELECT :key_hash WHERE", "SELECT :key_hash WHERE 0 AND")},
        theme=Theme((*KEYED.kinds, *COUNTED.kinds)),
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
        theme=Theme(("later",)),
        seed=4,
    ),
    Variant(
        "a case of quarantine stays behind when its message moves",
        ("mismatch lost",),
        patch=lambda: replaced((subscribe.fan_out, rewritten(subscribe.fan_out, without("hand_on")))),
        theme=MOVING,
        seed=6,
    ),
    Variant(
        "retention forgets what is not finished",
        ("needed", "queue without ledger"),
        edits={"forget_messages": ("AND NOT EXISTS (SELECT 1 FROM o_queue q WHERE q.seq = o_ledger.seq)", "")},
        theme=FORGETFUL,
        seed=3,
    ),
    Variant(
        "retention forgets too early",
        ("forgotten early",),
        edits={
            "next_ledger": (":now - CAST(:keep * 1000000 AS integer)", ":now - CAST(:keep * 500000 AS integer)"),
            "forget_messages": (
                "r.finished_at >= :now - CAST(:keep * 1000000",
                "r.finished_at >= :now - CAST(:keep * 500000",
            ),
        },
        theme=FORGETFUL,
        seed=0,
    ),
    Variant(
        "retention forgets what came long ago and has just been finished",
        ("forgotten early",),
        edits={"forget_messages": ("AND r.finished_at >= :now", "AND 0 AND r.finished_at >= :now")},
        theme=FORGETFUL,
        seed=3,
    ),
    Variant(
        "retention drops the bodies of what is not finished",
        ("needed",),
        edits={"drop_bodies": ("AND NOT EXISTS (SELECT 1 FROM o_queue q WHERE q.seq = o_body.seq)", "")},
        theme=FORGETFUL,
        seed=2,
    ),
    Variant(
        "retention forgets what is in an open case",
        ("needed",),
        edits={"forget_messages": ("x.resolution IS NULL OR", "")},
        theme=FORGETFUL,
        seed=3,
    ),
    Variant(
        "deregistering keeps the claims",
        ("stuck",),
        edits={"unclaim_all": ("WHERE", "WHERE 0 AND")},
        theme=LEAVING,
        seed=134,
    ),
    Variant(
        "skipped without its line in the audit",
        ("done without effect",),
        patch=lambda: replaced((finish_original, rewritten(finish_original, without("add_audit")))),
        theme=COUNTED,
        seed=3,
    ),
)
