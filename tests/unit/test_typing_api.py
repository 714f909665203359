"""Typed use of the public API: mypy --strict accepts every line, and infers what `assert_type` says.

The functions are not called (they would need a database); the tests only make sure that nothing public is left out.
"""

from __future__ import annotations

import ast
import inspect
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import onceward
from onceward import (
    Circuit,
    ConfigurationError,
    ContractViolation,
    Failure,
    Inbox,
    InvalidMessage,
    Message,
    OncewardError,
    OutcomeUnknown,
    PollFailed,
    Receipt,
    Reject,
    Response,
    Retry,
    RetryPolicy,
    Router,
    Settings,
    StoreError,
    StoreUnavailable,
    execute,
    one_row,
)
from onceward.admin.alerts import Alerts, Rules
from onceward.admin.decisions import Applied, Selection
from onceward.admin.dry_run import DryRunReport
from onceward.admin.messages import Row, Stats
from onceward.admin.overview import AuditLine, BlockedKey, DeadGroup, Failing, Minute, Running, SourceRow, Storage
from onceward.admin.timeline import Explanation
from onceward.message import Arguments
from onceward.runtime.running import Lifespan
from onceward.steps.prune import Pruned
from onceward.stores.moves.catalog import Subscribed
from onceward.webhooks import Limits, Stripe, Webhooks


def set_up() -> Inbox:
    """An inbox with everything that can be said about it."""
    inbox = Inbox(
        "sqlite:///shop.db",
        service="shop",
        prefix="shop_",
        settings=Settings(lease=timedelta(seconds=20), group=50),
        code_version="1.2.3",
    )
    assert_type(inbox.migrate(), list[str])
    assert_type(inbox.migration_sql(), str)
    assert_type(inbox.settings, Settings)
    return inbox


def add_note(message: Message, tx: sqlite3.Connection) -> None:
    """A handler."""


def register(inbox: Inbox) -> None:
    """Handlers keep their own types behind the decorator."""
    router = Router(prefix="order.", key="order_id", retry=RetryPolicy(attempts=5))
    router.on("sent", group=1)(add_note)
    inbox.include(router)
    inbox.discover("shop.handlers")
    inbox.provide(Circuit, lambda: Circuit(failures=3))

    @inbox.middleware
    def around(message: Message) -> Iterator[None]:
        assert_type(message.id, str)
        yield

    @inbox.middleware(inside=True)
    async def inside(message: Message, tx: Any) -> AsyncIterator[None]:
        assert_type((message, tx), tuple[Message[Any], Any])
        yield

    @inbox.on("order.paid", key="order_id", retry=RetryPolicy(attempts=5), timeout=30, circuit=Circuit(failures=3))
    def start_shipping(message: Message, tx: sqlite3.Connection) -> dict[str, int]:
        one_row(tx.execute("UPDATE orders SET paid = 1 WHERE id = ?", (message.data["order_id"],)))
        execute(tx, "INSERT INTO payments VALUES (:order_id)", message.data)
        if message.attempt > 3:
            raise Reject("given up")
        if message.headers.get("busy"):
            raise Retry("busy", after=timedelta(seconds=5))
        assert_type(message.send("shipped", {"order": 7}, key=7, to="warehouse"), str)
        assert_type(message.idempotency_key("charge"), str)
        return {"order": 7}

    @inbox.on("order.paid", consumer="mail", key=lambda message: message.data["order_id"], on_dead="continue")
    async def send_mail(message: Message, tx: Any) -> None:
        await message.once("mail", lambda: tx, idempotent=True)

    @inbox.on("measured", batch=True, group=10, keep_body=False)
    def store(messages: list[Message], tx: sqlite3.Connection) -> None:
        tx.executemany("INSERT INTO samples VALUES (?)", [(message.seq,) for message in messages])

    @inbox.on("changed", key="account", sequence="version", gap=timedelta(minutes=1), raw=True, version=2)
    def apply(message: Message, _tx: sqlite3.Connection) -> None:
        assert_type(message.body, bytes)
        assert_type(message.key, str | None)

    @inbox.upcast("changed", 1)
    def add_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "EUR"}

    assert_type(start_shipping(message_of_some_kind(), sqlite3.connect("x")), dict[str, int])
    assert_type(add_currency({}), dict[str, Any])
    shipped: Awaitable[None] = send_mail(message_of_some_kind(), None)
    del shipped, store, apply


def message_of_some_kind() -> Message:
    """A message, for the type checker."""
    raise AssertionError("only the type checker reads this")


