"""`Idempotency-Key`: the first answer is stored with the effects and replayed; a failure leaves nothing (R08)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from onceward import ConfigurationError, Inbox, Settings
from onceward.integrations.idempotency import MAX_BYTES, IdempotencyKeys
from tests.outage import away
from tests.servers import FaultProxy
from tests.webhooks.conftest import Caller, Reply, served, traces


class Api:
    """A service with endpoints of its own that count how often they run."""

    def __init__(self, url: str, *, inbox: dict[str, Any] | None = None, **options: Any) -> None:
        self.inbox = Inbox(url, **(inbox or {}))
        self.inbox.migrate()
        self.runs, self.failing = 0, 0
        self.held, self.entered = threading.Event(), threading.Event()
        self.held.set()
        self._mark = "?" if url.startswith("sqlite") else "%s"
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS orders (name text NOT NULL)")
        self.app = Starlette(routes=[Route("/orders", self.order, methods=["GET", "POST", "PATCH"])])
        self.app.add_middleware(
            IdempotencyKeys, **{"inbox": self.inbox, "tenant": lambda scope: _header(scope, b"x-user"), **options}
        )

    @contextmanager
    def serving(self) -> Iterator[Caller]:
        with served(self._closing) as caller:
            yield caller
            caller.post("/close", b"", {})
        self.inbox.close()

    async def _closing(self, scope: Any, receive: Any, send: Any) -> None:
        """The application; and a way to close the connections of the server's event loop."""
        if scope["path"] == "/close":
            await self.inbox.store.async_close()
            await PlainTextResponse("closed")(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def order(self, request: Any) -> Response:
        self.runs += 1
        body = await request.body()
        tx = getattr(request.state, "tx", None)
        if tx is not None:
            await tx.execute(f"INSERT INTO orders (name) VALUES ({self._mark})", [body.decode()])
        self.entered.set()
        while not self.held.is_set():  # noqa: ASYNC110 - set by the test's thread
            await asyncio.sleep(0.01)
        if self.failing == 1:
            raise RuntimeError("failed on purpose")
        if self.failing:
            return JSONResponse({"error": "no"}, self.failing)
        headers = {"location": f"/orders/{self.runs}", "set-cookie": "session=canary"}
        return JSONResponse({"order": self.runs}, 201, headers)

    def orders(self) -> list[str]:
        with self.inbox.transaction() as tx:
            return [row[0] for row in tx.execute("SELECT name FROM orders ORDER BY name").fetchall()]


def _header(scope: Any, name: bytes) -> str:
    return next((value.decode() for found, value in scope["headers"] if found == name), "")


@pytest.fixture
def api(store_url: str) -> Api:
    """A service on each store."""
    return Api(store_url)


def order(caller: Caller, name: str = "a", key: str = "k-1", user: str = "ann", path: str = "/orders") -> Reply:
    return caller.post(path, name.encode(), {"idempotency-key": key, "x-user": user})


def test_a_repetition_gets_the_first_answer_and_has_no_effect(api: Api) -> None:
    with api.serving() as caller:
        first, again = order(caller), order(caller)
        assert (first.status, first.json, first.headers["location"]) == (201, {"order": 1}, "/orders/1")
        assert (again.status, again.json, again.headers["location"]) == (201, {"order": 1}, "/orders/1")
        assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
        assert ("set-cookie" in first.headers, "set-cookie" in again.headers) == (True, False)
        assert order(caller, key="k-2").json == {"order": 2}
        assert api.orders() == ["a", "a"]


def test_many_at_once_are_one(api: Api) -> None:
    """Whoever comes while the first still runs waits for its answer, or is told to come again; nobody runs it twice."""
    with api.serving() as caller:
        api.held.clear()
        replies: list[Reply] = []
        threads = [threading.Thread(target=lambda: replies.append(order(caller))) for _ in range(5)]
        for thread in threads:
            thread.start()
        assert api.entered.wait(20)
        api.held.set()
        for thread in threads:
            thread.join()
        assert {reply.status for reply in replies} <= {201, 503}
        assert 201 in {reply.status for reply in replies}
        assert order(caller).json == {"order": 1}
        assert (api.runs, api.orders()) == (1, ["a"])


def test_the_same_key_for_another_request_is_refused(api: Api) -> None:
    """Another body, path, query or method; and it is the client's mistake, not a case for an operator."""
    with api.serving() as caller:
        order(caller)
        assert order(caller, name="b").status == 422
        assert order(caller, path="/orders?x=1").status == 422
        head = "PATCH /orders HTTP/1.1\r\nhost: x\r\nx-user: ann\r\nidempotency-key: k-1\r\ncontent-length: 1\r\n\r\na"
        assert b" 422 " in caller.send(head.encode()).split(b"\r\n")[0]
        assert (api.orders(), traces(api.inbox)["quarantine"]) == (["a"], 0)


def test_a_key_belongs_to_its_tenant(api: Api) -> None:
    """Nobody gets another's answer, whatever key they guess."""
    with api.serving() as caller:
        assert order(caller, user="ann", key="bk-1").json == {"order": 1}
        assert order(caller, user="bob", key="bk-1").json == {"order": 2}
        assert order(caller, user="annb", key="k-1").json == {"order": 3}  # lengths keep them apart


@pytest.mark.parametrize("failing", [1, 400, 404, 500, 503])
def test_a_failure_rolls_back_and_is_not_remembered(api: Api, failing: int) -> None:
    """Nothing of it is in any table, and the same key may be tried again."""
    with api.serving() as caller:
        order(caller, key="k-0")
        before = traces(api.inbox)
        api.failing = failing
        for _ in range(2):
            assert order(caller).status == (500 if failing == 1 else failing)
        assert (api.orders(), traces(api.inbox)) == (["a"], before)
        api.failing = 0
        assert order(caller).json == {"order": 4}
        assert (api.orders(), api.inbox.admin.stats().dead) == (["a", "a"], 0)


def test_without_a_key_requests_pass_through(api: Api) -> None:
    with api.serving() as caller:
        assert caller.post("/orders", b"a", {}).json == {"order": 1}
        assert caller.post("/orders", b"a", {}).json == {"order": 2}
        assert b"HTTP/1.1 201" in caller.send(b"GET /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\r\n")
        assert api.orders() == []  # no transaction was theirs
        assert traces(api.inbox)["ledger"] == 0


def test_a_key_may_be_required_and_must_be_plain(store_url: str) -> None:
    api = Api(store_url, required=True)
    with api.serving() as caller:
        assert caller.post("/orders", b"a", {}).status == 400
        for bad in ("", "k" * 256, "k\u00fc", "k\tk"):
            assert order(caller, key=bad).status == 400
        assert caller.post("/orders", b"x" * (MAX_BYTES + 1), {"idempotency-key": "k"}).status == 413
        assert (api.runs, traces(api.inbox)["ledger"]) == (0, 0)


def test_two_middlewares_need_two_sources(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        IdempotencyKeys(Starlette(), inbox=inbox, tenant=str)
        with pytest.raises(ConfigurationError, match="both handle"):
            IdempotencyKeys(Starlette(), inbox=inbox, tenant=str)


def test_a_commit_whose_answer_is_lost_is_not_done_twice(postgres_proxy: FaultProxy, proxied_postgres_url: str) -> None:
    """The database committed and could not say so: the repetition finds the stored answer."""
    api = Api(proxied_postgres_url)
    with api.serving() as caller:
        order(caller, key="k-0")
        postgres_proxy.drop_reply_after(b"COMMIT")
        reply = order(caller)
        assert postgres_proxy.hits == 1
        assert reply.status in (201, 503)
        assert order(caller).json == {"order": 2}
        assert api.orders() == ["a", "a"]


def test_while_the_database_is_away_nothing_is_done(postgres_proxy: FaultProxy, proxied_postgres_url: str) -> None:
    api = Api(proxied_postgres_url)
    with api.serving() as caller:
        order(caller, key="k-0")
        postgres_proxy.cut()
        away = order(caller)
        assert (away.status, away.headers["retry-after"]) == (503, "2")
        postgres_proxy.heal()
        assert order(caller).status == 201
        assert api.orders() == ["a", "a"]


def test_a_request_that_ends_early_does_not_run(api: Api) -> None:
    head = "POST /orders HTTP/1.1\r\nhost: x\r\nx-user: ann\r\nidempotency-key: k-1\r\ncontent-length: 9\r\n\r\n"
    with api.serving() as caller:
        assert caller.send(head.encode() + b"half", finish=True) == b""
        assert order(caller).json == {"order": 1}
        assert api.orders() == ["a"]


def test_after_a_crash_nearby_it_is_still_not_stored_first(api: Api) -> None:
    """After a crash inline messages are stored before they run; a request cannot be run again without its client."""
    with api.serving() as caller:
        order(caller, key="k-0")
        cache = api.inbox.context.cache
        cache.catalog = cache.catalog._replace(store_first_until=float("inf"))
        before = traces(api.inbox)
        api.failing = 500
        assert order(caller).status == 500
        assert traces(api.inbox) == before
        api.failing = 0
        assert order(caller).status == 201
        assert (api.orders(), api.inbox.admin.stats().due) == (["a", "a"], 0)


def test_a_spool_never_gets_a_request(store_url: str, tmp_path: Path) -> None:
    """D01: nobody could run it later, without its client; so it is 503 while the database is away, and then it runs."""
    api = Api(store_url, inbox={"spool": tmp_path / "spool"})
    with api.serving() as caller:
        order(caller, key="k-0")
        with away(api.inbox):
            refused = order(caller)
            assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert not api.inbox._receiver.spooling.waiting
        assert [order(caller).json, order(caller).json] == [{"order": 2}, {"order": 2}]
        stats = api.inbox.admin.stats()
        assert (api.orders(), stats.due, stats.retrying, stats.dead) == (["a", "a"], 0, 0, 0)


def test_two_services_on_the_same_tables_have_keys_of_their_own(store_url: str) -> None:
    """D02: each runs its endpoint, gets its own answer, and leaves nothing for the other's workers."""
    shop, bank = (Api(store_url, inbox={"service": name}) for name in ("shop", "bank"))
    with shop.serving() as at_shop, bank.serving() as at_bank:
        order(at_bank, key="k-0")  # both have introduced themselves when the key comes
        assert (order(at_shop).json, order(at_bank).json) == ({"order": 1}, {"order": 2})
        assert order(at_bank, name="b", key="k-2").status == 201
        assert order(at_shop, name="c", key="k-2").status == 201
        assert (order(at_shop).json, order(at_bank).json) == ({"order": 1}, {"order": 2})
        assert (shop.runs, bank.runs, shop.orders()) == (2, 3, ["a", "a", "a", "b", "c"])
        assert shop.inbox.admin.stats().due == 0


def test_a_key_without_an_answer_is_a_409(api: Api) -> None:
    """D01: whatever is in the ledger under it, and however that came there: neither run again nor an error of ours."""
    with api.serving() as caller:
        order(caller)
        with api.inbox.transaction() as tx:
            tx.execute("DELETE FROM onceward_result")
        assert order(caller).status == 409
        with api.inbox.transaction() as tx:
            tx.execute(
                "INSERT INTO onceward_queue (seq, subscription, slot, place, state) "
                "SELECT l.seq, s.id, l.slot, l.seq, 'dead' "
                "FROM onceward_ledger l, onceward_subscription s WHERE s.type <> '*'"
            )
        unfinished = order(caller)
        assert (unfinished.status, unfinished.headers["retry-after"]) == (409, "2")
        assert api.runs == 1


def test_a_second_request_waits_for_lock_wait_and_is_told_to_come_again(store_url: str) -> None:
    """D38: while the first still runs, without a connection that others need."""
    api = Api(store_url, inbox={"settings": Settings(lock_wait=timedelta(milliseconds=100), pool=1)})
    with api.serving() as caller:
        order(caller, key="k-0")
        api.held.clear()
        api.entered.clear()
        first = threading.Thread(target=order, args=[caller])
        first.start()
        assert api.entered.wait(20)
        again = order(caller)
        assert (again.status, again.headers["retry-after"]) == (503, "2")
        api.held.set()
        first.join()
        assert (order(caller).json, api.runs) == ({"order": 2}, 2)


def test_on_sqlite_another_request_waits_for_the_writer_once_and_for_lock_wait(sqlite_url: str) -> None:
    """D52: and is told to come again while the first still runs."""
    api = Api(sqlite_url, inbox={"settings": Settings(lock_wait=timedelta(milliseconds=300))})
    statements: list[str] = []
    store: Any = api.inbox.store
    opened = store.open_connection

    def traced() -> Any:
        connection = opened()
        connection.set_trace_callback(statements.append)
        return connection

    with api.serving() as caller:
        order(caller, key="k-0")
        api.held.clear()
        api.entered.clear()
        first = threading.Thread(target=order, args=[caller])
        first.start()
        assert api.entered.wait(20)
        store.open_connection = traced  # the second request gets a connection of its own
        assert order(caller, key="k-2").status == 503
        waits = [text for text in statements if text.startswith(("BEGIN", "PRAGMA busy_timeout ="))]
        assert waits == ["PRAGMA busy_timeout = 300", "BEGIN IMMEDIATE", "PRAGMA busy_timeout = 1500"]
        api.held.set()
        first.join()
        assert order(caller).json == {"order": 2}
