"""A shop: an inbox on a fresh database with a table for effects, driven from sync or from async code.

Invariant: a shop of the kind `def` uses the sync API and `def` handlers throughout, a shop of the kind `async` the
awaited API and `async def` handlers, so a promise tested through a shop holds for both. When a shop is closed, its
database is checked: whatever a test did, no message was lost, doubled or left where nobody would find it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Self

from onceward import Inbox, Message, Receipt, RetryPolicy, Settings
from onceward.admin.messages import Story
from onceward.flow import Flow, run_sync
from onceward.steps import presence
from tests.contract import behaviour as acts
from tests.contract.behaviour import Behaviour
from tests.contract.health import assert_healthy, assert_nobody_left, threads
from tests.contract.window import Window
from tests.waiting import wait_until

Kind = Literal["def", "async"]

# A retry comes when the test says so (`hurry`), never because the machine was slow.
LATER = RetryPolicy(attempts=3, first=timedelta(hours=1), jitter=0)
QUICK = Settings(lease=timedelta(seconds=1), poll=timedelta(milliseconds=50))
TYPE, SOURCE = "order.paid", "stripe"


class Shop:
    """An inbox, its handlers, and the effects they had."""

    def __init__(  # noqa: PLR0913 - what shops on one database share, and what each chooses
        self,
        url: str,
        kind: Kind,
        *,
        runner: asyncio.Runner | None = None,
        window: Window | None = None,
        migrate: bool = True,
        pooled: bool = False,
        **options: Any,
    ) -> None:
        self.url, self.kind, self._pooled = url, kind, pooled
        self.dialect = "sqlite" if url.startswith("sqlite") else "postgres"
        self._before = threads()
        self._window = window or Window(url)
        self.inbox = Inbox(url, **options)
        self.prefix = self.inbox.context.prefix
        self.runs: Counter[str] = Counter()
        self.seqs: dict[str, int] = {}
        self._own_runner = runner is None
        self._runner = runner or asyncio.Runner()
        self._others: list[Shop] = []
        if migrate:
            self.inbox.migrate()
            self.sql("CREATE TABLE IF NOT EXISTS effects (message_id text, note text)")

    def another(self, **options: Any) -> Shop:
        """Another process's inbox on the same database, without handlers as yet; closed with this one."""
        shop = Shop(self.url, self.kind, runner=self._runner, window=self._window, migrate=False, **options)
        self._others.append(shop)
        return shop

    @contextmanager
    def visitor(self, **options: Any) -> Iterator[Shop]:
        """As `another`, closed at the end of the block."""
        shop = self.another(**options)
        yield shop
        shop.close()

    def close(self) -> None:
        """Close every inbox of this shop."""
        for shop in (*self._others, self):
            if shop.kind == "async":
                shop._runner.run(shop.inbox.aclose())
            else:
                shop.inbox.close()
        if self._own_runner:
            self._runner.close()
            self._window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                assert_healthy(self.inbox)
        finally:
            self.close()
        if kind is None:
            assert_nobody_left(self.inbox, self._before, pooled=self._pooled)

    # Handlers

    def handle(
        self, message_type: str = TYPE, behaviour: Behaviour = acts.effect, kind: Kind | None = None, **options: Any
    ) -> None:
        """Register a handler of this shop's kind that behaves so."""
        mark = "?" if self.dialect == "sqlite" else "%s"

        def handler(message: Message, tx: Any) -> Any:
            self.runs[message.id] += 1
            return acts.drive(behaviour(message), lambda step: acts.perform(tx, step, mark))

        async def async_handler(message: Message, tx: Any) -> Any:
            self.runs[message.id] += 1
            return await acts.drive_async(behaviour(message), lambda step: acts.perform_async(tx, step, mark))

        function: Callable[..., Any] = handler if (kind or self.kind) == "def" else async_handler
        self.inbox.on(message_type, **{"retry": LATER, **options})(function)

    # Messages in

    def receive(self, message_id: Any, message_type: str = TYPE, source: str = SOURCE, **more: Any) -> Receipt:
        """Store a message."""
        return self._remember(message_id, self._call("receive", **arguments(message_id, message_type, source, more)))

    def process(self, message_id: Any, message_type: str = TYPE, source: str = SOURCE, **more: Any) -> Receipt:
        """Handle a message inline."""
        return self._remember(message_id, self._call("process", **arguments(message_id, message_type, source, more)))

    def receive_many(self, messages: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Store many messages, each given as `arguments`."""
        receipts: list[Receipt] = self._call("receive_many", list(messages))
        return receipts

    def at_once(self, method: str, calls: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Make the calls at the same time: in threads, or as tasks."""
        if self.kind == "def":
            return in_threads(*(lambda call=call: getattr(self.inbox, method)(**call) for call in calls))

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(getattr(self.inbox, f"a{method}")(**call) for call in calls))

        return self._runner.run(gathered())

    def await_(self, coroutine: Any) -> Any:
        """Run a coroutine on this shop's event loop."""
        return self._runner.run(coroutine)

    # Work

    def drain(self, **options: Any) -> int:
        """Run whatever is due; answers how many messages were finished."""
        finished: int = self._call("drain", **options)
        return finished

    def hurry(self) -> int:
        """Make every retry due now; answers how many there were."""
        past = "0" if self.dialect == "sqlite" else "'epoch'"
        waiting = self.count("queue", "state = 'retry'")
        self.sql(f"UPDATE {self.prefix}queue SET due_at = {past} WHERE state = 'retry'")
        return waiting

    def finish(self) -> None:
        """Drain, again and again, until no message is backing off."""
        self.drain()
        for _ in range(20):
            if not self.hurry():
                return
            self.drain()
        raise AssertionError("messages back off for ever")

    @contextmanager
    def running(self, **options: Any) -> Iterator[None]:
        """A registered worker at work in the background, for as long as the block lasts."""
        before = self.count("worker")
        with self.started(**options) as ended:
            wait_until(lambda: ended() or self.count("worker") > before, message="a registered worker")
            yield

    @contextmanager
    def started(self, **options: Any) -> Iterator[Callable[[], bool]]:
        """A worker in the background that is perhaps not ready yet; the answer tells whether it has ended."""
        problems: list[BaseException] = []

        def work() -> None:
            try:
                if self.kind == "def":
                    self.inbox.run(**options)
                else:
                    asyncio.run(self._arun(options))
            except BaseException as error:  # noqa: BLE001 - reported where the block ends
                problems.append(error)

        thread = threading.Thread(target=work, name="contract-worker")
        thread.start()
        try:
            yield lambda: not thread.is_alive()
        finally:
            while thread.is_alive():
                self.inbox.stop()
                thread.join(0.05)
        if problems:
            raise problems[0]

    async def _arun(self, options: dict[str, Any]) -> None:
        try:
            await self.inbox.arun(**options)
        finally:
            await self.inbox.store.async_close()

    # What became of it

    def effects(self) -> list[str]:
        """The ids of the messages that took effect, once for each time."""
        return sorted(row[0] for row in self.sql("SELECT message_id FROM effects"))

    def notes(self) -> list[tuple[str, str]]:
        """The effects with their notes: by default the consumer that had them."""
        return sorted(tuple(row) for row in self.sql("SELECT message_id, note FROM effects"))

    def story(self, message: str | int) -> Story:
        """Everything known about a message, by its id (the last one received under it) or number."""
        story = self.inbox.admin.message(self.seqs[message] if isinstance(message, str) else message)
        assert story is not None, f"{message!r} is not in the ledger"
        return story

    def status(self, message: str | int) -> str:
        """What state a message is in."""
        return self.story(message).status

    def error(self, message: str | int) -> str:
        """The last error of a message."""
        return self.story(message).history[-1].error

    # The database itself

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own, past the inbox."""
        return self._window.sql(text, *params)

    def count(self, table: str, where: str = "1 = 1") -> int:
        """How many rows one of onceward's tables has."""
        return int(self.sql(f"SELECT count(*) FROM {self.prefix}{table} WHERE {where}")[0][0])

    def waiting_for_locks(self) -> int:
        """How many connections to a database of PostgreSQL wait for a lock."""
        waiting = "wait_event_type = 'Lock' AND datname = current_database()"
        return int(self.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")[0][0])

    def end_backend(self, pid: int) -> None:
        """End a connection of PostgreSQL from outside, and wait until it is gone (13 cannot wait by itself)."""
        assert self.sql("SELECT pg_terminate_backend(%s)", pid) == [(True,)]
        wait_until(lambda: not self.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))

    def step(self, flow: Flow[Any]) -> Any:
        """Run a step of onceward's on a session of its own."""
        with self.inbox.store.session() as session:
            return run_sync(flow, session.perform)

    def declare_dead(self, process: str) -> None:
        """What a supervisor does when it has seen a process die."""
        assert self.step(presence.take_over_process(self.inbox.context, process, "killed by the test")) == 1

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.kind == "def":
            return getattr(self.inbox, method)(*args, **kwargs)
        return self._runner.run(getattr(self.inbox, f"a{method}")(*args, **kwargs))

    def _remember(self, message_id: Any, receipt: Receipt) -> Receipt:
        self.seqs[message_id] = receipt.seq
        return receipt


def arguments(
    message_id: Any, message_type: str = TYPE, source: str = SOURCE, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `receive` for a message; its data is its id unless said otherwise."""
    given = dict(more or {})
    if "data" not in given and "body" not in given:
        given["data"] = {"id": message_id if isinstance(message_id, str) else repr(message_id)}
    return {"source": source, "id": message_id, "type": message_type, **given}


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, each in a thread; their answers in order."""
    ready = threading.Barrier(len(calls))

    def start(call: Callable[[], Any]) -> Any:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(start, call) for call in calls]]
