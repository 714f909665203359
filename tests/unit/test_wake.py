"""A notification is never missed: a waiter that looks, then waits, is woken by one in between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onceward.runtime.wakeup import Wake
from tests.waiting import wait_until

SOON, LONG, FOR_EVER = 0.02, 30.0, 3600.0


def test_a_notification_before_the_wait_is_not_lost() -> None:
    """A waiter that compares with what was seen does not wait for a notification that has been."""
    wake = Wake()
    seen = wake.count
    wake.notify()
    returned = threading.Event()

    def wait() -> None:
        assert wake.wait(seen, FOR_EVER) == seen + 1
        returned.set()

    threading.Thread(target=wait, daemon=True).start()
    assert returned.wait(LONG)


async def test_a_notification_before_the_awaited_wait_is_not_lost() -> None:
    """The same on an event loop."""
    wake = Wake()
    seen = wake.count
    wake.notify()
    assert await asyncio.wait_for(wake.async_wait(seen, FOR_EVER), LONG) == seen + 1


def test_without_a_notification_the_time_runs_out() -> None:
    """A waiter comes back by itself, with the old count."""
    wake = Wake()
    assert wake.wait(wake.count, SOON) == 0
    assert wake.wait(wake.count, 0) == 0


async def test_without_a_notification_the_awaited_time_runs_out() -> None:
    """The same on an event loop, without a callback left behind."""
    wake = Wake()
    assert await wake.async_wait(wake.count, SOON) == 0
    assert await wake.async_wait(wake.count, 0) == 0
    assert not wake._callbacks


def test_a_notification_wakes_every_thread() -> None:
    """One notification is enough for all."""
    wake = Wake()
    woken: list[int] = []
    threads = [threading.Thread(target=lambda: woken.append(wake.wait(0, LONG))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wake.notify()
    for thread in threads:
        thread.join(LONG)
    assert woken == [1] * 4


async def test_a_notification_from_a_thread_wakes_every_task() -> None:
    """The notification comes from a thread that knows nothing of the loop."""
    wake = Wake()
    tasks = [asyncio.create_task(wake.async_wait(0, LONG)) for _ in range(4)]
    await asyncio.sleep(0.01)
    await asyncio.to_thread(wake.notify)
    assert await asyncio.gather(*tasks) == [1] * 4
    assert not wake._callbacks


def test_no_notification_is_lost_between_threads() -> None:
    """A waiter that always passes on what it saw notices the last of many notifications, however they interleave."""
    wake, notifications = Wake(), 2000
    done = threading.Event()

    def listen() -> None:
        seen = 0
        while seen < notifications:
            seen = wake.wait(seen, LONG)
        done.set()

    threading.Thread(target=listen, daemon=True).start()
    for _ in range(notifications):
        wake.notify()
    assert done.wait(LONG)


async def test_no_notification_is_lost_between_a_thread_and_a_loop() -> None:
    """The same with the waiter on an event loop."""
    wake, notifications = Wake(), 1000

    def notify_often() -> None:
        for _ in range(notifications):
            wake.notify()

    thread = threading.Thread(target=notify_often)
    thread.start()
    seen = 0
    while seen < notifications:
        seen = await asyncio.wait_for(wake.async_wait(seen, LONG), LONG)
    thread.join()
    assert not wake._callbacks


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """A task that is cancelled while it waits is forgotten."""
    wake = Wake()
    task = asyncio.create_task(wake.async_wait(0, LONG))
    await asyncio.sleep(0.01)
    assert wake._callbacks
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not wake._callbacks
    wake.notify()


def test_a_notification_after_the_loop_is_gone_is_harmless() -> None:
    """A loop that was closed while somebody waited on it does not break the one that notifies."""
    wake = Wake()
    loop = asyncio.new_event_loop()
    waiting = wake.async_wait(0, LONG)
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0.01))
    callbacks = set(wake._callbacks)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    wake._callbacks |= callbacks
    wake.notify()
    assert wake.count == 1


def test_a_notification_inside_a_notification_does_not_hang() -> None:
    """A signal handler may notify while its own thread is notifying."""
    wake = Wake()
    done = threading.Event()

    def notify_twice() -> None:
        with wake._condition:  # as if a signal arrived in the middle of `notify`
            wake.notify()
        done.set()

    threading.Thread(target=notify_twice, daemon=True).start()
    wait_until(done.is_set, message="a notification inside a notification")
    assert wake.count == 1
