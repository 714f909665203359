"""Cancelled at every await: no connection is left in a transaction, no message lost or doubled (HZ-26, HZ-27; I15)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onceward import Message
from onceward.stores.postgres.store import PostgresStore
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Shop, arguments
from tests.contract.health import assert_connections_idle
from tests.waiting import wait_until, wait_until_async

# A cancelled pipeline of psycopg leaves a generator behind that complains when it is collected with its connection.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def async_shop(store_url: str) -> Iterator[Shop]:
    """A shop on each store; only awaited code can be cancelled."""
    with Shop(store_url, "async") as shop:
        yield shop
    gc.collect()  # so that the complaint comes here and not in some other test


class Interruption:
    """Cancels a task at its n-th request to the database: while it is on its way, or just after its answer."""

    def __init__(self, shop: Shop, at: int, moment: str) -> None:
        self.victim: asyncio.Task[Any] | None = None
        self.struck = False
        self._left, self._moment = at, moment
        store: Any = shop.inbox.store
        self._session, self._connect = store.async_session, store.async_connect
        store.async_session, store.async_connect = self.session, self.connect

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        async with self._session() as session:
            before = session.perform
            self._wrap(session)
            try:
                yield session
            finally:
                session.perform = before

    async def connect(self) -> Any:
        session = await self._connect()
        self._wrap(session)
        return session

    def _wrap(self, session: Any) -> None:
        perform = session.perform

        async def counted(request: Any) -> Any:
            self._left -= 1
            if self._left != 0 or self.victim is None:
                return await perform(request)
            self.struck = True
            if self._moment == "during":
                self.victim.cancel()
                return await perform(request)
            answer = await perform(request)
            self.victim.cancel()
            return answer

        session.perform = counted


async def finished(task: asyncio.Task[Any]) -> bool:
    """Whether it came to its end; a cancellation is the other way out, and there is no third."""
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


@pytest.mark.parametrize("moment", ["during", "after"])
@pytest.mark.parametrize("method", ["areceive", "areceive_many", "aprocess"])
def test_a_delivery_that_is_cancelled_may_be_delivered_again(async_shop: Shop, method: str, moment: str) -> None:
    """HZ-26: wherever a broker's client gives up, the redelivery makes it one effect."""

    def call(shop: Shop, message_id: str) -> Any:
        if method == "areceive_many":
            return shop.inbox.areceive_many([arguments(message_id), arguments(message_id)])  # type: ignore[list-item]
        return getattr(shop.inbox, method)(**arguments(message_id))

    def attempt(at: int) -> bool:
        with async_shop.visitor() as shop:
            shop.handle(key="id")
            interruption = Interruption(shop, at, moment)

            async def interrupted() -> bool:
                interruption.victim = asyncio.ensure_future(call(shop, f"m{at}"))
                return await finished(interruption.victim)

            assert shop.await_(interrupted()) or interruption.struck
            assert_at_rest(shop)
            shop.await_(call(shop, f"m{at}"))
        return interruption.struck

    count = enumerate_until_untouched(attempt)
    async_shop.handle(key="id")
    async_shop.drain()
    assert async_shop.effects() == sorted(f"m{at}" for at in range(1, count + 1))


@pytest.mark.parametrize("moment", ["during", "after"])
def test_a_worker_that_is_cancelled_leaves_its_messages_to_the_next(async_shop: Shop, moment: str) -> None:
    """HZ-26: a worker's task is cancelled between any two statements; its claims are off, and the next one goes on."""

    def moody(message: Message) -> Steps:
        yield wrote(message)
        if message.id.startswith("moody") and message.attempt == 1:
            raise RuntimeError("not yet")

    def attempt(at: int) -> bool:
        with async_shop.visitor() as shop:
            kind = f"type {at}"  # of its own, so that what is left over stays for the end
            shop.handle(kind, behaviour=moody, key="id")
            shop.receive_many([arguments(f"calm {at}", kind), arguments(f"moody {at}", kind)])
            interruption = Interruption(shop, at, moment)

            def untouched() -> bool:
                return any(shop.inbox.admin.messages(type=kind, status=status) for status in ("due", "running"))

            async def settled() -> bool:
                return interruption.struck or not await asyncio.to_thread(untouched)

            async def interrupted() -> None:
                interruption.victim = asyncio.ensure_future(shop.inbox.arun())
                await wait_until_async(settled)
                if not interruption.struck:
                    interruption.victim.cancel()
                await finished(interruption.victim)

            shop.await_(interrupted())
            assert_at_rest(shop)
            assert shop.count("worker") == 0
        return interruption.struck

    count = enumerate_until_untouched(attempt)
    for at in range(1, count + 1):
        async_shop.handle(f"type {at}", behaviour=moody, key="id")
    async_shop.finish()
    assert async_shop.effects() == sorted(f"{name} {at}" for name in ("calm", "moody") for at in range(1, count + 1))
    assert async_shop.count("attempt") == count, "each moody one was charged once, and nobody else"


