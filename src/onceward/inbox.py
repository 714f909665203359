"""The public class: register handlers, receive, process, send, run. A thin shell; the work is in `steps/`."""

from __future__ import annotations

import atexit
import builtins
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from onceward.blobs.bodies import LargeBodies
from onceward.deferred import asyncio
from onceward.domain import checks, identity
from onceward.domain.activity import Activity
from onceward.domain.breaker import Circuit
from onceward.domain.dependencies import NOTHING, dependency
from onceward.domain.handlers import Handlers, Upcasting, handler_of
from onceward.domain.hooks import HandlerHook
from onceward.domain.middleware import Middleware
from onceward.domain.parameters import Providers
from onceward.domain.urls import RenderedUrl
from onceward.errors import ConfigurationError
from onceward.message import Arguments, Receipt, SendArguments, delivery_of
from onceward.registry import Registry
from onceward.retry import RetryPolicy
from onceward.runtime.inline import Inline
from onceward.runtime.receiver import Receiver
from onceward.runtime.running import Lifespan, Running
from onceward.runtime.sender import Sender
from onceward.runtime.workers import Workers
from onceward.settings import Settings, check_parts
from onceward.steps.context import Context
from onceward.stores.protocol import Store, TimeLimits, opened

if TYPE_CHECKING:
    from onceward.admin.admin import Admin
    from onceward.brokers.consumer import Mode
    from onceward.brokers.protocol import Sink
    from onceward.domain.dependencies import Factory
    from onceward.retention.retention import Retention
    from onceward.runtime.ingress import Ingress
    from onceward.runtime.relay import Outlets
    from onceward.webhooks import Limits, Verifier, Webhooks

F = TypeVar("F", bound=Callable[..., Any])
Wanted = TypeVar("Wanted")


