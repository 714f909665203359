"""Where messages come from: what is refused when it is added, what is read while `run` runs, and how that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Inbox, PollFailed, Response
from onceward.brokers import protocol
from onceward.errors import ConfigurationError
from onceward.runtime.ingress import POLL_RETRY, Ingress
from onceward.webhooks import GitHub
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
QUEUE: dict[str, Any] = {
    "source": "queue",
    "id": None,
    "type": None,
    "envelope": None,
    "batch": 10,
    "mode": "store-first",
    "redelivers_for": None,
    "rate": None,
}
POLL: dict[str, Any] = {"every": 60 * SECOND, "source": "api", "type": None, "timeout": SECOND, "retry": None}


class Opened:
    """A source that has nothing, or fails in a way that is not expected."""

    name, redelivery, positions = "opened", 3 * DAY, False

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.looks, self.closed = 0, 0

    async def open(self) -> None:
        if self.error:
            raise self.error

    async def next(self, _limit: int, _seconds: float) -> list[protocol.Arrival]:
        self.looks += 1
        await asyncio.sleep(0)
        return []

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    with Inbox(f"sqlite:///{tmp_path}/inbox.db") as inbox:
        inbox.migrate()
        yield inbox


@pytest.fixture
def ingress(inbox: Inbox) -> Ingress:
    return inbox.ingress


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """What every URL leads to."""
    source = Opened()
    monkeypatch.setattr(protocol, "open_source", lambda _url: source)
    return source


class TestBrokers:
    """`add_source`."""

    @pytest.mark.parametrize(
        ("declared", "window"), [({}, 3 * DAY), ({"redelivers_for": timedelta(hours=1)}, timedelta(hours=1))]
    )
    @pytest.mark.usefixtures("opened")
    def test_how_late_it_redelivers_is_declared(
        self, ingress: Ingress, inbox: Inbox, declared: dict[str, Any], window: timedelta
    ) -> None:
        """As the broker has it, unless the user knows better."""
        ingress.add_source("any://x", **QUEUE | declared)
        assert inbox.context.registry.sources == {"queue": window}
        (consumer,) = ingress.consumers
        assert isinstance(consumer.source, Opened)
        assert (consumer.batch, consumer.mode, consumer.rate_limit) == (10, "store-first", None)

    @pytest.mark.usefixtures("opened")
    def test_a_rate_is_kept_by_each_process(self, ingress: Ingress) -> None:
        ingress.add_source("any://x", **QUEUE | {"rate": 5})
        assert ingress.consumers[0].rate_limit is not None

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"batch": 0}, "batch"),
            ({"mode": "sometimes"}, "mode"),
            ({"redelivers_for": -SECOND}, "redelivers_for"),
            ({"redelivers_for": 10_000 * DAY}, "'queue' may redeliver"),
            ({"id": "position"}, "no position"),
        ],
    )
    @pytest.mark.usefixtures("opened")
    def test_what_cannot_be_is_refused_and_not_read(self, ingress: Ingress, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            ingress.add_source("any://x", **QUEUE | wrong)
        assert ingress.consumers == []

    def test_a_source_with_positions_may_name_its_messages_by_them(self, ingress: Ingress, opened: Opened) -> None:
        opened.positions = True
        ingress.add_source("any://x", **QUEUE | {"id": "position"})
        assert len(ingress.consumers) == 1


class TestPolls:
    """`add_poll` and `poll_now`."""

    def test_a_source_has_one_poll(self, ingress: Ingress) -> None:
        """Two would move one cursor."""

        def pages(_cursor: Any) -> Iterator[Response]:
            yield Response(b"{}", cursor=1)

        ingress.add_poll(pages, **POLL)
        with pytest.raises(ConfigurationError, match="a poll of 'api' already"):
            ingress.add_poll(pages, **POLL)
        assert (ingress.polls["api"].type, ingress.polls["api"].retry) == ("api.response", POLL_RETRY)

    def test_now_means_due_or_not(self, ingress: Ingress, inbox: Inbox) -> None:
        """Each response is stored; what its function raises is raised here."""
        asked: list[Any] = []

        async def pages(cursor: Any) -> AsyncIterator[Response]:
            asked.append(cursor)
            if cursor == 2:
                raise RuntimeError("the API is away")
            yield Response(b"{}", cursor=(cursor or 0) + 1)

        ingress.add_poll(pages, **POLL | {"type": "page"})
        ingress.poll_now("api")
        ingress.poll_now("api")
        with pytest.raises(PollFailed, match="the API is away"):
            ingress.poll_now("api")
        assert asked == [None, 1, 2]
        assert [row.type for row in inbox.admin.messages()] == ["page", "page"]

    def test_one_that_is_not_there_is_named(self, ingress: Ingress) -> None:
        with pytest.raises(ConfigurationError, match="no poll of 'api'"):
            ingress.poll_now("api")


class TestWebhooks:
    """`webhooks`."""

    def test_what_was_made_is_served_and_closed(self, ingress: Ingress, inbox: Inbox) -> None:
        made = ingress.webhooks({"/github": GitHub("a" * 40)}, None)
        assert (ingress.served, inbox.context.registry.sources) == ([made], {"github": 3 * DAY})
        ingress.close()

    def test_two_senders_under_one_source_are_refused_across_applications(self, ingress: Ingress) -> None:
        """An event of one could be taken for a copy of the other's; the same sender may come twice."""
        ingress.webhooks({"/github": GitHub("a" * 40)}, None)
        ingress.webhooks({"/again": GitHub("a" * 40)}, None)
        with pytest.raises(ConfigurationError, match="same source 'github'"):
            ingress.webhooks({"/other": GitHub("b" * 40)}, None)
        assert len(ingress.served) == 2

    def test_limits_are_limits(self, ingress: Ingress) -> None:
        with pytest.raises(ConfigurationError, match="limits"):
            ingress.webhooks({"/github": GitHub("a" * 40)}, 5)  # type: ignore[arg-type] # that is the mistake


class TestAttended:
    """While `run` runs."""

    def test_without_sources_there_is_no_thread(self, ingress: Ingress) -> None:
        with ingress.attended(lambda: pytest.fail("nothing failed")):
            pass

    def test_a_source_is_read_until_the_end(self, ingress: Ingress, opened: Opened) -> None:
        ingress.add_source("any://x", **QUEUE)
        with ingress.attended(lambda: pytest.fail("nothing failed")):
            wait_until(lambda: opened.looks > 2, message="it to be read")
        assert opened.closed == 1

    def test_an_unexpected_error_stops_the_worker_and_is_raised(self, ingress: Ingress, opened: Opened) -> None:
        opened.error, stopped = RuntimeError("a bug"), list[int]()
        ingress.add_source("any://x", **QUEUE)
        with (
            pytest.raises(RuntimeError, match="a bug"),
            ingress.attended(lambda: stopped.append(1)),
        ):
            wait_until(lambda: stopped == [1], message="the worker to be stopped")

    def test_a_paused_source_is_not_opened(self, ingress: Ingress, inbox: Inbox, opened: Opened) -> None:
        """As the database has it; while it cannot be asked, as it was known last."""
        ingress.add_source("any://x", **QUEUE)
        inbox.admin.pause(source="queue", reason="a migration")
        assert asyncio.run(ingress._is_paused("queue"))
        assert not asyncio.run(ingress._is_paused("other"))
        inbox.admin.resume(source="queue", reason="over")
        inbox.context.look_at = float("-inf")
        assert not asyncio.run(ingress._is_paused("queue"))
        assert opened.looks == 0
