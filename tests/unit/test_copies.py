"""Copies at the same time: one goes ahead, the others wait for it, and none waits for ever."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from onceward.errors import StoreBusy
from onceward.runtime.copies import Copies
from tests.unit.builders import delivery
from tests.waiting import wait_until, wait_until_async

ONE = delivery()
IDENTITY = ONE.source, ONE.id
LONG, SHORT = timedelta(seconds=30), timedelta(milliseconds=10)


def waiting(copies: Copies) -> int:
    return len(copies.turns[IDENTITY])


async def _now(value: bool) -> bool:  # noqa: FBT001 - a condition that is known at once
    return value


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_success_all_go_on_and_after_a_failure_the_next(*, fails: bool) -> None:
    """Threads and tasks wait for the same."""
    copies, inside, most, came = Copies(LONG), 0, 0, 0
    together = 2 if fails else 3  # after a failure one goes ahead of the last two

    async def other() -> None:
        nonlocal inside, most, came
        async with copies.async_turn(ONE):
            came, inside = came + 1, inside + 1
            most = max(most, inside)
            is_ahead = fails and came == 1
            # Who is ahead stays until the others have lined up behind it, the others until all of them are in.
            await wait_until_async(lambda: _now(waiting(copies) == 2 if is_ahead else most == together))
            inside -= 1

    async def others() -> None:
        await asyncio.gather(other(), other(), other())

    with ThreadPoolExecutor(1) as pool:
        with suppress(RuntimeError), copies.turn(ONE):
            running = pool.submit(asyncio.run, others())
            wait_until(lambda: waiting(copies) == 3)
            if fails:
                raise RuntimeError("rolled back")
        running.result()
    assert (most, copies.turns) == (together, {})


def test_patience_ends_and_other_messages_are_not_concerned() -> None:
    copies = Copies(SHORT)
    with copies.turn(ONE):
        with pytest.raises(StoreBusy, match=f"another copy of message '{ONE.id}'"), copies.turn(ONE):
            pass
        with pytest.raises(StoreBusy):
            copies.wait(ONE)
        with pytest.raises(StoreBusy):
            asyncio.run(copies.async_wait(ONE))
        with copies.turn(delivery(id="another")):
            copies.wait(delivery(id="a third"))
    copies.wait(ONE)
    assert copies.turns == {}


def test_one_that_is_cancelled_while_it_waits_is_in_nobodys_way() -> None:
    copies = Copies(LONG)

    async def main() -> None:
        async with copies.async_turn(ONE):
            task = asyncio.create_task(copies.async_wait(ONE))
            while not waiting(copies):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await copies.async_wait(ONE)

    asyncio.run(main())


def test_a_forked_child_does_not_wait_for_what_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(SHORT)
    with copies.turn(ONE):
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with copies.turn(ONE):
            assert waiting(copies) == 0
