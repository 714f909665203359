"""Isolated messages: a worker process is killed with many open claims; a fresh message must not wait for them."""

from __future__ import annotations

import asyncio

from bench.figures import expect
from bench.ground import one
from bench.scale import Crowd
from bench.scenarios.handlers import inbox_at
from bench.scenarios.sender import PATIENCE, Found, check_once, sending
from bench.scenarios.workers import registered, started, until

GAP_SECONDS = 0.05
WARM = 10
"""So many quick messages for each that is to be isolated: the doomed worker knows by then that it may claim many."""
_CLAIMS = "SELECT count(*) FROM onceward_queue WHERE worker IS NOT NULL"
_STEADY_LOOKS = 5


async def measure(url: str, crowd: Crowd, found: Found) -> None:
    """Fresh messages come from the kill on until every isolated message has run; the slowest of them counts."""
    name = "suspects: a fresh message (ms)"
    async with (
        sending(url, inbox_at(url), found) as sender,
        started(url, crowd.lanes, "for ever") as doomed,
    ):
        # More than are to be claimed: the last lanes get smaller parts.
        backlog = await sender.send_many("isolated", WARM * crowd.isolated)
        backlog += await sender.send_many("isolated", 2 * crowd.isolated, hold=True)
        claims = await _stuck(url)
        expect(f"{name}: claims of the killed worker, at least", min(claims, crowd.isolated), crowd.isolated)
        found.notes["suspects: claims of the killed worker"] = claims
        async with started(url, crowd.lanes // 2, "moment"):
            await registered(url, 2)
            await until(lambda: one(url, "SELECT count(*) FROM onceward_queue") == claims, "what was not claimed")
            doomed.kill()
            calls = []
            for _ in range(int(PATIENCE / GAP_SECONDS)):
                calls.append(asyncio.create_task(sender.send("quick")))
                await asyncio.sleep(GAP_SECONDS)
                if not sender.open(backlog):
                    break
            fresh = await asyncio.gather(*calls)
            found.add(name, 1000 * max(await sender.waits(name, fresh)))
            await sender.waits("suspects: themselves", backlog)
            every = [*backlog, *fresh]
            check_once(name, url, every, sender.open(every))


async def _stuck(url: str) -> int:
    """How many claims the doomed worker has, as soon as it makes no more: every lane is held."""
    seen: list[int] = []

    def steady() -> bool:
        seen.append(one(url, _CLAIMS))
        return len(seen) > _STEADY_LOOKS and min(seen[-_STEADY_LOOKS:]) == seen[-1] == max(seen[-_STEADY_LOOKS:]) > 0

    await until(steady, "every lane of the doomed worker is held")
    return seen[-1]
