"""The contracts hold for onceward's own stores and sinks, and notice what breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox, Message
from onceward.flow import COMMIT, Commit
from onceward.sinks.inbox import InboxSink
from onceward.stores.protocol import Store, open_store
from onceward.stores.sqlite.session import SqliteSession
from onceward.testing import PromiseBroken, sink_contract, store_contract
from onceward.testing.store_contract import PROMISES

OpenStore = Callable[[], Store]


@pytest.fixture
def opening(store_url: str) -> OpenStore:
    """Opens a store on a migrated database."""

    def opened() -> Store:
        store = open_store(store_url, "onceward_", timedelta(seconds=1))
        store.migrate()
        return store

    return opened


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_our_stores_keep_every_promise(promise: Any, opening: OpenStore) -> None:
    promise.check(opening)


def test_the_promises_are_sentences(opening: OpenStore) -> None:
    sentences = store_contract(opening)
    assert len(sentences) == len(PROMISES) == 15
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_store_that_loses_its_commits_is_noticed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SqliteSession.perform

    def forgetful(session: SqliteSession, request: Any) -> Any:
        parts = request if isinstance(request, tuple) else (request,)
        if parts == (COMMIT,) or (isinstance(parts[-1], Commit) and len(parts) > 3):
            return None
        return original(session, request)

    def opened() -> Store:
        store = open_store(sqlite_url, "onceward_", timedelta(milliseconds=20))
        store.migrate()
        return store

    monkeypatch.setattr(SqliteSession, "perform", forgetful)
    with pytest.raises(PromiseBroken, match="A committed row is seen by every other session"):
        store_contract(opened)


def test_an_inbox_is_a_sink(store_url: str) -> None:
    with Inbox(store_url, service="other") as other:
        other.migrate()

        def received() -> list[tuple[str, str, bytes]]:
            stories = [other.admin.message(row.seq) for row in reversed(other.admin.messages())]
            return [(story.id, story.type or "", story.body or b"") for story in stories if story]

        assert len(sink_contract(InboxSink(other, source="shop"), received=received)) == 4


class Box:
    """A sink in memory, with faults to order."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.away = fault, False
        self.arrived: list[tuple[str, str, bytes]] = []

    def publish(self, message: Message) -> None:
        if self.away:
            if self.fault == "silent":
                return
            raise ConnectionError("away")
        number = f"{message.id}{len(self.arrived)}" if self.fault == "other ids" else message.id
        body = message.body.decode("latin-1").encode() if self.fault == "other bytes" else message.body
        if self.fault != "lost":
            self.arrived.append((number, message.type, body))

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """The other side is away."""
        self.away = True
        yield
        self.away = False


class AsyncBox(Box):
    """The same, awaited."""

    async def publish(self, message: Message) -> None:  # type: ignore[override]
        super().publish(message)


@pytest.mark.parametrize("kind", [Box, AsyncBox])
def test_a_sink_that_keeps_its_promises_passes(kind: type[Box]) -> None:
    box = kind()
    assert sink_contract(box, received=lambda: box.arrived, away=box.unplugged)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("lost", "the other side has nothing"),
        ("other bytes", "another message arrived"),
        ("other ids", "the other side has nothing"),
        ("silent", "publish returned although the other side was away"),
    ],
)
def test_a_sink_that_breaks_a_promise_is_noticed(fault: str, said: str) -> None:
    box = Box(fault)
    with pytest.raises(PromiseBroken, match=said):
        sink_contract(box, received=lambda: box.arrived, away=box.unplugged)


def test_what_a_promise_says_is_its_docstring(tmp_path: Path) -> None:
    assert PROMISES[0].sentence == "The tables are there, and a second migration has nothing to do."
    with pytest.raises(PromiseBroken, match="15 of 15 promises are broken"):
        store_contract(lambda: open_store(f"sqlite:///{tmp_path}/no/such.db", "onceward_", timedelta(seconds=1)))
