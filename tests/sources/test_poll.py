"""Polled APIs: raw responses stored before they are read, the cursor with them, one poller at a time (R40)."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, InvalidMessage, Message, PollFailed, Response, RetryPolicy
from onceward.admin.doctor import examine
from onceward.domain.identity import UNIDENTIFIED
from tests.contract.harness import QUICK, Kind, Shop
from tests.contract.test_refused_messages import refuse
from tests.servers import FaultProxy
from tests.sources.api import Api, ask, served
from tests.sources.conftest import reading, started
from tests.waiting import wait_until

SOON = timedelta(seconds=0.05)
NEVER = timedelta(hours=1)


@pytest.fixture
def api() -> Iterator[Api]:
    """An API to poll."""
    with served() as api:
        yield api


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Each store: whose turn it is, the store decides."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["def", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both kinds of function."""
    found: Kind = request.param
    return found


def watch(shop: Shop, api: Api, *, kind: Kind = "def", every: timedelta = NEVER, **options: Any) -> None:
    """Poll the API, and make messages of its orders."""

    def pages(cursor: int | None) -> Iterator[Response]:
        while True:
            body = ask(api.url, cursor or 0)
            after = json.loads(body)["next"]
            yield Response(body, cursor=after)
            if after == cursor:
                return
            cursor = after

    async def pages_async(cursor: int | None) -> AsyncIterator[Response]:
        for page in pages(cursor):
            yield page

    def split(message: Message, tx: Any) -> None:
        for order in message.data["orders"]:
            shop.inbox.receive(source="orders", id=order["id"], type="order.paid", data=order, tx=tx)

    shop.inbox.add_poll(every=every, source="api", **options)(pages if kind == "def" else pages_async)
    shop.inbox.on("api.response")(split)


def orders(count: int) -> list[str]:
    return [f"o-{number:03}" for number in range(1, count + 1)]


def test_responses_are_stored_as_they_came_and_overlap_is_known(shop: Shop, api: Api, kind: Kind) -> None:
    """Each page has the last order of the page before; each order takes effect once."""
    api.orders = 7
    watch(shop, api, kind=kind)
    shop.inbox.ingress.poll_now("api")
    stored = [shop.detail(row.seq) for row in reversed(shop.inbox.admin.messages(source="api"))]
    assert [row.id for row in stored] == ["response 1", "response 2", "response 3", "response 4"]
    assert [row.body for row in stored] == [json.dumps(api.page(after)).encode() for after in (0, 3, 6, 7)]
    shop.drain()
    assert shop.effects() == orders(7)
    api.orders = 8
    shop.inbox.ingress.poll_now("api")
    shop.drain()
    assert shop.effects() == orders(8)
    (poll,) = shop.inbox.admin.polls()
    assert (poll.cursor, poll.failures, poll.running) == (8, 0, False)


def test_it_polls_while_the_worker_runs(shop: Shop, api: Api, kind: Kind) -> None:
    watch(shop, api, kind=kind, every=SOON)
    with reading(shop):
        for count in (4, 9):
            api.orders = count
            wait_until(lambda count=count: shop.effects() == orders(count))  # type: ignore[misc]
    assert shop.inbox.admin.polls()[0].due_seconds < 1  # whoever stops leaves the turn to others


