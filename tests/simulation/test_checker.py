"""The checker itself: it finds nothing in a clean history, and the right thing in each corrupted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulation.checks import violations
from simulation.history import Action, Answer, ExternalCall, History, Holders, Publication, Reception, Removal, Sent
from tests.simulation.clean import KEYED, MESSAGES, clean, digest

Corruption = Callable[[History], Any]


def row(history: History, table: str, **wanted: Any) -> dict[str, Any]:
    """The one row of a table with these values."""
    (found,) = [row for row in history.tables[table] if all(row[name] == value for name, value in wanted.items())]
    return found


def drop(history: History, table: str, **wanted: Any) -> None:
    """Remove a row."""
    history.tables[table].remove(row(history, table, **wanted))


def change(history: History, table: str, seq: int, **values: Any) -> None:
    """Change a row."""
    row(history, table, seq=seq).update(values)


def swap_effects(history: History, first: int, second: int) -> None:
    """Let two messages take effect in the other order."""
    one, two = row(history, "effect_log", seq=first), row(history, "effect_log", seq=second)
    one["id"], two["id"] = two["id"], one["id"]


def lose(history: History) -> None:
    """An acknowledged message that nobody has."""
    for table in ("ledger", "body", "result", "effect_log"):
        drop(history, table, seq=2)
    drop(history, "run", id=2)


def double(history: History) -> None:
    """The same effect twice."""
    history.tables["effect_log"].append({**row(history, "effect_log", seq=1), "id": 99})


def requeue(history: History) -> None:
    """A done message is queued again."""
    history.tables["queue"].append({**row(history, "queue", seq=9), "seq": 1, "attempts": 0})


DAY = 86_400


def forget(history: History, seq: int, *, after: float) -> None:
    """Retention removes a finished message, so many seconds after it came."""
    history.dedupe_retention = DAY
    change(history, "ledger", seq, received_at=0)
    tables = {name: list(rows) for name, rows in history.tables.items()}
    history.removals.append(Removal("forget_messages", {seq}, round(after * 1_000_000), tables))
    for table in ("ledger", "body", "result"):
        drop(history, table, seq=seq)


def remember_twice(history: History) -> None:
    """The ledger has one id under two numbers."""
    history.tables["ledger"].append({**row(history, "ledger", seq=1), "seq": 90})


def both(first: Corruption, second: Corruption) -> Corruption:
    """One corruption after the other."""

    def corrupt(history: History) -> None:
        first(history)
        second(history)

    return corrupt


def unsend(history: History) -> None:
    """One of two outgoing messages was never written."""
    drop(history, "ledger", seq=5)
    drop(history, "body", seq=5)
    drop(history, "run", id=5)
    history.publications.pop()


def undrained(history: History) -> None:
    """The faults are over, and something is left."""
    history.mode, history.drained = "liveness", False


def unsettled(history: History) -> None:
    """The faults are over, and the broker still waits."""
    history.mode = "liveness"
    history.unsettled.append("m1")


def echo(history: History) -> None:
    """The body of one message came again under the id of the next."""
    first, second = history.receptions[0], history.receptions[1]
    second.hash, first.unsigned, second.unsigned = first.hash, True, True
    change(history, "ledger", 2, hash=first.hash)
    change(history, "body", 2, body=MESSAGES[1][2])


def hold_up(history: History) -> None:
    """A message for a destination that takes everything was published late."""
    history.prompt = {"out"}
    for table_row in history.tables["ledger"]:
        table_row["received_at"] = 0
    history.publications[0].at = 60_000_000


CORRUPTIONS: dict[str, tuple[str, Corruption]] = {
    "an acknowledged message is lost": ("loss", lose),
    "an acknowledged message of an unknown type is lost": (
        "loss",
        lambda h: h.acknowledged.append(("shop", "m99", b"")),
    ),
    "an effect is there twice": ("double effect", double),
    "a done message is queued again": ("effect without done", requeue),
    "a done message has no effect": ("done without effect", lambda h: drop(h, "effect_log", seq=2)),
    "a discarded message took effect": (
        "effect without done",
        lambda h: h.tables["effect_log"].append(
            {**row(h, "effect_log", seq=1), "id": 50, "seq": 10, "message": "m10", "hash": digest(MESSAGES[10][2])}
        ),
    ),
    "an effect of a message that was never stored": (
        "effect without ledger",
        lambda h: h.tables["effect_log"].append({**row(h, "effect_log", seq=1), "id": 50, "seq": 77, "message": "m77"}),
    ),
    "an effect under another identity": (
        "effect without ledger",
        lambda h: change(h, "effect_log", 1, message="m2", source="bank"),
    ),
    "a message was finished twice": (
        "run count",
        lambda h: h.tables["run"].append({"id": 80, "worker": 1, "token": 1, "seqs": "[1]"}),
    ),
    "a finished message is in no run": ("run count", lambda h: drop(h, "run", id=6)),
    "finished under a claim that it never had": (
        "finish without claim",
        lambda h: row(h, "run", id=6).update(token=55),
    ),
    "a result without its effect": (
        "result without effect",
        lambda h: h.tables["result"].append({"seq": 9, "result": "{}"}),
    ),
    "an effect without its result": ("effect without result", lambda h: drop(h, "result", seq=1)),
    "a body is missing": ("body missing", lambda h: drop(h, "body", seq=9)),
    "a body was overwritten": ("body overwritten", lambda h: change(h, "body", 1, body=b"{}")),
    "other bytes took effect": ("mismatch ran", lambda h: change(h, "effect_log", 1, hash=digest(b"{}"))),
    "a mismatch is in no quarantine": ("mismatch lost", lambda h: h.tables["quarantine"].clear()),
    "other bytes were taken for a duplicate": (
        "mismatch accepted",
        lambda h: h.receptions.append(Reception("shop", "m2", b"x" * 32, "keyed", "a", 400, 401, "duplicate")),
    ),
    "a copy was taken for a mismatch": (
        "false mismatch",
        lambda h: h.receptions.append(
            Reception("shop", "m2", digest(MESSAGES[2][2]), "keyed", "a", 400, 401, "mismatch")
        ),
    ),
    "a copy was new": (
        "accepted twice",
        lambda h: h.receptions.append(
            Reception("shop", "m2", digest(MESSAGES[2][2]), "keyed", "a", 400, 401, "accepted")
        ),
    ),
    "two of a key in the wrong order": ("order", lambda h: swap_effects(h, 1, 2)),
    "the second of a key ran, the first did not": (
        "order",
        both(lambda h: drop(h, "effect_log", seq=1), requeue),
    ),
    "numbers in the wrong order": ("number order", lambda h: swap_effects(h, 6, 7)),
    "a number without the one before it": ("number gap", lambda h: change(h, "effect_log", 7, number=4)),
    "two claims hold one key": (
        "two holders",
        lambda h: h.holders.append(Holders(500, [(KEYED, 1, 1, 1), (KEYED, 2, 9, 2)])),
    ),
    "two claims of one worker hold one key": (
        "two holders",
        lambda h: h.holders.append(Holders(500, [(KEYED, 1, 1, 1), (KEYED, 1, 2, 2)])),
    ),
    "an outgoing message is missing": (
        "outbox",
        unsend,
    ),
    "something was sent by a handler that failed": ("outbox", lambda h: change(h, "body", 5, cause=8)),
    "finished and never published": ("not published", lambda h: h.publications.pop()),
    "published before the commit": (
        "published early",
        lambda h: h.publications.append(Publication(1, "svc", "out-4", "out", "b", committed=False)),
    ),
    "published under an id that nobody sent": (
        "published early",
        lambda h: h.publications.append(Publication(1, "svc", "another", "out", "b", committed=True)),
    ),
    "published in the wrong order": ("publish order", lambda h: setattr(h.publications[0], "step", 10_000)),
    "attempts were counted wrongly": ("budget", lambda h: change(h, "queue", 9, attempts=0)),
    "crashes were counted wrongly": ("budget", lambda h: change(h, "queue", 9, crashes=1)),
    "alive after its last attempt": ("budget", lambda h: change(h, "queue", 8, state="retry", due_at=1)),
    "dead before its last attempt": ("budget", lambda h: change(h, "queue", 9, state="dead", due_at=None)),
    "charged for the database's failure": (
        "infrastructure charged",
        lambda h: row(h, "attempt", id=3).update(error="StoreUnavailable: gone"),
    ),
    "charged without having failed": ("innocent charged", lambda h: h.runs.pop(2)),
    "charged for a failure in company": ("innocent charged", lambda h: setattr(h.runs[2], "single", False)),
    "one death charged to two messages": (
        "innocent charged",
        lambda h: [one.update(kind="crash") for one in h.tables["attempt"] if one["attempt"] == 1],
    ),
    "a fourth death with no culprit": (
        "endless suspicion",
        lambda h: h.tables["attempt"].extend(
            {**row(h, "attempt", id=3), "id": 100 + n, "kind": "crash", "charged": 0} for n in range(4)
        ),
    ),
    "an action without its line": ("audit", lambda h: h.tables["audit"].clear()),
    "a line without its action": ("audit", lambda h: h.actions.clear()),
    "discarded and still queued": (
        "audit",
        lambda h: h.tables["queue"].append({**row(h, "queue", seq=9), "seq": 10, "attempts": 0}),
    ),
    "a message waits behind nobody": ("stuck", lambda h: drop(h, "queue", seq=12)),
    "claimed by a worker that is gone": ("stuck", lambda h: change(h, "queue", 12, worker=5)),
    "not drained": ("stuck", undrained),
    "a delivery was settled twice": ("settled twice", lambda h: h.doubly_settled.append("m1")),
    "a delivery was never settled": (
        "unsettled",
        unsettled,
    ),
    "a lane died": ("surprise", lambda h: h.surprises.append("lane-0: KeyError")),
    "a worker that left is still there": ("ghost worker", lambda h: h.departed.append(1)),
    "a write with an old token": ("old token", lambda h: h.misdeeds.append(("old token", "settle of message 1"))),
    "a call without intent": (
        "call without intent",
        lambda h: h.calls.append(ExternalCall(1, "charge-12", intended=False, idempotent=True)),
    ),
    "a call was made twice": (
        "double call",
        lambda h: h.calls.append(ExternalCall(1, "charge-11", intended=True, idempotent=False)),
    ),
    "forgotten before its time": ("forgotten early", lambda h: forget(h, 2, after=DAY - 1)),
    "remembered under two numbers": ("accepted twice", remember_twice),
    "a consumer that was there never got it": ("left out", lambda h: h.subscribed.update({("mail", "plain"): 70})),
    "a consumer was there when what waited was placed": (
        "left out",
        both(lambda h: h.placed.append((900, 8)), lambda h: h.subscribed.update({("mail", "plain"): 800})),
    ),
    "what joined a transaction came before its commit": (
        "left out",
        both(
            lambda h: setattr(h.receptions[-3], "committed", 900),
            lambda h: h.subscribed.update({("mail", "keyed"): 800}),
        ),
    ),
    "of a source without a name": ("nameless", lambda h: change(h, "ledger", 9, source=77)),
    "a body came again under another id, unmarked": ("echo", echo),
    "published where it does not belong": ("wrong sink", lambda h: setattr(h.publications[0], "sink", "elsewhere")),
    "a destination waited for another": ("held up", hold_up),
    "a client was shown another's answer": (
        "another's answer",
        lambda h: h.answers.append(Answer(1, "svc", "k", "billing")),
    ),
    "a send has no row": ("send vanished", lambda h: h.sent.append(Sent(1, "svc", "out-4", "elsewhere", b""))),
    "queued without a ledger row": (
        "queue without ledger",
        lambda h: h.tables["queue"].append({**row(h, "queue", seq=9), "seq": 70}),
    ),
}


def test_a_clean_history_has_no_violations() -> None:
    assert violations(clean()) == []


def test_what_is_forgotten_in_time_is_as_good_as_there() -> None:
    history = clean()
    forget(history, 2, after=DAY)
    assert violations(history) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_history_is_flagged(name: str) -> None:
    kind, corrupt = CORRUPTIONS[name]
    history = clean()
    corrupt(history)
    assert kind in {violation.kind for violation in violations(history)}


def test_there_are_at_least_thirty_corruptions() -> None:
    assert len(CORRUPTIONS) >= 30


def test_an_unanswered_action_may_have_its_line_or_not() -> None:
    for answer, lines in (("unknown", 0), ("unknown", 1), ("done", 1)):
        history = clean()
        history.actions.append(Action(600, "unblock", 8, answer))
        history.tables["audit"] += [
            {"id": 9, "at": 1, "actor": "ann", "action": "unblock", "seq": 8, "reason": "test"}
        ] * lines
        assert not [violation for violation in violations(history) if violation.kind == "audit"]


def test_who_waits_for_the_lease_of_the_dead_is_not_held_up_by_a_destination() -> None:
    """It counts from the death to the take-over, and no longer: sixty seconds, fifty of them in dead hands."""
    for died, is_held_up in ((5_000_000, False), (30_000_000, True)):
        history = clean()
        hold_up(history)
        history.deaths = {1: died}
        crash = {**row(history, "attempt", id=3), "kind": "crash", "charged": 0, "at": 55_000_000}
        history.tables["attempt"] += [{**crash, "id": 9, "seq": 4}]
        assert ("held up" in {violation.kind for violation in violations(history)}) is is_held_up


def test_what_was_published_before_a_failover_took_its_finish_back_was_published() -> None:
    history = clean()
    first = history.publications[0]
    history.taken_back.append(replace(first))
    first.step = 10_000
    assert violations(history) == []


def test_of_two_bodies_that_two_services_held_for_a_later_consumer_one_is_a_mismatch() -> None:
    """Its own service had accepted it, and the other body's time of arrival orders nothing."""
    history = clean()
    other, own = digest(b"other"), digest(MESSAGES[2][2])
    first = Reception("shop", "m2", other, "keyed", "a", 1, 2, "duplicate")
    copy = Reception("shop", "m2", own, "keyed", "a", 400, 401, "mismatch")
    history.receptions += [first, copy]
    case = history.tables["quarantine"][0]
    for number, digested in enumerate((other, own), start=98):
        history.tables["quarantine"].append({**case, "id": number, "seq": 2, "hash": digested})
    assert violations(history) == []
    first.status = "mismatch"
    assert {violation.kind for violation in violations(history)} == {"false mismatch", "order"}
