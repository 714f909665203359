"""A shop: an inbox on an empty store, its handlers and the effects they had, driven from sync or from async code.

Invariant: a shop of the kind `def` uses the sync API and `def` handlers throughout, a shop of the kind `async` the
awaited API and `async def` handlers, so a promise tested through a shop holds for both. When a shop is closed, its
inbox is checked: whatever a test did, no message was doubled, half done or left out of reach.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Self

from onceward.admin.messages import MessageDetail
from onceward.flow import Flow, run_sync
from onceward.inbox import Inbox
from onceward.message import Message, Receipt
from onceward.retry import RetryPolicy
from onceward.runtime.awaited import THREADS
from onceward.settings import Settings
from onceward.steps import membership
from onceward.stores.moves.queue import Hasten
from onceward.testing.store_suite import behaviour as acts
from onceward.testing.store_suite.behaviour import Behaviour
from onceward.testing.store_suite.place import Note, Place
from onceward.testing.waiting import wait_until

Kind = Literal["def", "async"]

# A retry comes when the test says so (`hurry`), never because the machine was slow.
LATER = RetryPolicy(attempts=3, first=timedelta(hours=1), jitter=0)
# A batch is handled whole, however slow the machine is.
PATIENT = Settings(direct_time=timedelta(minutes=1))
QUICK = replace(PATIENT, lease=timedelta(seconds=1), poll=timedelta(milliseconds=50))
TYPE, SOURCE = "order.paid", "stripe"


class Shop:
    """An inbox, its handlers, and the effects they had."""

    def __init__(
        self, place: Place, kind: Kind, *, runner: asyncio.Runner | None = None, first: bool = True, **options: Any
    ) -> None:
        self.place, self.kind = place, kind
        self._before = threads()
        self.inbox = Inbox(place.store(), **{"settings": PATIENT, **options})
        self.runs: Counter[str] = Counter()
        self.seqs: dict[str, int] = {}
        self._own_runner = runner is None
        self._runner = runner or asyncio.Runner()
        self._others: list[Shop] = []
        if first:
            self.inbox.migrate()
            place.prepare(self.inbox)

    def another(self, **options: Any) -> Self:
        """Another process's inbox on the same database, without handlers as yet; closed with this one."""
        shop = type(self)(self.place, self.kind, runner=self._runner, first=False, **options)
        self._others.append(shop)
        return shop

    @contextmanager
    def visitor(self, **options: Any) -> Iterator[Self]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.close()
        if kind is None:
            self.check_closed()

    def check(self) -> None:
        """No message is doubled, half done or out of reach, and none is at work."""
        doubled = [note for note, times in Counter(self.place.effects(self.inbox)).items() if times > 1]
        assert doubled == [], "a message took effect twice"
        assert self.inbox.admin.running() == [], "a claim without a worker at work"
        assert self.step(self.inbox.context.moves.reports.unreachable()) == 0, "a message that no process would move"

    def check_closed(self) -> None:
        """No worker is registered any more, and no thread runs."""
        with Inbox(self.place.store()) as looking:
            assert looking.admin.workers() == [], "a worker did not deregister"
        wait_until(lambda: threads() <= self._before, message="the end of every thread of onceward")

    # Handlers

    def handle(
        self,
        message_type: str | type[Any] = TYPE,
        behaviour: Behaviour = acts.effect,
        kind: Kind | None = None,
        **options: Any,
    ) -> None:
        """Register a handler of this shop's kind that behaves so."""

        def handler(message: Message, tx: Any) -> Any:
            self.runs[message.id] += 1
            return acts.drive(behaviour(message), lambda step: step.take(tx, self.place))

        async def async_handler(message: Message, tx: Any) -> Any:
            self.runs[message.id] += 1
            return await acts.drive_async(behaviour(message), lambda step: step.take_async(tx, self.place))

        function: Callable[..., Any] = handler if (kind or self.kind) == "def" else async_handler
        self.inbox.on(message_type, **{"retry": LATER, **options})(function)

    # Messages in

    def receive(self, message_id: Any, message_type: str = TYPE, source: str = SOURCE, **more: Any) -> Receipt:
        """Store a message."""
        return self._remember(message_id, self._call("receive", **arguments(message_id, message_type, source, more)))

    def process(self, message_id: Any, message_type: str = TYPE, source: str = SOURCE, **more: Any) -> Receipt:
        """Handle a message inline."""
        return self._remember(message_id, self._call("process", **arguments(message_id, message_type, source, more)))

    def call(self, part: Any, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of a part of the inbox, or its awaited form."""
        if self.kind == "def":
            return getattr(part, method)(*args, **options)
        return self._runner.run(getattr(part, f"a{method}")(*args, **options))

    def receive_many(self, messages: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Store many messages, each given as `arguments`."""
        receipts: list[Receipt] = self._call("receive_many", messages)
        return receipts

    def process_many(self, messages: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Handle messages in one transaction, each given as `arguments`."""
        given = messages if isinstance(messages, list) else list(messages)
        receipts: list[Receipt] = self._call("process_many", given)
        for message, receipt in zip(given, receipts, strict=True):
            self.seqs.setdefault(message["id"], receipt.seq)
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
        """Run whatever is due; returns how many messages were finished."""
        finished: int = self._call("drain", **options)
        return finished

    def hurry(self) -> int:
        """Make what failed due now (not what a handler gave a time, by `Retry`); returns how much there was."""
        moves, made = self.inbox.context.moves, 0
        with self.inbox.store.session() as session:
            catalog = run_sync(moves.catalog.load_catalog(), session.perform)
            numbers = [one.id for one in catalog.subscriptions]
            for where in (None, *self._destinations()):
                made += run_sync(moves.queue.hasten(Hasten(numbers, where, 1000)), session.perform)
        return made

    def let_time_pass(self, *ids: str) -> None:
        """The time of scheduled messages comes, in this order."""
        for message_id in ids:
            assert self.inbox.admin.hasten(self.seqs[message_id], reason="for the test") == 1

    def _destinations(self) -> set[str]:
        rows = self.inbox.admin.messages(status="retrying", outgoing=True, limit=1000)
        return {self.detail(row.seq).destination or "default" for row in rows}

    def finish(self) -> None:
        """Drain, again and again, until nothing is due or backing off."""
        self.wait(self._is_finished)

    def _is_finished(self) -> bool:
        """A turn of `finish`: nothing was backing off before it, no handler ran in it, and nothing is left."""
        before, ran = self._backs_off(), self.runs.total()
        made, drained = self.hurry(), self.drain()
        return not (before or made or drained or self.runs.total() > ran or self._backs_off())

    def _backs_off(self) -> bool:
        return any(self.inbox.admin.messages(status="retrying", outgoing=out) for out in (False, True))

    @contextmanager
    def running(self, **options: Any) -> Iterator[None]:
        """A registered worker at work in the background, for as long as the block lasts."""
        before = len(self.inbox.admin.workers())
        with self.started(**options) as ended:
            wait_until(lambda: ended() or len(self.inbox.admin.workers()) > before, message="a registered worker")
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
        return sorted(message_id for message_id, _ in self.journal())

    def notes(self) -> list[Note]:
        """The effects with their notes: by default the consumer that had them."""
        return sorted(self.journal())

    def journal(self) -> list[Note]:
        """The same in the order of their writing."""
        return self.place.effects(self.inbox)

    def detail(self, message: str | int) -> MessageDetail:
        """Everything known about a message, by its id (the last one received under it) or number."""
        detail = self.inbox.admin.message(self.seqs[message] if isinstance(message, str) else message)
        assert detail is not None, f"{message!r} is not in the ledger"
        return detail

    def status(self, message: str | int) -> str:
        """What state a message is in."""
        return self.detail(message).status

    def error(self, message: str | int) -> str:
        """The last error of a message."""
        return self.detail(message).history[-1].error

    # Past the inbox

    def step(self, flow: Flow[Any]) -> Any:
        """Run a step of onceward's on a session of its own."""
        with self.inbox.store.session() as session:
            return run_sync(flow, session.perform)

    def declare_dead(self, process: str) -> None:
        """What a supervisor does when it has seen a process die."""
        assert self.step(membership.take_over_process(self.inbox.context, process, "killed by the test")) == 1

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until something holds; a machine may be slow."""
        wait_until(condition)

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


def threads() -> set[threading.Thread]:
    """The threads that onceward has started for an inbox and that still run; those of `awaited` serve all of them."""
    names = ((thread, thread.name) for thread in threading.enumerate())
    return {thread for thread, name in names if name.startswith("onceward") and not name.startswith(THREADS)}
