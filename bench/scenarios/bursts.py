"""Bursts: many receives at the same moment, on an idle system with a running worker."""

from __future__ import annotations

import asyncio
from statistics import median

from bench.scale import Crowd
from bench.scenarios.handlers import inbox_at
from bench.scenarios.sender import Found, check_once, sending
from bench.scenarios.workers import working

PAUSE_SECONDS = 0.01


async def measure(url: str, crowd: Crowd, found: Found) -> None:
    """One burst that opens connections, and then those that count."""
    name = "bursts: slowest (ms)"
    waits: list[float] = []
    every: list[int] = []
    async with sending(url, inbox_at(url), found) as sender, working(url):
        for number in range(crowd.bursts + 1):
            numbers = await asyncio.gather(*(sender.send("quick") for _ in range(crowd.callers)))
            taken = await sender.waits(name, numbers)
            every += numbers
            if number:
                waits += taken
            await asyncio.sleep(PAUSE_SECONDS)
        check_once(name, url, every, sender.open(every))
    found.add("bursts: p50 (ms)", 1000 * median(waits))
    found.add(name, 1000 * max(waits))
