"""How long a reader waits for a broker: longer each time, and for a moment again after it could read for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward.brokers import consumer, protocol
from onceward.brokers.consumer import Consumer
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, open_sink, open_source
from onceward.errors import ConfigurationError
from tests.unit.test_consumer import Queue, Store


class Broken(Queue):
    """A source that has nothing, so many times, and then fails; it comes back each time."""

    def __init__(self, empty_turns: list[int], seconds: float) -> None:
        super().__init__()
        self._left, self._seconds = empty_turns, seconds
        self.now = 0.0

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        del limit, seconds
        if not self._left[0]:
            del self._left[0]
            raise BrokerUnavailable("gone")
        self._left[0] -= 1
        self.now += self._seconds
        return []


async def paused(monkeypatch: pytest.MonkeyPatch, empty_turns: list[int], seconds: float) -> list[float]:
    """The pauses between failures, with so many turns before each that last so long, by the loop's clock."""
    queue, stopping, pauses = Broken(empty_turns, seconds), asyncio.Event(), list[float]()

    async def wait(_stopping: asyncio.Event, pause: float) -> None:
        pauses.append(pause)
        if not empty_turns:
            stopping.set()

    monkeypatch.setattr(consumer, "wait", wait)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: queue.now)
    await Consumer(queue, Envelope("queue")).run(Store(stopping, most=0), stopping)
    assert queue.connection == ["open", "close"] * len(pauses)
    return pauses


async def test_it_waits_twice_as_long_each_time_up_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await paused(monkeypatch, [0] * 8, 0.0) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


async def test_a_turn_in_vain_is_no_reason_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a source does at its beginning may fail later than its first turn: five seconds are not enough."""
    assert await paused(monkeypatch, [1, 2, 3], 1.0) == pytest.approx([0.1, 0.2, 0.4])
    assert await paused(monkeypatch, [0, 1, 1], 5.0) == pytest.approx([0.1, 0.2, 0.4])


async def test_after_more_than_five_seconds_of_reading_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await paused(monkeypatch, [0, 0, 6, 0], 1.0) == pytest.approx([0.1, 0.2, 0.1, 0.2])


@pytest.mark.parametrize(
    ("open_it", "broker", "problem"),
    [
        (open_source, Broker(sink=lambda _: None), "cannot be read from"),  # type: ignore[arg-type, return-value]
        (open_sink, Broker(source=lambda _: None), "cannot be published to"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_broker_with_one_direction_says_so(
    monkeypatch: pytest.MonkeyPatch, open_it: Any, broker: Broker, problem: str
) -> None:
    monkeypatch.setattr(protocol, "_broker", lambda _: broker)
    with pytest.raises(ConfigurationError, match=problem):
        open_it("paper://tray")


def test_a_broker_opens_what_its_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_broker", lambda _: Broker(source=Named, sink=Named))  # type: ignore[arg-type]
    assert vars(open_source("paper://a")) == {"url": "paper://a"}
    assert vars(open_sink("paper://b")) == {"url": "paper://b"}


class Named:
    """What was made of a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
