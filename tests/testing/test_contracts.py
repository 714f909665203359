"""The contracts hold for onceward's own stores and sinks, and notice what breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onceward import Inbox, Message
from onceward.errors import OncewardError
from onceward.sinks.inbox import InboxSink
from onceward.testing import PromiseBroken, sink_contract
from onceward.testing.memory.recorder import Recorder
from onceward.testing.memory.sessions import Memory
from onceward.testing.memory.tables import Tables
from onceward.testing.sink_contract import PROMISES
from onceward.testing.store_suite import Shop
from onceward.testing.store_suite.order import Order
from onceward.testing.store_suite.sessions import Sessions
from tests.contract.test_store_suite import MemoryPlace


class Forgetful(Memory):
    """Says that a change is made, and forgets it."""

    def apply(self, change: Callable[[Tables], Any], recorded: Recorder | None = None) -> Any:
        kept = self.tables
        answer = super().apply(change, recorded)
        self.tables = kept
        return answer


class Early(Memory):
    """Writes what a handler has recorded before it is known that the claim still holds."""

    def apply(self, change: Callable[[Tables], Any], recorded: Recorder | None = None) -> Any:
        if recorded is not None:
            super().apply(recorded.apply)
        return super().apply(change)


class BrokenPlace(MemoryPlace):
    """A memory store that breaks its word."""

    def __init__(self, memory: Callable[[Callable[[], int]], Memory]) -> None:
        super().__init__()
        store: Any = self._store
        store._memory = memory(store.clock)


CASES: dict[str, tuple[type[Memory], Callable[[Shop], None]]] = {
    "commits are lost": (Forgetful, Sessions().test_what_a_move_has_returned_is_seen_by_every_session),
    "effects come before the guard": (Early, Sessions().test_a_finish_without_its_claim_raises_and_leaves_nothing),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_store_that_breaks_its_word_does_not_pass(fault: str) -> None:
    memory, case = CASES[fault]
    case(Shop(MemoryPlace(), "def"))
    with pytest.raises((AssertionError, OncewardError)):
        case(Shop(BrokenPlace(memory), "def"))


def test_a_store_that_disorders_a_key_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.testing.memory.claims._parked", lambda *_: iter(()))
    with pytest.raises(AssertionError):
        Order().test_one_that_fails_holds_its_key_and_no_other(Shop(MemoryPlace(), "def"))


def test_an_inbox_is_a_sink(store_url: str) -> None:
    with Inbox(store_url, service="other") as other:
        other.migrate()

        def received() -> list[tuple[str, str, bytes]]:
            details = [other.admin.message(row.seq) for row in reversed(other.admin.messages())]
            return [(detail.id, detail.type or "", detail.body or b"") for detail in details if detail]

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


def test_what_a_promise_says_is_its_docstring() -> None:
    assert PROMISES[0].sentence.startswith("When publish returns, the other side has the message")
