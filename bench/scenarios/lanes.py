"""Lanes: slow messages come to idle workers; no lane takes what an idle one could run."""

from __future__ import annotations

from bench.scale import Crowd
from bench.scenarios.handlers import SLOW_SECONDS, inbox_at
from bench.scenarios.sender import Found, check_once, sending
from bench.scenarios.workers import working


async def measure(url: str, crowd: Crowd, found: Found) -> None:
    """From the call of receive to the last effect, over the ideal; workers that do not know the handler yet, and again."""
    ideal = crowd.slow * SLOW_SECONDS / crowd.lanes
    ways = {"one process": (1, crowd.lanes), "several processes": (crowd.processes, crowd.lanes // crowd.processes)}
    async with sending(url, inbox_at(url), found) as sender:
        for _ in range(crowd.rounds):
            for way, (processes, lanes) in ways.items():
                async with working(url, processes=processes, lanes=lanes):
                    for part in ("first", "again"):
                        name = f"lanes: {way}, {part} (of the ideal)"
                        numbers = await sender.send_many("slow", crowd.slow)
                        found.add(name, max(await sender.waits(name, numbers)) / ideal)
                        check_once(name, url, numbers, sender.open(numbers))