class Queue:
    """A sink of one's own."""

    def publish(self, message: Message) -> None:
        """Confirmed when it returns."""


class AwaitedQueue:
    """A sink of one's own, awaited."""

    async def publish(self, message: Message) -> None:
        """Confirmed when it returns."""


def receive(inbox: Inbox) -> None:
    """Every way in, and out."""
    receipt = inbox.receive(source="shop", id="e1", type="order.paid", data={"order_id": 7})
    assert_type(receipt, Receipt)
    if receipt.status == "mismatch":
        raise InvalidMessage("the same id with other bytes")
    assert_type(receipt.seq, int)
    assert_type(receipt.finished, bool)
    assert_type(receipt.error, Failure | None)
    with inbox.transaction() as tx:
        inbox.receive(tx=tx, source="shop", id="e2", type="order.paid", body=b"{}", headers={"a": "b"}, version=2)
        assert_type(inbox.send("shipped", {"order": 7}, tx=tx, key="7", to="warehouse"), str)
    some: list[Arguments] = [
        {"source": "shop", "id": "e3", "type": "order.paid", "key": 7, "position": 17},
        {"source": "shop", "id": "e4", "type": "order.paid", "body": b"{}", "headers": None},
    ]
    assert_type(inbox.receive_many(some), list[Receipt])
    assert_type(inbox.process_many(some), list[Receipt])
    assert_type(inbox.process(source="shop", id="e5", type="order.paid", data=None, raise_on_failure=True), Receipt)
    inbox.add_sink("default", Queue())
    inbox.add_sink("warehouse", AwaitedQueue(), retry=RetryPolicy.classic())
    assert_type(inbox.webhooks({"/stripe": Stripe("secret")}, limits=Limits(body=1000, memory=10_000)), Webhooks)
    inbox.add_source(
        "redis://localhost/0?stream=orders", source="orders", id="number", type="=order.paid", mode="direct"
    )


def poll(inbox: Inbox) -> None:
    """A polled API keeps its own types behind the decorator, too."""

    @inbox.add_poll(every=timedelta(minutes=1), source="api", timeout=timedelta(seconds=20), retry=RetryPolicy())
    def pages(cursor: int | None) -> Iterator[Response]:
        yield Response(b"{}", cursor=(cursor or 0) + 1, id="page", headers={"etag": "x"})

    @inbox.add_poll(every=timedelta(minutes=1), source="other", type="other.page")
    async def pages_async(cursor: str | None) -> AsyncIterator[Response]:
        yield Response(b"{}", cursor=cursor)

    assert_type(pages(None), Iterator[Response])
    assert_type(pages_async(None), AsyncIterator[Response])
    inbox.ingress.poll_now("api")
    assert_type([row.failures for row in inbox.admin.polls()], list[int])


async def receive_async(inbox: Inbox) -> None:
    """The same, awaited."""
    assert_type(await inbox.areceive(source="shop", id="e1", type="order.paid"), Receipt)
    assert_type(await inbox.areceive_many([]), list[Receipt])
    assert_type(await inbox.aprocess_many([]), list[Receipt])
    assert_type(await inbox.aprocess(source="shop", id="e1", type="order.paid"), Receipt)
    assert_type(await inbox.asend("shipped"), str)
    await inbox.ingress.apoll_now("api")
    assert_type(await inbox.adrain(concurrency=2), int)
    assert_type(await inbox.arun(), int)
    await inbox.aclose()


