"""Latency: from the call of `receive` to the commit of the effect, with a worker in another process.

The handler notifies in its transaction, so its word comes when the effect is committed, not before. Beside it the same
by hand, as an idle machine can do it at best: an insert, a notification, an update, and nothing of onceward.
"""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import psycopg

from bench.figures import Figures, expect
from bench.ground import Ground
from bench.messages import body, random_id
from bench.race import ROOT, ours
from bench.scale import Scale
from onceward import Inbox, Message

SAMPLE = 10
"""One message in so many says when it is done, at half load."""
IDLE_GAP = 0.03


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """Idle first; then at half of what this machine has just been measured to handle."""
    capacity = figures.median("handle: onceward, update") or 100.0
    count = max(int(scale.latency_seconds / IDLE_GAP), 5)
    with ground.copy() as url:
        with _worker("onceward", url):
            idle = asyncio.run(_send(url, count, 1 / IDLE_GAP, sample=1))
            rate = _mixed_capacity(capacity, figures) / 2
            busy = asyncio.run(_send(url, int(scale.latency_seconds * rate), rate, sample=SAMPLE))
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE by_hand (number bigint PRIMARY KEY, target bigint NOT NULL)")
        with _worker("by hand", url):
            by_hand = asyncio.run(_send_by_hand(url, count))
    figures.notes["latency: messages a second at half load"] = round(rate)
    for name, found in (("idle", idle), ("idle, by hand", by_hand), ("half load", busy)):
        figures.add(f"latency: {name}, p50 (ms)", 1000 * median(found))
        figures.add(f"latency: {name}, p99 (ms)", 1000 * quantiles(found, n=100, method="inclusive")[98])


def _mixed_capacity(handled: float, figures: Figures) -> float:
    """What can be received, one by one, and handled, on the same cores."""
    received = figures.median("receive: onceward, 64 tasks") or handled
    return 1 / (1 / handled + 1 / received)


@contextmanager
def _worker(kind: str, url: str) -> Iterator[None]:
    """A process that handles what comes."""
    command = ours("latency", kind, url)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        expect("latency: the worker", worker.stdout.readline().strip(), "ready")
        yield
        worker.communicate()


def _inbox(url: str) -> Inbox:
    inbox = Inbox(url)

    @inbox.on("timed")
    def timed(message: Message, tx: Any) -> None:
        tx.execute("UPDATE target SET n = n + 1 WHERE id = %s", [message.data["row"]])
        if message.data["sampled"]:
            tx.execute("SELECT pg_notify('done', %s)", [str(message.data["number"])])

    return inbox


async def _send(url: str, count: int, rate: float, *, sample: int) -> list[float]:
    """Send at a steady rate, whatever becomes of what was sent before; answers the seconds of each sampled one."""
    inbox = _inbox(url)
    sent: dict[int, float] = {}
    waits: list[float] = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as listener:
        await listener.execute("LISTEN done")
        wanted = len(range(0, count, sample))

        async def listen() -> None:
            async for notice in listener.notifies():
                waits.append(time.perf_counter() - sent[int(notice.payload)])
                if len(waits) == wanted:
                    return

        listening = asyncio.create_task(listen())
        began, calls = time.perf_counter(), set()
        for number in range(count):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            sent[number] = time.perf_counter()
            data = {**body(number), "sampled": number % sample == 0}
            call = asyncio.create_task(inbox.areceive(source="bench", id=random_id(), type="timed", data=data))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
        await asyncio.wait_for(listening, 60)
    await inbox.aclose()
    return waits


async def _send_by_hand(url: str, count: int) -> list[float]:
    """One after the other, each as soon as the one before is done and a moment has passed."""
    waits = []
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as sender,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as listener,
    ):
        await listener.execute("LISTEN done")
        for number in range(count):
            await asyncio.sleep(IDLE_GAP)
            began = time.perf_counter()
            await sender.execute("INSERT INTO by_hand VALUES (%s, %s)", [number, body(number)["row"]])
            await sender.execute("NOTIFY by_hand")
            await anext(listener.notifies(timeout=60, stop_after=1))
            waits.append(time.perf_counter() - began)
    return waits


def _handle_by_hand(url: str) -> None:
    """Until its input ends: whatever there is, as soon as it is told."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN by_hand")
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            list(connection.notifies(timeout=0.5, stop_after=1))  # to its end: until then the connection is its own
            with connection.transaction():
                for number, target in connection.execute("DELETE FROM by_hand RETURNING number, target").fetchall():
                    connection.execute("UPDATE target SET n = n + 1 WHERE id = %s", [target])
                    connection.execute("SELECT pg_notify('done', %s)", [str(number)])


def main(kind: str, url: str) -> None:
    """The worker: runs until its input ends."""
    if kind == "by hand":
        _handle_by_hand(url)
        return
    inbox = _inbox(url)
    thread = threading.Thread(target=inbox.run)
    thread.start()
    time.sleep(0.5)  # until it waits for work
    print("ready", flush=True)
    sys.stdin.read()
    inbox.stop()
    thread.join()
    inbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
