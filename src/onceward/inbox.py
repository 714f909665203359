"""The public class: register handlers, receive, process, send, run. A thin shell; the work is in `steps/`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from onceward.blobs.bodies import LargeBodies
from onceward.deferred import asyncio
from onceward.domain import checks, identity
from onceward.domain.breaker import CONNECTIONS, Breaker, Circuit
from onceward.domain.hooks import Watcher
from onceward.message import Arguments, Receipt, SendArguments, delivery_of
from onceward.registry import Handler, KeySpec, Promise, Registry, check_options
from onceward.retry import RetryPolicy
from onceward.runtime.inline import Inline
from onceward.runtime.receiver import Receiver
from onceward.runtime.sender import Sender
from onceward.runtime.signals import stopped_by_signals
from onceward.runtime.workers import Workers
from onceward.settings import Settings, check_parts
from onceward.steps.context import Context
from onceward.stores.protocol import Store, open_store

if TYPE_CHECKING:
    from onceward.admin.admin import Admin
    from onceward.retention.retention import Retention
    from onceward.runtime.ingress import Ingress
    from onceward.runtime.relay import Outlets
    from onceward.sinks.protocol import Sink
    from onceward.webhooks import Limits, Verifier, Webhooks

F = TypeVar("F", bound=Callable[..., Any])


class Inbox:
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
        self.context = Context(
            service=identity.check_service(service),
            prefix=identity.check_prefix(prefix),
            code_version=os.environ.get("ONCEWARD_CODE_VERSION", "") if code_version is None else code_version,
            settings=self.settings,
            registry=Registry(),
            large=LargeBodies.at(blobs, above=blob_above),
        )
        """What its steps know, for extensions with steps of their own."""
        self.store: Store = open_store(url, prefix, self.settings.lock_wait, self.settings.pool)
        """The database behind it, for extensions such as a supervisor or a doctor."""
        self._receiver = Receiver(self.context, self.store, spool)
        self._sender = Sender(self.context, self.store)
        self.inline = Inline(self.context, self.store, self._receiver)
        self._workers = Workers(self.context, self.store, self._receiver.spooling)
        atexit.register(self.inline.close)

    # The rest of the house, made when it is first used: most programs never need it.

    @cached_property
    def admin(self) -> Admin:
        """Seeing and steering: numbers, lists, one message's story, redrive, discard, alerts."""
        from onceward.admin.admin import Admin  # noqa: PLC0415 - see above

        return Admin(self.context, self.store)

    @cached_property
    def retention(self) -> Retention:
        """What keeps the tables small and clean: prune, archive, erase, collect, and the spool."""
        from onceward.retention.retention import Retention  # noqa: PLC0415 - see above

        return Retention(self.context, self.store, self.admin, self._receiver.spooling, self._archive_folder)

    @cached_property
    def ingress(self) -> Ingress:
        """The brokers, polled APIs and web applications it takes messages from, for extensions."""
        from onceward.runtime.ingress import Ingress  # noqa: PLC0415 - see above

        return Ingress(self, self._receiver)

    @cached_property
    def _outlets(self) -> Outlets:
        from onceward.runtime.relay import Outlets  # noqa: PLC0415 - see above

        return Outlets(self.context)

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
                consumer=self.context.service if consumer is None else consumer,
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
            self.context.registry.add(handler)
            return function

        return register

    def upcast(self, type: str, version: int) -> Callable[[F], F]:  # noqa: A002 - as in `on`
        """Register how the data of a version becomes the data of the next: `@inbox.upcast("order.paid", 1)`."""

        def register(function: F) -> F:
            self.context.registry.add_upcaster(type, version, function)
            return function

        return register

    def add_source(  # noqa: PLR0913 - each is a property of the source
        self,
        url: str,
        *,
        source: str,
        id: str | None = None,  # noqa: A002 - the words every sender uses
        type: str | None = None,  # noqa: A002
        batch: int = 100,
        inline: bool = False,
        redelivers_for: timedelta | None = None,
        rate: float | None = None,
    ) -> None:
        """Take messages from a broker while `run` runs: `add_source("redis://host/0?stream=orders", source="shop")`.

        `id` and `type` say where a message carries them: a field, a dotted path, `header:NAME`; `id="position"` is the
        place in the broker (a producer that sends twice has then sent two messages), `type="=order.paid"` the
        type of all. Without them: CloudEvents, or the broker's own properties. `redelivers_for` says how late the
        broker may deliver a copy, where that is not the usual time; `rate` how many messages a second this process
        takes at most.
        """
        names: dict[str, Any] = {"source": source, "id": id, "type": type}
        self.ingress.add_source(url, **names, batch=batch, inline=inline, redelivers_for=redelivers_for, rate=rate)

    def add_poll(
        self,
        *,
        every: timedelta,
        source: str,
        type: str | None = None,  # noqa: A002 - the words every sender uses
        timeout: timedelta = timedelta(minutes=1),
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Poll an API while `run` runs: a generator function, `def` or `async def`, that yields raw responses.

        It is called with the cursor of the last stored response (None at first), by one process at a time. Each
        `yield Response(body, cursor=...)` is stored as a message of `type` (by default "SOURCE.response") together
        with its cursor before the function goes on; a handler reads it. `timeout` is how long it may take for a
        response before another process may take over; `retry` spaces the turns after one that raised.
        """

        def register(function: F) -> F:
            self.ingress.add_poll(function, every=every, source=source, type=type, timeout=timeout, retry=retry)
            return function

        return register

    def webhooks(self, endpoints: Mapping[str, Verifier], *, limits: Limits | None = None) -> Webhooks:
        """An ASGI application that takes webhooks: `app.mount("/hooks", inbox.webhooks({"/stripe": Stripe(secret)}))`.

        It answers 200 when an event is committed (or was before), 4xx to what is not authentic, and 503 while the
        database is away. `.wsgi` is the same for WSGI, `.wsgi.django("/stripe")` a Django view. A retention that is
        shorter than a sender may still send copies is refused here; so are different secrets under one source.
        """
        return self.ingress.webhooks(endpoints, limits)

    def add_sink(
        self, name: str, sink: Sink | str, *, retry: RetryPolicy | None = None, circuit: Circuit | None = None
    ) -> None:
        """Publish outgoing messages with `to=name` through a sink, or to a broker by its URL.

        The name "default" takes those without `to`. Each destination is published to by itself, and pauses by itself
        after failures in a row (`circuit`, after 5 for 10 seconds unless given).
        """
        self._outlets.add(name, sink, retry, circuit)

    def watch(self, watcher: Watcher) -> None:
        """Surround every call of a handler: `watcher(handler, messages)` returns a context manager.

        For spans, metrics and the like. A watcher sees the handler's error, and can neither fail nor save a message.
        """
        self.context.registry.watchers.append(checks.function("watch()", "watcher", watcher, takes=2))

    def migrate(self) -> list[str]:
        """Create or update the tables; answers the names of the migrations that were applied."""
        return self.store.migrate()

    def migration_sql(self) -> str:
        """The same as SQL text, for Alembic, Django or a database administrator."""
        return self.store.migration_sql()

    def transaction(self) -> AbstractContextManager[Any]:
        """A plain connection to the inbox's database (sqlite3 or psycopg), committed at the end of the `with` block."""
        return self.store.raw()

    def close(self) -> None:
        """Stop what runs in the background and close the connections; fine when there is nothing."""
        self.stop()
        self._receiver.spooling.stop()
        if "ingress" in vars(self):
            self.ingress.close()
        if "_outlets" in vars(self):
            self._outlets.close()
        self.inline.close()
        self.store.close()
        atexit.unregister(self.inline.close)

    async def aclose(self) -> None:
        """As `close`, and close the connections of the running event loop."""
        await self._receiver.finish()
        await self.store.async_close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Taking messages in, and sending

    def receive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """Store a message for the workers; when this returns, it is committed and may be acknowledged.

        With `tx=` it joins the caller's own transaction and is stored when, and only when, that commits. Where the
        inbox has a spool, a message that comes while the database is away waits there, on the disk: `spooled`.
        """
        delivery = delivery_of("receive", message)
        return self._receiver.receive(delivery) if tx is None else self._receiver.join(delivery, tx)

    async def areceive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """As `receive`, awaited; `tx=` takes an async connection."""
        delivery = delivery_of("areceive", message)
        return await (self._receiver.areceive(delivery) if tx is None else self._receiver.ajoin(delivery, tx))

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Receive many messages, each a mapping of `receive`'s arguments, in few transactions."""
        return self._receiver.receive_many(messages)

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        return await self._receiver.areceive_many(messages)

    def process(self, *, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now: its ledger row, the handler's effects and its result are one commit.

        If the handler raises, the message is stored for retry: the receipt's `outcome` is "retrying" or "dead", its
        `error` says why, and you may acknowledge it. `raise_on_failure=True` raises the handler's own exception
        instead, once the message is stored.
        """
        checks.flag("process()", "raise_on_failure", raise_on_failure)
        return self.inline.process(delivery_of("process", message), raise_on_failure=raise_on_failure)

    async def aprocess(self, *, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread of its own."""
        checks.flag("aprocess()", "raise_on_failure", raise_on_failure)
        return await self.inline.aprocess(delivery_of("aprocess", message), raise_on_failure=raise_on_failure)

    def send(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """Send a message that no incoming one caused; returns its id. With `tx=` in the caller's own transaction.

        With `id=` it goes out once for each destination: the same again changes nothing, and other content under a
        known id raises `InvalidMessage`.
        """
        return self._sender.send(type, data, tx, message)

    async def asend(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """As `send`, awaited; `tx=` takes an async connection."""
        return await self._sender.asend(type, data, tx, message)

    # Working

    def drain(self, *, concurrency: int = 1) -> int:
        """Run whatever is due, in this process, until nothing is; answers how many messages were finished."""
        return self._workers.drain(concurrency, relays="_outlets" in vars(self))

    async def adrain(self, *, concurrency: int = 1) -> int:
        """As `drain`, with async handlers on the running event loop."""
        return await self._workers.adrain(concurrency, relays="_outlets" in vars(self))

    def run(self, *, concurrency: int = 1, process: str = "") -> int:
        """Work until `stop()`, SIGTERM or SIGINT; what is running is finished or rolled back, never orphaned."""
        with self._workers.working(concurrency, process=process, before=self._check_guarantees) as worker:
            stop = worker.request_stop
            with stopped_by_signals(stop), self._attended(stop):
                return worker.run()

    async def arun(self, *, concurrency: int = 1, process: str = "") -> int:
        """As `run`, on the running event loop; stops at `stop()` or when it is cancelled."""
        working = self._workers.working(concurrency, process=process, before=self._check_guarantees)
        with working as worker, self._attended(worker.request_stop):
            return await worker.run_async()

    def stop(self) -> None:
        """Ask everything that runs in this process to stop; returns at once."""
        self._workers.stop()

    def _check_guarantees(self) -> None:
        """Say what is in force, and refuse to start with less than is declared."""
        from onceward.admin import guarantees  # noqa: PLC0415 - only where handlers run until told to stop

        guarantees.check(self.context, self.store)

    @contextmanager
    def _attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """What goes on beside the workers: reading sources, archiving, alerts; `stop` is called if reading fails."""
        with ExitStack() as beside:
            if self._archive_folder is not None or self.context.large.store is not None:
                beside.enter_context(self.retention.during())
            if "ingress" in vars(self):
                beside.enter_context(self.ingress.attended(stop))
            if "admin" in vars(self) and self.admin.alerts is not None:
                beside.enter_context(self.admin.alerts.during())
            yield