def operate(inbox: Inbox) -> int:
    """Running, looking and steering."""
    with inbox:
        assert_type(inbox.drain(), int)
        assert_type(inbox.run(concurrency=4), int)
        inbox.stop()
    assert_type(inbox.lifespan(concurrency=4), Lifespan)
    stats = inbox.admin.stats()
    assert_type(stats.dead, int)
    for row in inbox.admin.messages(status="dead", type="order.paid", limit=10):
        assert_type(row.error, str | None)
        detail = inbox.admin.message(row.seq)
        if detail is not None:
            assert_type(detail.body, bytes | None)
    assert_type(inbox.admin.keep_first(source="stripe", type="invoice.paid", reason="renamed", actor="ann"), int)
    for case in inbox.admin.quarantine():
        assert_type(inbox.admin.resolve(case.case, "keep-first", reason="seen", actor="ann"), int | None)
    inbox.add_hook(lambda *_: nullcontext())
    assert_type(inbox.admin.alert(lambda _: None, rules=Rules(every=timedelta(seconds=5))), Alerts)
    assert_type(inbox.admin.explain(1), Explanation | None)
    assert_type(inbox.admin.dry_run(1), DryRunReport)
    assert_type(inbox.admin.find_anywhere("e1"), list[int])
    assert_type(inbox.admin.record_reading(1, reason="payload"), bool)
    assert_type(inbox.admin.running(), list[Running])
    assert_type(inbox.admin.dead_groups(), list[DeadGroup])
    assert_type(inbox.admin.blocked_keys(), list[BlockedKey])
    assert_type(inbox.admin.subscriptions("mail"), list[Subscribed])
    assert_type(inbox.admin.unsubscribe("mail", "paid", discard=True, reason="retired"), int)
    assert_type(inbox.admin.failing(times=3), Failing)
    assert_type(inbox.admin.sources(), list[SourceRow])
    assert_type(inbox.admin.storage(), Storage)
    assert_type(inbox.admin.audit(), list[AuditLine])
    assert_type(inbox.admin.traffic(), list[Minute])
    for effect in inbox.admin.effects():
        assert_type(inbox.admin.settle_effect(effect.seq, effect.name, happened=True, result={"id": 1}), bool)
    assert_type([worker.pid for worker in inbox.admin.workers()], list[int])
    assert_type(inbox.admin.find("shop", "e1"), list[int])
    assert_type(inbox.retention.drain_spool(), int)
    assert_type(inbox.retention.archive("folder") + inbox.retention.erase_archived("folder", key="customer-17"), int)
    found = inbox.retention.personal(field=("customer.email", "ann@example.com"))
    assert_type(inbox.retention.erase(*(match.seq for match in found), reason="request 7"), list[int])
    inbox.retention.declare_source("stripe", redelivers_for=timedelta(days=3))
    assert_type(
        inbox.retention.prune(progress=tell).bodies + inbox.retention.collect(older_than=timedelta(days=2)), int
    )
    return inbox.admin.redrive(1, 2, out_of_order=True) + inbox.admin.discard(3, reason="x") + inbox.admin.unblock(4)


async def awaited_forms(inbox: Inbox) -> None:
    """They have the arguments and results of the methods they stand for."""
    assert_type(await inbox.admin.astats(), Stats)
    assert_type(await inbox.admin.amessages(status="dead", limit=5), list[Row])
    assert_type(await inbox.admin.aexplain(1), Explanation | None)
    found = await inbox.admin.aselect(type="order.paid", limit=5)
    assert_type(found, Selection)
    assert_type(await inbox.admin.aapply("redrive", found.seqs, reason="fixed"), Applied)
    assert_type(await inbox.admin.aredrive(1, 2, out_of_order=True, reason="fixed"), int)
    assert_type(await inbox.retention.aerase(1, reason="request 7"), list[int])
    assert_type(await inbox.retention.aprune(progress=tell), Pruned)
    await inbox.admin.amessages(stats="dead")  # type: ignore[call-arg] # no such argument
    await inbox.admin.aapply("redriven", [1])  # type: ignore[arg-type] # no such action


def tell(so_far: Pruned) -> None:
    """What a long prune tells about itself."""
    assert_type(so_far.messages, int)


def fail(error: Exception) -> str:
    """What can go wrong, by what the reader can do about it."""
    match error:
        case InvalidMessage() | ContractViolation() | OutcomeUnknown():
            return "look at the message"
        case StoreUnavailable() | PollFailed():
            return "try again later"
        case ConfigurationError():
            return "look at the program"
        case StoreError() | OncewardError():
            return "look at the database"
    return "not ours"


def test_every_public_name_has_a_typed_example() -> None:
    """Whatever is exported is used above."""
    tree = ast.parse(Path(__file__).read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(onceward.__all__) <= used


def test_every_public_method_of_the_inbox_has_a_typed_example() -> None:
    """Whatever a reader finds on `Inbox` is called above; what is for extensions is not."""
    source = inspect.getsource(sys.modules[__name__])
    methods = {name for name, value in inspect.getmembers(Inbox, inspect.isfunction) if not name.startswith("_")}
    missing = {name for name in methods if f"inbox.{name}(" not in source} - {"close", "introduce"}
    assert not missing


def test_errors_say_what_to_do() -> None:
    """Every kind of error is told apart by its class alone."""
    assert fail(StoreUnavailable("x")) == "try again later"
    assert fail(StoreError("x")) == "look at the database"
    assert fail(InvalidMessage("x")) == "look at the message"
    assert fail(ConfigurationError("x")) == "look at the program"
    assert fail(ValueError("x")) == "not ours"
    assert not issubclass(Retry, OncewardError)
    assert not issubclass(Reject, OncewardError)
