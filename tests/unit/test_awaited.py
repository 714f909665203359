"""Awaited forms: there is one for whatever blocks, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextvars import ContextVar

import pytest

from onceward import Inbox
from onceward.admin.admin import Admin
from onceward.retention.retention import Retention
from onceward.runtime import awaited as forms
from onceward.runtime.awaited import awaited

WHO: ContextVar[str] = ContextVar("WHO")
AT_ONCE = {"alert", "declare_source", "during"}
"""What a program says while it is set up, and what others run."""


class Slow:
    """Something that blocks."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.ended = threading.Event()

    def wait(self, value: int, *, fails: bool = False) -> tuple[int, str]:
        """Block until told to go on."""
        self.began.set()
        assert self.go_on.wait(60)
        self.ended.set()
        if fails:
            raise LookupError(value)
        return value, WHO.get("nobody")

    await_ = awaited(wait)


async def test_the_loop_goes_on_while_a_thread_waits() -> None:
    slow = Slow()
    WHO.set("ann")
    calls = [asyncio.create_task(slow.await_(number)) for number in range(3)]
    await asyncio.sleep(0)
    slow.go_on.set()
    assert await asyncio.gather(*calls) == [(0, "ann"), (1, "ann"), (2, "ann")]
    with pytest.raises(LookupError):
        await slow.await_(7, fails=True)


async def test_calls_that_hang_hold_up_no_thread_of_the_loop() -> None:
    """As many as may run at once are stuck; what the application itself does in threads goes on."""
    slow = Slow()
    calls = [asyncio.create_task(slow.await_(number)) for number in range(forms.AT_ONCE + 5)]
    assert await asyncio.to_thread(lambda: "free") == "free"
    slow.go_on.set()
    assert len(await asyncio.gather(*calls)) == forms.AT_ONCE + 5


async def test_what_is_cancelled_is_completed_all_the_same() -> None:
    slow = Slow()
    call = asyncio.create_task(slow.await_(1))
    assert await asyncio.to_thread(slow.began.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    slow.go_on.set()
    assert await asyncio.to_thread(slow.ended.wait, 60)


@pytest.mark.parametrize("part", [Admin, Retention])
def test_whatever_blocks_has_an_awaited_form(part: type) -> None:
    """And no other way of its own: each is the method's, with its arguments and a name like `areceive`."""
    public = {name: one for name, one in vars(part).items() if inspect.isfunction(one) and not name.startswith("_")}
    blocking = {name for name, one in public.items() if not inspect.iscoroutinefunction(one)}
    assert {name for name in blocking - AT_ONCE if f"a{name}" not in public} == set()
    for name in public.keys() - blocking:
        assert name[1:] in blocking
        assert inspect.signature(public[name]) == inspect.signature(public[name[1:]])
        assert public[name].__qualname__ == f"{part.__name__}.{name}"
        assert name[1:] in (public[name].__doc__ or "")


async def test_an_inbox_is_steered_from_an_event_loop() -> None:
    inbox = Inbox("sqlite://")
    inbox.migrate()
    await inbox.areceive(source="shop", id="m1", type="order.paid", data={})
    assert (await inbox.admin.astats()).unhandled == 1
    (row,) = await inbox.admin.amessages()
    assert await inbox.admin.adiscard(row.seq, reason="test") == 1
    assert await inbox.retention.aerase(row.seq, reason="test") == []
    await inbox.aclose()