class Inbox(Handlers):
    """The inbox of a service: every message takes effect exactly once, in the service's own database.

    >>> inbox = Inbox("sqlite://")
    >>> inbox.migrate()
    ['0001_core', '0002_retention', '0003_readable', '0004_history']
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
        store: str | RenderedUrl | Store = "sqlite:///onceward.db",
        *,
        service: str = "default",
        prefix: str | None = None,
        settings: Settings | None = None,
        code_version: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        blobs: str | None = None,
        blob_above: int = 262_144,
        archive: str | os.PathLike[str] | None = None,
        sessions: Callable[..., Any] | None = None,
    ) -> None:
        check_parts(settings, code_version, spool=spool, blobs=blobs, blob_above=blob_above, archive=archive)
        given = settings or Settings()
        self.settings = given if archive is None else replace(given, archive_first=True)
        self._archive_folder = archive
        self.store = opened(store, prefix, self.settings)
        """The database behind it, for extensions such as a supervisor or a doctor."""
        self.context = Context(
            service=identity.check_service(service),
            prefix=self.store.prefix,
            code_version=os.environ.get("ONCEWARD_CODE_VERSION", "") if code_version is None else code_version,
            settings=self.settings,
            registry=Registry(Providers(self.store, self.store.connections, {"sessions": sessions})),
            moves=self.store.moves(TimeLimits.of(self.settings)),
            large=LargeBodies.at(blobs, above=blob_above),
            activity=Activity(kept=self.settings.history and "history" in self.store.capabilities),
        )
        """What its steps know, for extensions with steps of their own."""
        self._receiver = Receiver(self.context, self.store, spool)
        self._sender = Sender(self.context, self.store)
        self.inline = Inline(self.context, self.store, self._receiver)
        self._workers = Workers(self.context, self.store, self._receiver.spooling)
        self._running = Running(self, self._workers, archives=archive is not None)
        atexit.register(self.inline.close)

    @property
    def url(self) -> str:
        """Where its database is."""
        return self.store.url

    # The rest of the house, made when it is first used: most programs never need it.

    @cached_property
    def admin(self) -> Admin:
        """Seeing and steering: numbers, lists, one message in detail, redrive, discard, alerts."""
        from onceward.admin.admin import Admin  # noqa: PLC0415 - see above

        return Admin(self.context, self.store)

    @cached_property
    def retention(self) -> Retention:
        """What keeps the tables small and clean: prune, archive, erase, collect, and the spool."""
        from onceward.retention.retention import Retention  # noqa: PLC0415 - see above

        return Retention(self.context, self.store, self.admin, self._receiver.spooling, self._archive_folder)

    @cached_property
    def ingress(self) -> Ingress:
        """The brokers, polled APIs and web applications that messages come from, for extensions."""
        from onceward.runtime.ingress import Ingress  # noqa: PLC0415 - see above

        return Ingress(self, self._receiver)

    @cached_property
    def _outlets(self) -> Outlets:
        from onceward.runtime.relay import Outlets  # noqa: PLC0415 - see above

        return Outlets(self.context)

    # Setting up

    def _add(self, function: Callable[..., Any], type: str, options: dict[str, Any]) -> None:  # noqa: A002 - as in `on`
        self.context.registry.add(handler_of(function, type, options, self.context.service, self.settings))

    def _add_upcaster(self, upcasting: Upcasting) -> None:
        self.context.registry.add_upcaster(upcasting.type, upcasting.version, upcasting.function)

    def _surround(self, one: Middleware) -> None:
        registry = self.context.registry
        registry.middleware.append(one)
        try:
            registry.arrange()
        except ConfigurationError:
            registry.middleware.remove(one)
            registry.arrange()
            raise

    def _rearrange(self) -> None:
        self.context.registry.arrange()

    def discover(self, package: str) -> None:
        """Import a module, or a package with all of its modules, and include what they call `router`.

        `inbox.discover("shop.handlers")`: those modules need not import the inbox. What is included already stays so.
        """
        from onceward.domain.discovery import routers_in  # noqa: PLC0415 - for programs of several modules

        for router in routers_in(package):
            if self not in router.included_in:
                self.include(router)

    def add_source(  # noqa: PLR0913 - each is a property of the source
        self,
        url: str,
        *,
        source: str,
        id: str | None = None,  # noqa: A002 - the words every sender uses
        type: str | None = None,  # noqa: A002
        envelope: str | None = None,
        batch: int = 100,
        mode: Mode = "store-first",
        redelivers_for: timedelta | None = None,
        rate: float | None = None,
    ) -> None:
        """Receive messages from a broker while `run` runs: `add_source("redis://host/0?stream=orders", source="shop")`.

        `id` and `type` name where a message carries them: a field, a dotted path, `header:NAME`; `id="position"` is the
        place in the broker (a producer that sends twice has then sent two messages), `type="=order.paid"` the
        type of all. Without them: CloudEvents, or the broker's own properties; with `envelope="debezium-outbox"` what
        Debezium's outbox event router writes. `redelivers_for` is how late the broker may deliver a copy, where that
        is not the usual time; `rate` how many messages a second this process reads at most. With `mode="direct"` each
        batch is handled in the transaction that receives it (`process_many`), and acknowledged then.
        """
        names: dict[str, Any] = {"source": source, "id": id, "type": type, "envelope": envelope}
        self.ingress.add_source(url, **names, batch=batch, mode=mode, redelivers_for=redelivers_for, rate=rate)

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
        """Return an ASGI application for webhooks: `app.mount("/hooks", inbox.webhooks({"/stripe": Stripe(secret)}))`.

        It responds with 200 when an event is committed (or was before), 4xx to what is not authentic, and 503 while the
        database is away. `.wsgi` is the same for WSGI, `.wsgi.django("/stripe")` a Django view. A dedupe retention that
        is shorter than a sender may still send copies is refused here; so are different secrets under one source.
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

    @overload
    def provide(self, type: builtins.type[Wanted], factory: Factory[Wanted]) -> None: ...
    @overload
    def provide(self, type: builtins.type[Wanted], *, value: Wanted) -> None: ...
    def provide(self, type: builtins.type[Any], factory: Any = None, *, value: Any = NOTHING) -> None:  # noqa: A002 - as above
        """Give handlers with a parameter of a type what a factory makes: `def handler(message, tx, client: Client)`.

        The factory is called for each attempt, with nothing or with the message; what it returns or yields is entered
        if it is a context manager, and closed after the attempt, also after a failure or a timeout. With `value=` all
        get the same object, which is neither opened nor closed. To be called before handlers that ask for the type.
        """
        self.context.registry.providers.add(type, dependency(type, factory, value))

    def add_hook(self, hook: HandlerHook) -> None:
        """Surround every call of a handler: `hook(handler, messages)` returns a context manager.

        For spans, metrics and the like. A hook sees the handler's error, and can neither fail nor save a message.
        """
        self.context.registry.hooks.append(checks.function("add_hook()", "hook", hook, takes=2))

    def migrate(self) -> list[str]:
        """Create or update the tables; returns the names of the migrations that were applied."""
        return self.store.migrate()

    def migration_sql(self) -> str:
        """The same as SQL text, for Alembic, Django or a database administrator."""
        return self.store.migration_sql()

    def transaction(self) -> AbstractContextManager[Any]:
        """A plain connection to the inbox's database (sqlite3, psycopg), committed at the end of the `with` block."""
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
        self._receiver.save_activity()
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
        """As `receive`, awaited; `tx=` is an async connection."""
        delivery = delivery_of("areceive", message)
        return await (self._receiver.areceive(delivery) if tx is None else self._receiver.ajoin(delivery, tx))

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Receive many messages, each a mapping of `receive`'s arguments, in few transactions."""
        return self._receiver.receive_many(messages)

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        return await self._receiver.areceive_many(messages)

    def process(self, *, tx: Any = None, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now: its ledger row, the handler's effects and its result are one commit.

        If the handler raises, the message is stored for retry: the receipt's `outcome` is "retrying" or "dead", its
        `error` is the reason, and you may acknowledge it. `raise_on_failure=True` raises the handler's own exception
        instead, once it is stored. With `tx=` all is in the caller's own transaction, `pending` until that commits.
        """
        checks.flag("process()", "raise_on_failure", raise_on_failure)
        return self.inline.process(delivery_of("process", message), tx, raise_on_failure=raise_on_failure)

    async def aprocess(
        self, *, tx: Any = None, raise_on_failure: bool = False, **message: Unpack[Arguments]
    ) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread of its own, and never in a `tx=`, which is async."""
        checks.flag("aprocess()", "raise_on_failure", raise_on_failure)
        return await self.inline.aprocess(delivery_of("aprocess", message), tx, raise_on_failure=raise_on_failure)

    def process_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Handle messages now, each a mapping of `receive`'s arguments: one transaction for up to 500 of them.

        One whose handler raises is stored for retry, and the others stay; what cannot run here and now is queued.
        """
        return self.inline.process_many(messages)

    async def aprocess_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `process_many`, awaited; `def` handlers run in a thread."""
        return await self.inline.aprocess_many(messages)

    def send(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """Send a message that no incoming one caused; returns its id. With `tx=` in the caller's own transaction.

        With `id=` it goes out once for each destination: the same again changes nothing, and other content under a
        known id raises `InvalidMessage`.
        """
        return self._sender.send(type, data, tx, message)

    async def asend(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """As `send`, awaited; `tx=` is an async connection."""
        return await self._sender.asend(type, data, tx, message)

    # Working

    def drain(self, *, concurrency: int = 1) -> int:
        """Run whatever is due, in this process, until nothing is; returns how many messages were finished."""
        return self._workers.drain(concurrency, relays="_outlets" in vars(self))

    async def adrain(self, *, concurrency: int = 1) -> int:
        """As `drain`, with async handlers on the running event loop."""
        return await self._workers.adrain(concurrency, relays="_outlets" in vars(self))

    def run(
        self, *, concurrency: int = 1, process: str = "", only: Collection[str] = (), exclude: Collection[str] = ()
    ) -> int:
        """Work until `stop()`, SIGTERM or SIGINT; what is running is finished or rolled back, never orphaned.

        With `only` or `exclude` this process runs a part of the types that it has handlers for.
        """
        return self._running.run(concurrency, process=process, only=only, exclude=exclude)

    async def arun(
        self, *, concurrency: int = 1, process: str = "", only: Collection[str] = (), exclude: Collection[str] = ()
    ) -> int:
        """As `run`, on the running event loop; stops at `stop()` or when it is cancelled."""
        return await self._running.arun(concurrency, process=process, only=only, exclude=exclude)

    def lifespan(self, *, concurrency: int = 1, around: Lifespan | None = None) -> Lifespan:
        """Workers that run while a web application serves: `FastAPI(lifespan=inbox.lifespan(concurrency=4))`.

        On the application's event loop; `def` handlers in threads. Started with the application, stopped gracefully
        before it ends, and then the inbox is closed; `concurrency=0` only receives. `around` is a lifespan of the
        application's own: what it opens is there before the workers are, and longer. Workers that end with an error
        take the application down.
        """
        return self._running.lifespan(concurrency, around)

    def stop(self) -> None:
        """Stop everything that runs in this process, gracefully; returns at once."""
        self._workers.stop()