def test_a_paused_source_is_not_polled(shop: Shop, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pauses it: until it is resumed nothing is asked, and what comes from it otherwise is stored (R64)."""
    monkeypatch.setattr("onceward.polls.poll.PAUSED_SECONDS", 0.01)
    api.orders = 4
    watch(shop, api, every=SOON)
    ingress = shop.inbox.ingress
    seen: list[bool] = []
    look = ingress._is_paused

    async def looked(source: str) -> bool:
        seen.append(await look(source))
        return seen[-1]

    monkeypatch.setattr(ingress, "_is_paused", looked)
    operator = shop.another()
    assert operator.inbox.admin.pause(source="api", reason="a test")
    with reading(shop):
        wait_until(lambda: len(seen) > 5)
        shop.receive("pushed", source="api")
        wait_until(lambda: shop.effects() == ["pushed"])
        assert (set(seen), api.asked) == ({True}, [])
        assert operator.inbox.admin.resume(source="api", reason="a test")
        wait_until(lambda: shop.effects() == [*orders(4), "pushed"])


def test_one_at_a_time_however_many_run(shop: Shop, api: Api) -> None:
    """Three processes' inboxes on one database: the API never sees two of them."""
    others = [shop.another(settings=QUICK) for _ in range(2)]
    for one in (shop, *others):
        watch(one, api, every=SOON)
    for other in others:
        other.handle()
    with reading(shop), reading(others[0]), reading(others[1]):
        for count in range(5, 30, 5):
            api.orders = count
            wait_until(lambda count=count: len(shop.effects()) == count)  # type: ignore[misc]
    assert api.most_at_once == 1
    assert shop.effects() == orders(25)


def test_nobody_else_has_the_turn_while_it_runs(shop: Shop, api: Api) -> None:
    other = shop.another(settings=QUICK)
    for one in (shop, other):
        watch(one, api)
    api.gate.clear()
    first = threading.Thread(target=shop.inbox.ingress.poll_now, args=["api"])
    first.start()
    wait_until(lambda: api.at_once == 1)
    other.inbox.ingress.poll_now("api")  # comes back at once, with nothing done
    (poll,) = shop.inbox.admin.polls()
    assert (poll.running, poll.responses, len(api.asked)) == (True, 0, 1)
    api.gate.set()
    first.join()
    assert shop.inbox.admin.polls()[0].running is False


def test_one_that_took_too_long_stores_nothing_more(shop: Shop, api: Api) -> None:
    """Another process has polled meanwhile: what the first has in hand would be a second copy."""
    api.orders = 2
    other = shop.another(settings=QUICK)
    for one in (shop, other):
        watch(one, api, timeout=timedelta(seconds=0.2))
    api.gate.clear()
    first = threading.Thread(target=shop.inbox.ingress.poll_now, args=["api"])
    first.start()
    wait_until(lambda: api.at_once == 1)
    wait_until(lambda: shop.inbox.admin.polls()[0].due_seconds < 0)
    second = threading.Thread(target=other.inbox.ingress.poll_now, args=["api"])
    second.start()
    wait_until(lambda: api.at_once == 2)
    api.gate.set()
    first.join()
    second.join()
    assert [row.id for row in shop.inbox.admin.messages(source="api")] == ["response 2", "response 1"]
    shop.drain()
    assert shop.effects() == orders(2)


def test_a_failure_keeps_what_was_stored_backs_off_and_shows(shop: Shop, kind: Kind) -> None:
    """The next turn goes on behind the last stored response."""
    asked: list[Any] = []

    def pages(cursor: int | None) -> Iterator[Response]:
        asked.append(cursor)
        yield Response(b'{"page": %d}' % (cursor or 0), cursor=(cursor or 0) + 1)
        if len(asked) < 3:
            raise OSError("the API is away")

    async def pages_async(cursor: int | None) -> AsyncIterator[Response]:
        for page in pages(cursor):
            yield page

    hourly = RetryPolicy(first=timedelta(hours=1), cap=timedelta(days=1), jitter=0)
    register = shop.inbox.add_poll(every=timedelta(minutes=1), source="api", type="order.paid", retry=hourly)
    register(pages if kind == "def" else pages_async)
    for number, hours in ((1, 1), (2, 2)):
        with pytest.raises(PollFailed, match="OSError: the API is away") as failed:
            shop.inbox.ingress.poll_now("api")
        assert failed.value.left == hours * 3600
        (poll,) = shop.inbox.admin.polls()
        assert (poll.failures, poll.cursor, poll.error) == (number, number, "OSError: the API is away")
        assert poll.due_seconds == pytest.approx(hours * 3600, abs=60)
    assert shop.inbox.admin.stats().polls_failing == 1
    assert any(
        finding.level == "warning" and "api failed 2 times in a row: OSError: the API is away" in finding.what
        for finding in examine(shop.inbox)
    )
    shop.inbox.ingress.poll_now("api")
    assert asked == [None, 1, 2]
    assert shop.inbox.admin.stats().polls_failing == 0
    assert any("the poll of api works, 3 responses" in finding.what for finding in examine(shop.inbox))
    shop.drain()
    assert shop.effects() == ["response 1", "response 2", "response 3"]


def test_a_running_worker_tries_a_failed_poll_again(shop: Shop, api: Api) -> None:
    api.orders, api.broken = 4, True
    watch(shop, api, every=SOON, retry=RetryPolicy(first=SOON))
    with reading(shop):
        wait_until(lambda: shop.inbox.admin.stats().polls_failing == 1)
        api.broken = False
        wait_until(lambda: shop.effects() == orders(4))
        wait_until(lambda: shop.inbox.admin.stats().polls_failing == 0)


def test_the_same_answer_to_the_same_question_is_no_news(shop: Shop) -> None:
    """But one that comes again after another is: what it says has changed back."""
    answers = iter([b"1", b"1", b"2", b"2", b"1"])

    def state(cursor: None) -> Iterator[Response]:
        assert cursor is None
        yield Response(next(answers))

    shop.inbox.add_poll(every=NEVER, source="api", type="order.paid")(state)
    for _ in range(5):
        shop.inbox.ingress.poll_now("api")
    shop.drain()
    bodies = [shop.detail(row.seq).body for row in shop.inbox.admin.messages(source="api")]
    assert bodies == [b"1", b"2", b"1"]


def test_a_response_that_has_a_name_is_known_by_it(shop: Shop) -> None:
    def batches(cursor: None) -> Iterator[Response]:
        del cursor
        yield Response(b"1", id="batch-1", headers={"etag": "x"})
        yield Response(b"2", id="batch-2")
        yield Response(b"1", id="batch-1")

    shop.inbox.add_poll(every=NEVER, source="api", type="order.paid")(batches)
    for _ in range(2):
        shop.inbox.ingress.poll_now("api")
    shop.drain()
    assert shop.effects() == ["batch-1", "batch-2"]
    assert shop.inbox.admin.stats().duplicates == 4


def test_wrong_set_ups_and_wrong_responses_say_what_is_right(shop: Shop) -> None:
    def pages(_: Any) -> Iterator[Any]:
        yield b"not a response"

    def not_a_generator(_: Any) -> list[Response]:
        return []

    with pytest.raises(ConfigurationError, match="must yield its responses"):
        shop.inbox.add_poll(every=NEVER, source="api")(not_a_generator)
    with pytest.raises(ConfigurationError, match="above zero"):
        shop.inbox.add_poll(every=timedelta(0), source="api")(pages)
    shop.inbox.add_poll(every=NEVER, source="api")(pages)
    with pytest.raises(ConfigurationError, match="a poll of 'api' already"):
        shop.inbox.add_poll(every=NEVER, source="api")(pages)
    with pytest.raises(ConfigurationError, match="no poll of 'other'"):
        shop.inbox.ingress.poll_now("other")
    with pytest.raises(PollFailed, match="yielded bytes, not a Response"):
        shop.inbox.ingress.poll_now("api")
    with pytest.raises(InvalidMessage, match="cannot be written as JSON"):
        Response(b"", cursor=object())


def test_a_response_that_the_database_refuses_does_not_hold_up_the_next(shop: Shop, kind: Kind) -> None:
    """D20: it is kept under its number, for a person; where even that is refused, the turn has failed, and says so."""

    def numbered(cursor: int | None) -> Iterator[Response]:
        for number in range((cursor or 0) + 1, 4):
            yield Response(b"%d" % number, cursor=number, id="refused" if number == 2 else f"r{number}")

    async def numbered_async(cursor: int | None) -> AsyncIterator[Response]:
        for response in numbered(cursor):
            yield response

    shop.inbox.add_poll(every=NEVER, source="api")(numbered if kind == "def" else numbered_async)
    shop.handle("api.response")
    refuse(shop, "body", "id", "refused")
    shop.inbox.ingress.poll_now("api")
    assert [(row.id, row.type) for row in reversed(shop.inbox.admin.messages())] == [
        ("r1", "api.response"),
        ("response 2", UNIDENTIFIED),
        ("r3", "api.response"),
    ]
    (poll,) = shop.inbox.admin.polls()
    assert (poll.responses, poll.failures) == (3, 0)
    (kept,) = shop.inbox.admin.messages(type=UNIDENTIFIED)
    assert "refuse" in shop.detail(kept.seq).headers["onceward-reason"]
    shop.inbox.admin.discard(kept.seq, reason="test")
    shop.drain()


def test_a_poll_whose_responses_cannot_be_stored_at_all_fails_and_shows(shop: Shop) -> None:
    """D20: not repeated at once, for ever, by the process that has the turn."""

    @shop.inbox.add_poll(every=NEVER, source="api")
    def one(cursor: int | None) -> Iterator[Response]:
        yield Response(b"1", cursor=cursor)

    refuse(shop, "body", "type", "e")
    with pytest.raises(PollFailed, match="refuse"):
        shop.inbox.ingress.poll_now("api")
    (poll,) = shop.inbox.admin.polls()
    assert (poll.responses, poll.failures) == (0, 1)
    assert any("failed 1 time in a row" in finding.what for finding in examine(shop.inbox))


def test_while_the_database_is_away_the_response_in_hand_waits(
    proxied_postgres_url: str, postgres_proxy: FaultProxy, api: Api
) -> None:
    api.orders = 2
    with Shop(proxied_postgres_url, "def", settings=QUICK) as shop:
        shop.handle()
        watch(shop, api)
        api.gate.clear()
        polling = threading.Thread(target=shop.inbox.ingress.poll_now, args=["api"])
        polling.start()
        wait_until(lambda: api.at_once == 1)
        postgres_proxy.cut()
        api.gate.set()
        polling.join(0.5)
        assert polling.is_alive()
        postgres_proxy.heal()
        polling.join()
        assert api.asked == [0, 2]  # the first page was not asked for again
        shop.drain()
        assert shop.effects() == orders(2)


def test_killed_again_and_again(store_url: str, api: Api) -> None:
    """Kill -9 at random moments, two processes at a time: every order once, and every page in its place."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE effects (message_id text, note text)")
    environment = {**os.environ, "SOURCE_STORE": store_url, "SOURCE_URL": api.url}
    program = "tests.sources.poll_program:inbox"
    processes = [started(environment, program) for _ in range(2)]
    try:
        for turn in range(1, 4):
            asked = len(api.asked)
            api.orders = 12 * turn
            # In the middle of something: the API was asked, and who asked may or may not have stored the answer.
            wait_until(lambda asked=asked: len(api.asked) > asked, timeout=60)  # type: ignore[misc]
            victim = processes.pop(0)
            victim.kill()
            victim.wait()
            processes.append(started(environment, program))
        wait_until(lambda: effects(store_url) == Counter(orders(36)), timeout=60)
    finally:
        for process in processes:
            process.terminate()
        # One that was started a moment ago may not listen to signals yet.
        assert {process.wait(60) for process in processes} <= {0, -signal.SIGTERM}
    with Inbox(store_url) as inbox:
        cursors = [json.loads(detail.body or b"")["next"] for detail in _responses(inbox)]
        assert cursors == sorted(cursors)
        (poll,) = inbox.admin.polls()
        assert poll.responses == len(cursors)


def effects(url: str) -> Counter[str]:
    with Inbox(url) as inbox, inbox.transaction() as tx:
        return Counter(row[0] for row in tx.execute("SELECT message_id FROM effects").fetchall())


def _responses(inbox: Inbox) -> list[Any]:
    return [inbox.admin.message(row.seq) for row in reversed(inbox.admin.messages(source="api", limit=1000))]