def assert_at_rest(shop: Shop) -> None:
    """No claim, and no connection inside a transaction."""
    assert shop.count("queue", "token IS NOT NULL") == 0
    if shop.dialect == "postgres":
        assert_connections_idle(shop.inbox)


def enumerate_until_untouched(attempt: Callable[[int], bool]) -> int:
    """Interrupt at the first request, the second, and so on, until one run comes to its end; how many there were."""
    for at in range(1, 100):
        if not attempt(at):
            assert at > 3, "there was something to interrupt"
            return at
    raise AssertionError("it never came to its end")


def test_a_handler_that_awaits_is_cancelled_with_its_worker(async_shop: Shop) -> None:
    """HZ-26, HZ-27: cancelled inside the handler, after its effect: rolled back, uncharged, run again."""
    inside: list[str] = []

    async def handler(message: Message, tx: Any) -> None:
        inside.append(message.id)
        mark = "?" if async_shop.dialect == "sqlite" else "%s"
        await tx.execute(f"INSERT INTO effects (message_id, note) VALUES ({mark}, 'here')", (message.id,))
        if len(inside) == 1:
            await asyncio.sleep(60)

    async_shop.inbox.on("order.paid")(handler)
    async_shop.receive("m1")

    async def cancelled() -> None:
        worker = asyncio.ensure_future(async_shop.inbox.arun())
        await wait_until_async(here)
        worker.cancel()
        assert not await finished(worker)

    async def here() -> bool:
        return bool(inside)

    async_shop.await_(cancelled())
    assert (async_shop.status("m1"), async_shop.effects(), async_shop.count("attempt")) == ("due", [], 0)
    async_shop.drain()
    assert async_shop.effects() == ["m1"]


def test_a_worker_that_is_cancelled_while_it_starts(async_shop: Shop) -> None:
    """HZ-26: after any number of turns of the loop, also before it is up: no membership, no thread, no claim stays."""
    async_shop.handle()
    async_shop.receive("m1")

    async def cancelled(turns: int) -> None:
        worker = asyncio.ensure_future(async_shop.inbox.arun())
        for _ in range(turns):
            await asyncio.sleep(0.002)
        worker.cancel()
        await finished(worker)

    for turns in range(20):
        async_shop.await_(cancelled(turns))
        wait_until(lambda: async_shop.inbox.admin.workers() == [], message=f"nobody after {turns} turns")
    async_shop.drain()
    assert async_shop.effects() == ["m1"]


def test_a_connection_that_is_cancelled_while_it_is_made_is_closed() -> None:
    """HZ-26: at once, also while somebody still holds the cancellation and nothing is collected."""

    async def cancelled() -> None:
        here, gone = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            here.set()
            await reader.read()
            gone.set()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connecting = asyncio.ensure_future(
                PostgresStore(f"postgresql://127.0.0.1:{port}/shop", "onceward_").open_async_connection()
            )
            await here.wait()
            connecting.cancel()
            (held,) = await asyncio.gather(connecting, return_exceptions=True)
            await asyncio.wait_for(gone.wait(), 10)
            assert isinstance(held, asyncio.CancelledError)

    gc.disable()
    try:
        asyncio.run(cancelled())
    finally:
        gc.enable()
