"""The runbooks that alerts lead to, each followed from the alert to its end."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from onceward import Inbox, Message, Reject, Response, Retry, RetryPolicy, Settings
from onceward.runtime.runner import perform
from onceward.steps.history import save_activity
from tests.runbooks.operator import SOURCE, Operator, answer
from tests.waiting import wait_until

SOON = RetryPolicy(first=timedelta(milliseconds=10), cap=timedelta(milliseconds=10))


def test_an_old_backlog(operator: Operator) -> None:
    started, go_on = threading.Event(), threading.Event()

    @operator.inbox.on("paid", key="order")
    def paid(message: Message) -> None:
        del message
        started.set()
        go_on.wait(60)

    first, _ = (operator.receive(number, order=number) for number in (1, 2))
    perform(operator.inbox.store, partial(save_activity, operator.inbox.context))
    operator.sees("backlog")
    assert re.search("paid.* 2 ", answer("history", *operator.store, "--per", "type"))  # received rose
    with operator.working():  # one more worker
        wait_until(started.is_set, message="the first message")
        (worker,) = json.loads(answer("workers", *operator.store, "--json"))
        assert (first, "paid") in [(one["seq"], one["type"]) for one in worker["running"]]  # the handler is slow
        go_on.set()
        wait_until(lambda: operator.status()["done"] == 2, message="what was due")
    operator.sees("backlog", "over")


def test_a_service_is_away_behind_a_backlog(operator: Operator) -> None:
    """The fourth step: its circuit pauses the handler, which "handlers" shows."""

    @operator.inbox.on("paid", retry=RetryPolicy(first=timedelta(hours=1)))
    def paid(message: Message) -> None:
        raise ConnectionRefusedError(message.id)

    for number in range(9):
        operator.receive(number)
    operator.sees("backlog")
    with operator.working():
        wait_until(lambda: "circuit open" in answer("handlers", *operator.store, "--wide"), message="the circuit")


def test_a_key_is_blocked(operator: Operator) -> None:
    mended = threading.Event()

    @operator.inbox.on("paid", key="order")
    def paid(message: Message) -> None:
        if not mended.is_set():
            raise Reject(f"order {message.data['order']} has no amount")

    dead = [operator.receive(f"{order}a", order=order) for order in (1, 2)]
    behind = [operator.receive(f"{order}b", order=order) for order in (1, 2)]
    operator.inbox.drain()
    operator.sees("blocked")
    waiting = answer("list", *operator.store, "--status", "waiting")
    assert all(str(seq) in waiting for seq in behind)
    assert "order 1 has no amount" in answer("explain", *operator.store, str(dead[0]))
    mended.set()
    answer("redrive", *operator.store, str(dead[0]), "--reason", "fixed")
    answer("unblock", *operator.store, str(dead[1]), "--reason", "decided by phone")
    operator.inbox.drain()
    assert (operator.status()["done"], operator.status()["dead"], operator.status()["waiting"]) == (3, 1, 0)
    operator.sees("blocked", "over")


def test_a_key_is_held(operator: Operator) -> None:
    back = threading.Event()

    @operator.inbox.on("paid", key="order")
    def paid(message: Message) -> None:
        if not back.is_set():
            raise Retry(f"the bank is away: {message.id}", after=3600)

    failing = operator.receive(1, order=1)
    operator.receive(2, order=1)
    operator.inbox.drain()
    operator.sees("held")
    back.set()
    answer("hasten", *operator.store, str(failing), "--reason", "the bank is back")
    operator.inbox.drain()
    assert operator.status()["done"] == 2
    operator.sees("held", "over")


def test_no_worker_runs(operator: Operator) -> None:
    @operator.inbox.on("paid")
    def paid(message: Message) -> None:
        del message

    operator.receive(1)
    operator.sees("stuck")
    assert "no worker is running; start one with: onceward run" in answer("status", *operator.store)
    assert "worker" in answer("doctor", *operator.store)
    with operator.working():
        wait_until(lambda: operator.status()["done"] == 1, message="what waited")
    operator.sees("stuck", "over")


def test_a_polled_api_fails(operator: Operator) -> None:
    mended = threading.Event()

    @operator.inbox.add_poll(every=timedelta(milliseconds=50), source="api", type="page", retry=SOON)
    def api(cursor: int | None) -> Iterator[Response]:
        if cursor is not None and not mended.is_set():
            raise PermissionError("the token has expired")
        yield Response(b"{}", cursor=(cursor or 0) + 1)

    @operator.inbox.on("page")
    def page(message: Message) -> None:
        del message

    def poll() -> Any:
        return json.loads(answer("polls", *operator.store, "--json"))[0]

    with operator.working():
        wait_until(lambda: operator.inbox.admin.stats().polls_failing, message="a turn that fails")
        operator.sees("poll")
        assert "the token has expired" in answer("polls", *operator.store)
        assert "the token has expired" in answer("doctor", *operator.store)
        assert (poll()["cursor"], poll()["responses"]) == (1, 1)  # where the last good turn ended
        mended.set()
        wait_until(lambda: poll()["responses"] > 1 and not poll()["failures"], message="the next turn, by itself")
        operator.sees("poll", "over")


def test_retention_is_too_short(sqlite_url: str) -> None:
    """The program whose retention is too short came after the one that declared the source."""
    with Inbox(sqlite_url, service="shop") as inbox:
        inbox.migrate()
        inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=9))
        Operator(inbox).receive(1)
    short = Settings(dedupe_retention=timedelta(days=8))
    with Inbox(sqlite_url, service="shop", settings=short) as inbox:
        operator = Operator(inbox)
        operator.sees("retention")
        shown = " ".join(operator.asks("doctor").split())
        assert re.search("stripe may redeliver for up to 9 days.* 8 days", shown)
    with Inbox(sqlite_url, service="shop") as inbox:
        assert not [one for one in inbox.admin.standing().concerns if one.kind == "retention"]


def test_nothing_was_pruned(operator: Operator) -> None:
    operator.inbox.on("paid")(lambda message: None)  # noqa: ARG005 - a handler's signature
    with operator.working():
        wait_until(lambda: operator.inbox.admin.storage().maintenance_due_at, message="the first turn of maintenance")
    with operator.inbox.transaction() as tx:
        tx.execute("UPDATE onceward_maintenance SET due_at = 1")  # since 1970
    operator.sees("retention")
    assert "messages forgotten" in operator.asks("prune")
    with operator.working():
        wait_until(lambda: not operator.inbox.admin.standing().concerns, message="the next turn")
    operator.sees("retention", "over")


def test_a_type_has_no_handler(operator: Operator) -> None:
    wanted, old, unwanted = operator.receive(1, "paid"), operator.receive(2, "moved"), operator.receive(3, "advert")
    operator.sees("unhandled")
    shown = answer("list", *operator.store, "--status", "unhandled")
    assert all(kind in shown for kind in ("paid", "moved", "advert"))
    ran: list[int] = []

    @operator.inbox.on("paid")
    def paid(message: Message) -> None:
        ran.append(message.seq)

    @operator.inbox.on("moved", version=2)
    def moved(message: Message) -> None:
        ran.append(message.seq)

    operator.inbox.upcast("moved", 1)(lambda data: data)
    answer("discard", *operator.store, str(unwanted), "--reason", "not for us")
    operator.inbox.drain()
    assert ran == [wanted, old]
    operator.sees("unhandled", "over")


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_outcome(operator: Operator, happened: bool) -> None:  # noqa: FBT001 - a case
    charged: list[Any] = []

    def charge() -> Any:
        charged.append("asked")
        if len(charged) == 1:
            raise TimeoutError("the answer was lost")
        return {"id": "ch_2"}

    @operator.inbox.on("paid")
    def paid(message: Message) -> Any:
        return message.once("charge", charge)

    seq = operator.receive(1)
    operator.inbox.drain()
    answer("retry-now", *operator.store, str(seq), "--reason", "a second try, which does not call again")
    operator.inbox.drain()
    assert "OutcomeUnknown" in answer("list", *operator.store, "--status", "dead")
    with operator.inbox.transaction() as tx:
        tx.execute("UPDATE onceward_effect SET started_at = started_at - 3600000000")  # an hour passes
    operator.sees("effect")
    shown = json.loads(answer("effects", "list", *operator.store, "--json"))
    assert [(one["seq"], one["name"], bool(one["key"])) for one in shown] == [(seq, "charge", True)]
    found = ("happened", "--result", '{"id": "ch_1"}') if happened else ("did-not-happen",)
    answer("effects", "settle", *operator.store, str(seq), "charge", *found, "--reason", "asked the bank")
    answer("redrive", *operator.store, str(seq), "--reason", "settled")
    operator.inbox.drain()
    detail = operator.inbox.admin.message(seq)
    assert detail is not None
    assert detail.result == {"id": "ch_1" if happened else "ch_2"}
    assert len(charged) == (1 if happened else 2)
    operator.sees("effect", "over")


class Broker:
    """A sink that can be away."""

    def __init__(self) -> None:
        self.is_away, self.published = True, 0

    def publish(self, message: Message) -> None:
        """Refuse, or count."""
        if self.is_away:
            raise ConnectionRefusedError(f"{message.type}: no broker")
        self.published += 1


def test_outgoing_messages_are_not_published(operator: Operator) -> None:
    operator.inbox.send("shipped", {}, to="warehouse")
    operator.sees("outbox")

    @operator.inbox.on("paid")
    def paid(message: Message) -> None:
        del message

    assert "1 outgoing message to warehouse due: no sink of that name here" in operator.asks("doctor")
    broker = Broker()
    operator.inbox.add_sink("warehouse", broker, retry=RetryPolicy(attempts=2, first=timedelta(hours=1)), circuit=None)
    operator.inbox.drain()
    (row,) = operator.inbox.admin.messages(outgoing=True)
    assert "no broker" in answer("list", *operator.store, "--outgoing", "--status", "retrying")
    assert "no broker" in answer("explain", *operator.store, str(row.seq))
    operator.inbox.admin.retry_now(row.seq, reason="once more")
    operator.inbox.drain()
    assert operator.status()["outbox_dead"] == 1
    broker.is_away = False
    answer("redrive", *operator.store, "--all", "--outgoing", "--yes", "--reason", "the broker is back")
    operator.inbox.drain()
    assert (operator.status()["outbox_sent"], operator.status()["outbox_dead"], broker.published) == (1, 0, 1)
    operator.sees("outbox", "over")
