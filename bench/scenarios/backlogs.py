"""Backlogs: healthy messages come behind many that fail, and behind many of a key that inline work holds."""

from __future__ import annotations

import asyncio
import threading

from bench.figures import expect
from bench.ground import one
from bench.scale import Crowd
from bench.scenarios.handlers import inbox_at
from bench.scenarios.sender import Found, check_once, sending
from bench.scenarios.workers import until, working

GAP_SECONDS = 0.05


async def failing(url: str, crowd: Crowd, found: Found) -> None:
    """The failing ones have their first attempts; the slowest of the healthy ones counts."""
    name = "types: behind failing messages (ms)"
    async with sending(url, inbox_at(url), found) as sender, working(url):
        await sender.send_many("failing", crowd.failing)
        numbers = await sender.steadily("quick", crowd.healthy, GAP_SECONDS)
        found.add(name, 1000 * max(await sender.waits(name, numbers)))
        check_once(name, url, numbers, sender.open(numbers))
        tried = one(url, "SELECT count(*) FROM onceward_attempt")
        expect(f"{name}: failed attempts, at least", min(tried, 1), 1)
        found.notes[f"{name}, attempts by then"] = tried
        expect(
            f"{name}: all effects", one(url, "SELECT count(*) FROM effect"), len(numbers) - len(sender.open(numbers))
        )


async def held(url: str, crowd: Crowd, found: Found) -> None:
    """All of a key wait for a message that is processed inline; those of other keys and types must not."""
    name = "types: behind a held key (ms)"
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        let_go.wait()

    async with sending(url, inbox_at(url, hold), found) as sender, working(url):
        first = sender.new("keyed", key="held", hold=True)
        inline = asyncio.create_task(asyncio.to_thread(sender.inbox.process, **first))
        await until(holding.is_set, "inline work")
        try:
            behind = await sender.send_many("keyed", crowd.held, key="held")
            half = crowd.healthy // 2
            numbers = await sender.steadily("quick", half, GAP_SECONDS)
            numbers += await sender.steadily("keyed", half, GAP_SECONDS, key="other")
            found.add(name, 1000 * max(await sender.waits(name, numbers)))
            expect(f"{name}: of the held key", len(sender.open(behind)), crowd.held)
        finally:
            let_go.set()
        await inline
        every = [first["data"]["number"], *behind, *numbers]
        await sender.waits(f"{name}, let go", every)
        check_once(name, url, every, sender.open(every))
