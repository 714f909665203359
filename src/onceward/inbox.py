"""The public class: register handlers, receive, process, run, look, steer. A thin shell; the work is in `steps/`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from onceward import checks, identity
from onceward.blobs.bodies import LargeBodies
from onceward.breaker import CONNECTIONS, Breaker, Circuit
from onceward.copies import Copies
from onceward.deferred import Deferred, asyncio
from onceward.entrance import Entrance
from onceward.errors import StoreUnavailable
from onceward.flow import Flow, run_async, run_sync
from onceward.gather import Gatherings, batches
from onceward.inline import Inline
from onceward.message import Arguments, Delivery, Receipt, delivery_of
from onceward.registry import Handler, KeySpec, Promise, Registry, check_options
from onceward.retry import RetryPolicy
from onceward.sending import Sending
from onceward.settings import Settings, check_parts
from onceward.signals import stopped_by_signals
from onceward.spooling import Spooling
from onceward.steps.blob import put_away
from onceward.steps.context import Context
from onceward.steps.introduce import introduce
from onceward.steps.join import join
from onceward.steps.receive import merged, receive
from onceward.stores.protocol import open_store
from onceward.transact import apart, async_performer, perform, perform_async, performer, repeatable
from onceward.upkeep import Upkeep
from onceward.worker import Worker

if TYPE_CHECKING:
    from onceward.blobs import protocol as blob_stores
else:
    blob_stores = Deferred("blobs.protocol")

F = TypeVar("F", bound=Callable[..., Any])


class Inbox(Entrance, Sending, Upkeep):
    """The inbox of a service: every message takes effect exactly once, in the service's own database.

    >>> inbox = Inbox("sqlite://")
    >>> inbox.migrate()
    ['0001_core', '0002_upkeep']
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

    def __init__(  # noqa: PLR0913 - what an inbox is made of
        self,
        url: str = "sqlite:///onceward.db",
        *,
        service: str = "default",
        prefix: str = "onceward_",
        settings: Settings | None = None,
        code_version: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        blobs: str | None = None,
        blob_above: int = 262_144,
        archive: str | os.PathLike[str] | None = None,
    ) -> None:
        check_parts(url, settings, code_version, spool=spool, blobs=blobs, blob_above=blob_above, archive=archive)
        self.url = url
        self.settings = settings or Settings()
        if archive is not None:
            self.settings = replace(self.settings, archive_first=True)
        self._archive_folder = archive
        context = Context(
            service=identity.check_service(service),
            prefix=identity.check_prefix(prefix),
            code_version=os.environ.get("ONCEWARD_CODE_VERSION", "") if code_version is None else code_version,
            settings=self.settings,
            registry=Registry(),
            large=LargeBodies(None if blobs is None else blob_stores.open_blobs(blobs), blob_above),
        )
        super().__init__(context, open_store(url, prefix, self.settings.lock_wait, self.settings.pool))
        self._copies = Copies(self.settings.lock_wait)
        self.inline = Inline(self._context, self._store, self.introduce, self._copies)
        self._workers: set[Worker] = set()
        self._gatherings = Gatherings(self._receive, self._areceive, single_writer=self._store.single_writer)
        self._spooling = Spooling(spool, self._store_first, self.settings.poll.total_seconds())
        atexit.register(self.inline.close)

    # Setting up

    def on(  # noqa: PLR0913 - each is one decision about a handler
        self,
        type: str,  # noqa: A002 - the word every sender uses
        *,
        consumer: str | None = None,
        key: KeySpec = None,
        key_required: bool = True,
        aggregate: str | None = None,
        version: int = 1,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        group: int | None = None,
        raw: bool = False,
        keep_body: bool = True,
        batch: bool = False,
        sequence: str | None = None,
        gap: timedelta = timedelta(minutes=5),
        on_dead: Literal["block", "continue"] = "block",
        circuit: Circuit | None = CONNECTIONS,
        guarantee: Promise | None = None,
    ) -> Callable[[F], F]:
        """Register `def f(message, tx)` or `async def f(message, tx)` for a type of message.

        `consumer` is the dedupe scope: handlers with different consumers each process a message once. `key` (a
        field, a dotted path, `header:NAME` or a function of the message) makes messages with the same key run in
        arrival order; one without its key is dead, or runs without order with `key_required=False`. `aggregate` gives
        a type's keys a namespace of their own. `group=1` gives every message its own transaction. `raw=True` leaves
        the body unread, `keep_body=False` keeps only the hash of messages that succeeded, `batch=True` gives the
        handler a list. `sequence` (a path like `key`) is the message's number within its key: each waits for the one
        before it, up to `gap`; late comers are skipped. `on_dead="continue"` lets a key go on without a dead message.
        `circuit` pauses the handler after failures in a row; by default only connection errors count, None switches
        it off. `guarantee="exactly-once"` makes `run` refuse to start where less is in force.
        """
        limit = check_options(type, timeout, circuit) or self.settings.handler_timeout

        def register(function: F) -> F:
            handler = Handler(
                function=function,
                type=type,
                consumer=self._context.service if consumer is None else consumer,
                version=version,
                key=key,
                key_required=key_required,
                aggregate=aggregate,
                retry=self.settings.retry if retry is None else retry,
                timeout=limit,
                group=self.settings.group if group is None else group,
                raw=raw,
                keep_body=keep_body,
                batch=batch,
                sequence=sequence,
                gap=gap,
                on_dead=on_dead,
                breaker=Breaker(circuit) if circuit else None,
                guarantee=guarantee,
            )
            self._context.registry.add(handler)
            return function

        return register

    def upcast(self, type: str, version: int) -> Callable[[F], F]:  # noqa: A002 - as in `on`
        """Register how the data of a version becomes the data of the next: `@inbox.upcast("order.paid", 1)`."""

        def register(function: F) -> F:
            self._context.registry.add_upcaster(type, version, function)
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
        self._spooling.stop()
        self._leave()
        self.inline.close()
        self._store.close()
        atexit.unregister(self.inline.close)

    async def aclose(self) -> None:
        """As `close`, and close the connections of the running event loop."""
        await self._gatherings.finish()
        await self._store.async_close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Receiving

    def receive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """Store a message for the workers; when this returns, it is committed and may be acknowledged.

        With `tx=` it joins the caller's own transaction and is stored when, and only when, that commits. Where the
        inbox has a spool, a message that comes while the database is away waits there, on the disk: `spooled`.
        """
        delivery = delivery_of("receive", message)
        if tx is not None:
            return run_sync(self._join([delivery]), performer(self._store.join(tx)))[0]
        self._store.check_caller()  # here, for another thread may store it
        self._copies.wait(delivery)  # in nobody's company: the others would wait too
        return self._gatherings.of_threads().receive(self._lightened(delivery))

    async def areceive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """As `receive`, awaited; `tx=` takes an async connection."""
        delivery = delivery_of("areceive", message)
        if tx is not None:
            return (await run_async(self._join([delivery]), async_performer(self._store.async_join(tx))))[0]
        if self._context.large.wants(delivery):
            delivery = await asyncio.to_thread(self._lightened, delivery)
        self._store.check_caller()
        await self._copies.async_wait(delivery)
        return await self._gatherings.of_tasks().receive(delivery)

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Receive many messages, each a mapping of `receive`'s arguments, in few transactions."""
        return [receipt for batch in batches(messages) for receipt in self._receive(batch)]

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        return [receipt for batch in batches(messages) for receipt in await self._areceive(batch)]

    def _lightened(self, delivery: Delivery) -> Delivery:
        """A large body is put away before its message meets others, who would wait for it in a shared transaction."""
        if not self._context.large.wants(delivery) or self._spooling.waiting:
            return delivery
        try:
            return apart(self._store, lambda: put_away(self._context, [delivery], self._context.cache))[0]
        except StoreUnavailable:
            if self._spooling.spool is None:
                raise
            return delivery

    def _receive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        return self._spooling.attempt(deliveries, lambda: self._store_first(deliveries))

    async def _areceive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        return await self._spooling.attempt_async(deliveries, lambda: self._astore_first(deliveries))

    def _store_first(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        with self._copies.turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = perform(self._store, self._taking_in(deliveries))
        self._store.ring()
        return receipts

    async def _astore_first(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        async with self._copies.async_turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = await perform_async(self._store, self._taking_in(deliveries))
        self._store.ring()
        return receipts

    def _taking_in(self, deliveries: Sequence[Delivery]) -> Callable[[], Flow[list[Receipt]]]:
        return repeatable(lambda since: self._take_in(deliveries, since), self._context.clock)

    def _take_in(self, deliveries: Sequence[Delivery], since: float | None) -> Flow[list[Receipt]]:
        yield from self.introduce({delivery.type for delivery in deliveries})
        return (yield from receive(self._context, self._context.cache, deliveries, since=since))

    def _join(self, deliveries: Sequence[Delivery]) -> Flow[list[Receipt]]:
        return join(self._context, deliveries, self._apart)

    def introduce(self, types: Collection[str] = ()) -> Flow[None]:
        """Tell the database about this process's handlers, once; a step, for extensions that take messages in."""
        return introduce(self._context, types)

    # Processing

    def process(self, *, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now: its ledger row, the handler's effects and its result are one commit.

        If the handler raises, the message is stored for retry: the receipt's `outcome` is "retrying" or "dead", its
        `error` says why, and you may acknowledge it. `raise_on_failure=True` raises the handler's own exception
        instead, once the message is stored.
        """
        delivery, raised = delivery_of("process", message), list[BaseException]()
        checks.flag("process()", "raise_on_failure", raise_on_failure)
        (receipt,) = self._spooling.attempt([delivery], lambda: self._process(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

    def _process(self, delivery: Delivery, raised: list[BaseException]) -> list[Receipt]:
        receipts, error = self.inline.process(delivery)
        stored = self._store_first([delivery]) if self._wanted_elsewhere(delivery, receipts) else []
        raised += [error] if error else []
        return [merged([*receipts.values(), *stored])]

    async def aprocess(self, *, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread of its own."""
        delivery, raised = delivery_of("aprocess", message), list[BaseException]()
        checks.flag("aprocess()", "raise_on_failure", raise_on_failure)
        (receipt,) = await self._spooling.attempt_async([delivery], lambda: self._aprocess(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

    async def _aprocess(self, delivery: Delivery, raised: list[BaseException]) -> list[Receipt]:
        receipts, error = await self.inline.process_async(delivery)
        stored = await self._astore_first([delivery]) if self._wanted_elsewhere(delivery, receipts) else []
        raised += [error] if error else []
        return [merged([*receipts.values(), *stored])]

    def _wanted_elsewhere(self, delivery: Delivery, receipts: dict[str, Receipt]) -> bool:
        """Consumers without a handler in this process get their rows like any other message."""
        consumers = {
            subscription.consumer for subscription in self._context.cache.catalog.by_type.get(delivery.type, ())
        }
        return not receipts or bool(consumers - receipts.keys())

    def drain(self, *, concurrency: int = 1) -> int:
        """Run whatever is due, in this process, until nothing is; answers how many messages were finished."""
        finished = 0
        while True:
            with self._working(concurrency, until_idle=True, roles=("handle",)) as worker:
                handled = worker.run()
            finished += handled
            if not self._sinks or not self._relayed(concurrency):
                return finished

    def _relayed(self, concurrency: int) -> int:
        with self._working(concurrency, until_idle=True, roles=("relay",)) as worker:
            return worker.run()

    async def adrain(self, *, concurrency: int = 1) -> int:
        """As `drain`, with async handlers on the running event loop."""
        finished = 0
        while True:
            with self._working(concurrency, until_idle=True, roles=("handle",)) as worker:
                finished += await worker.run_async()
            if not self._sinks:
                return finished
            with self._working(concurrency, until_idle=True, roles=("relay",)) as worker:
                if not await worker.run_async():
                    return finished

    def run(self, *, concurrency: int = 1, process: str = "") -> int:
        """Work until `stop()`, SIGTERM or SIGINT; what is running is finished or rolled back, never orphaned."""
        with self._working(concurrency, process=process, before=self._check_guarantees) as worker:
            stop = worker.request_stop
            with stopped_by_signals(stop), self._attended(stop), self._chores():
                return worker.run()

    async def arun(self, *, concurrency: int = 1, process: str = "") -> int:
        """As `run`, on the running event loop; stops at `stop()` or when it is cancelled."""
        working = self._working(concurrency, process=process, before=self._check_guarantees)
        with working as worker, self._attended(worker.request_stop), self._chores():
            return await worker.run_async()

    def stop(self) -> None:
        """Ask everything that runs in this process to stop; returns at once."""
        for worker in list(self._workers):
            worker.request_stop()

    @contextmanager
    def _working(self, concurrency: int, **options: Any) -> Iterator[Worker]:
        checks.whole("run() and drain()", "concurrency", concurrency)
        checks.text("run()", "process", options.get("process", ""), empty=True)
        self._spooling.start()  # what a process that is gone has left
        worker = Worker(self._context, self._store, concurrency=concurrency, **options)
        self._workers.add(worker)
        try:
            yield worker
        finally:
            self._workers.discard(worker)
