"""The public class: register handlers, receive, process, run, look, steer. A thin shell; the work is in `steps/`."""

from __future__ import annotations

import asyncio
import atexit
import getpass
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar, Unpack

from onceward import identity, report
from onceward.flow import Flow, run_async, run_sync
from onceward.inline import Inline
from onceward.message import Arguments, Delivery, Receipt
from onceward.registry import Handler, KeySpec, Registry
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from onceward.steps import operate
from onceward.steps.context import Cache, Context
from onceward.steps.receive import merged, receive
from onceward.steps.subscribe import subscribe
from onceward.stores.protocol import Store, open_store
from onceward.transact import perform, perform_async
from onceward.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])

BATCH = 500
"""How many messages `receive_many` stores in one transaction: 1000 was no faster."""


class Inbox:
    """The inbox of a service: every message takes effect exactly once, in the service's own database.

    >>> inbox = Inbox("sqlite://")
    >>> inbox.migrate()
    ['0001_core']
    >>> @inbox.on("order.paid", key="order_id")
    ... def start_shipping(message, tx):
    ...     return {"shipping": message.data["order_id"]}
    >>> inbox.receive(source="shop", id="evt_1", type="order.paid", data={"order_id": 7}).status
    'accepted'
    >>> inbox.drain()
    1
    >>> inbox.receive(source="shop", id="evt_1", type="order.paid", data={"order_id": 7}).result
    {'shipping': 7}
    >>> inbox.close()
    """

    def __init__(
        self,
        url: str = "sqlite:///onceward.db",
        *,
        service: str = "default",
        prefix: str = "onceward_",
        settings: Settings | None = None,
        code_version: str | None = None,
    ) -> None:
        self.url = url
        self.settings = settings or Settings()
        self._context = Context(
            service=identity.check_name("service", service),
            prefix=identity.check_prefix(prefix),
            code_version=os.environ.get("ONCEWARD_CODE_VERSION", "") if code_version is None else code_version,
            settings=self.settings,
            registry=Registry(),
        )
        self._store = open_store(url, prefix, self.settings.lock_wait)
        self._introduced = 0
        self._inline = Inline(self._context, self._store, self._introduce)
        self._workers: set[Worker] = set()
        atexit.register(self._inline.close)

    @property
    def context(self) -> Context:
        """What its steps know, for extensions: whoever runs a step of their own on `store`."""
        return self._context

    @property
    def store(self) -> Store:
        """The database behind it, for extensions such as a supervisor or a doctor."""
        return self._store

    # Setting up

    def on(  # noqa: PLR0913 - each is one decision about a handler
        self,
        type: str,  # noqa: A002 - the word every sender uses
        *,
        consumer: str | None = None,
        key: KeySpec = None,
        version: int = 1,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        group: int | None = None,
        raw: bool = False,
        keep_body: bool = True,
    ) -> Callable[[F], F]:
        """Register `def f(message, tx)` or `async def f(message, tx)` for a type of message.

        `consumer` is the dedupe scope: handlers with different consumers each process a message once. `key` (a
        field, a dotted path, `header:NAME` or a function of the message) makes messages with the same key run
        in arrival order. `group=1` gives every message its own transaction. `raw=True` leaves the body unread
        (`message.data` is None). `keep_body=False` keeps only the hash of messages that succeeded.
        """
        if timeout is not None and not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)

        def register(function: F) -> F:
            handler = Handler(
                function=function,
                type=type,
                consumer=self._context.service if consumer is None else consumer,
                version=version,
                key=key,
                retry=retry or RetryPolicy(),
                timeout=timeout or self.settings.handler_timeout,
                group=self.settings.group if group is None else group,
                raw=raw,
                keep_body=keep_body,
            )
            self._context.registry.add(handler)
            return function

        return register

    def migrate(self) -> list[str]:
        """Create or update the tables; answers the names of the migrations that were applied."""
        return self._store.migrate()

    def migration_sql(self) -> str:
        """The same as SQL text, for Alembic, Django or a database administrator."""
        return self._store.migration_sql()

    def transaction(self) -> AbstractContextManager[Any]:
        """A plain connection to the inbox's database (sqlite3 or psycopg), committed at the end of the `with` block."""
        return self._store.raw()

    def close(self) -> None:
        """Stop what runs in the background and close the connections; fine when there is nothing."""
        for worker in list(self._workers):
            worker.request_stop()
        self._inline.close()
        self._store.close()
        atexit.unregister(self._inline.close)

    async def aclose(self) -> None:
        """As `close`, and close the connections of the running event loop."""
        await self._store.async_close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Receiving

    def receive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """Store a message for the workers; when this returns, it is committed and may be acknowledged.

        With `tx=` it joins the caller's own transaction and is stored when, and only when, that commits.
        """
        deliveries = [Delivery.of(**message)]
        if tx is not None:
            return run_sync(self._join(deliveries), self._store.join(tx).perform)[0]
        return self._receive(deliveries)[0]

    async def areceive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """As `receive`, awaited; `tx=` takes an async connection."""
        deliveries = [Delivery.of(**message)]
        if tx is not None:
            return (await run_async(self._join(deliveries), self._store.async_join(tx).perform))[0]
        return (await self._areceive(deliveries))[0]

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Receive many messages, each a mapping of `receive`'s arguments, in few transactions."""
        return [receipt for batch in _batches(messages) for receipt in self._receive(batch)]

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        return [receipt for batch in _batches(messages) for receipt in await self._areceive(batch)]

    def _receive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        receipts = perform(self._store, lambda: self._take_in(deliveries))
        self._store.ring()
        return receipts

    async def _areceive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        receipts = await perform_async(self._store, lambda: self._take_in(deliveries))
        self._store.ring()
        return receipts

    def _take_in(self, deliveries: Sequence[Delivery]) -> Flow[list[Receipt]]:
        yield from self._introduce()
        return (yield from receive(self._context, self._context.cache, deliveries))

    def _join(self, deliveries: Sequence[Delivery]) -> Flow[list[Receipt]]:
        # What is read here may be rolled back, so nothing of it is remembered.
        cache = Cache(self._context.cache.catalog)
        if self._introduced != len(self._context.registry):
            yield from subscribe(self._context, cache)
        return (yield from receive(self._context, cache, deliveries, ring=True))

    def _introduce(self) -> Flow[None]:
        """Tell the database about this process's handlers, once."""
        known = len(self._context.registry)
        if self._introduced != known:
            yield from subscribe(self._context, self._context.cache)
            self._introduced = known

    # Processing

    def process(self, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now: its ledger row, the handler's effects and its result are one commit.

        If the handler raises, the message is stored for retry and the receipt says `finished=False`: acknowledge it.
        """
        delivery = Delivery.of(**message)
        receipts = self._inline.process(delivery)
        stored = self._receive([delivery]) if self._wanted_elsewhere(delivery, receipts) else []
        return merged([*receipts.values(), *stored])

    async def aprocess(self, **message: Unpack[Arguments]) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread of its own."""
        delivery = Delivery.of(**message)
        receipts = await self._inline.process_async(delivery)
        stored = await self._areceive([delivery]) if self._wanted_elsewhere(delivery, receipts) else []
        return merged([*receipts.values(), *stored])

    def _wanted_elsewhere(self, delivery: Delivery, receipts: dict[str, Receipt]) -> bool:
        """Consumers without a handler in this process get their rows like any other message."""
        consumers = {
            subscription.consumer for subscription in self._context.cache.catalog.by_type.get(delivery.type, ())
        }
        return not receipts or bool(consumers - receipts.keys())

    def drain(self, *, concurrency: int = 1) -> int:
        """Run whatever is due, in this process, until nothing is; answers how many messages were finished."""
        with self._working(concurrency, until_idle=True) as worker:
            return worker.run()

    async def adrain(self, *, concurrency: int = 1) -> int:
        """As `drain`, with async handlers on the running event loop."""
        with self._working(concurrency, until_idle=True) as worker:
            return await worker.run_async()

    def run(self, *, concurrency: int = 1, process: str = "") -> int:
        """Work until `stop()`, SIGTERM or SIGINT; what is running is finished or rolled back, never orphaned."""
        with self._working(concurrency, process=process) as worker, _signals(worker.request_stop):
            return worker.run()

    async def arun(self, *, concurrency: int = 1, process: str = "") -> int:
        """As `run`, on the running event loop; stops at `stop()` or when it is cancelled."""
        with self._working(concurrency, process=process) as worker:
            return await worker.run_async()

    def stop(self) -> None:
        """Ask everything that runs in this process to stop; returns at once."""
        for worker in list(self._workers):
            worker.request_stop()

    @contextmanager
    def _working(self, concurrency: int, *, process: str = "", until_idle: bool = False) -> Iterator[Worker]:
        worker = Worker(self._context, self._store, concurrency=concurrency, process=process, until_idle=until_idle)
        self._workers.add(worker)
        try:
            yield worker
        finally:
            self._workers.discard(worker)

    # Seeing and steering

    def stats(self) -> report.Stats:
        """The inbox in numbers."""
        return perform(self._store, lambda: report.stats(self._context))

    def messages(  # noqa: PLR0913 - each is a filter
        self,
        *,
        status: str | None = None,
        type: str | None = None,  # noqa: A002
        key: str | None = None,
        source: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[report.Row]:
        """Messages, newest first; `before` a sequence number gives the next page."""
        filters = {"type": type, "key": key, "source": source, "before": before}
        return perform(self._store, lambda: report.messages(self._context, status=status, limit=limit, **filters))

    def message(self, seq: int) -> report.Story | None:
        """Everything known about one message."""
        return perform(self._store, lambda: report.story(self._context, seq))

    def find(self, source: str, id: str) -> list[int]:  # noqa: A002 - the word every sender uses
        """The sequence numbers of a message by the producer's own id: one for each consumer that has it."""
        return perform(self._store, lambda: report.find(self._context, source, id))

    def quarantine(self, *, limit: int = 100) -> list[report.Mismatch]:
        """Open cases of an id that came again with other bytes."""
        return perform(self._store, lambda: report.quarantine(self._context, limit=limit))

    def workers(self) -> list[report.WorkerRow]:
        """The processes that run handlers."""
        return perform(self._store, lambda: report.workers(self._context))

    def redrive(self, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Give dead messages a new budget: those named, or those that match type=, key=, source=. Answers how many."""
        chosen = self._chosen(seqs, "dead", filters)
        return sum(self._each(chosen, operate.redrive, reason, actor))

    def discard(self, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Take messages out for good: those named, or the dead ones that match type=, key=, source=."""
        chosen = self._chosen(seqs, "dead", filters)
        return sum(self._each(chosen, operate.discard, reason, actor))

    def resolve(self, case: int, resolution: operate.Resolution, *, reason: str = "", actor: str = "") -> int | None:
        """Decide about a mismatch: "keep-first", "accept-as-new" or "discard". None when it is not open (any more)."""
        who = actor or _user()
        step = operate.resolve
        answer = perform(self._store, lambda: step(self._context, case, resolution, actor=who, reason=reason))
        self._store.ring()
        return answer

    def _chosen(self, seqs: Sequence[int], status: str, filters: dict[str, Any]) -> Iterator[int]:
        if seqs or not filters:
            yield from seqs
            return
        before: int | None = None
        while page := self.messages(status=status, before=before, limit=BATCH, **filters):
            yield from (row.seq for row in page)
            before = page[-1].seq

    def _each(self, seqs: Iterable[int], action: Callable[..., Flow[bool]], reason: str, actor: str) -> Iterator[bool]:
        who = actor or _user()
        for seq in seqs:
            yield perform(self._store, lambda seq=seq: action(self._context, seq, actor=who, reason=reason))  # type: ignore[misc]
        self._store.ring()


def _batches(messages: Iterable[Arguments]) -> Iterator[list[Delivery]]:
    iterator = iter(messages)
    while batch := [Delivery.of(**message) for message in itertools.islice(iterator, BATCH)]:
        yield batch


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop gracefully on SIGTERM and SIGINT, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
