"""The processes: `work` runs handlers and the relay, `deliver` is the client of an at-least-once broker.

A delivery counts as acknowledged when its line is in the file; a process that dies before begins again there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from chaos import load
from chaos.service import Kind, build
from onceward import Inbox, Receipt, StoreError
from onceward.message import Arguments

SOURCE = "broker"


def main(arguments: list[str]) -> None:
    """`work URL KIND`, or `deliver URL KIND FOLDER PARTITION SEED`."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    role, url, kind, *rest = arguments
    inbox = build(url, "async" if kind == "async" else "sync")
    if role == "work":
        work(inbox, "async" if kind == "async" else "sync")
    else:
        folder, partition, seed = rest
        Deliverer(inbox, Path(folder), int(partition), int(seed), "async" if kind == "async" else "sync").run()


def work(inbox: Inbox, kind: Kind) -> None:
    """Work until told to stop; start again where the database was away at the beginning."""
    while True:
        try:
            if kind == "sync":
                inbox.run(concurrency=2)
            else:
                asyncio.run(_work_async(inbox))
        except StoreError:
            time.sleep(0.1)
        else:
            return


async def _work_async(inbox: Inbox) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, inbox.stop)
    try:
        await inbox.arun(concurrency=2)
    finally:
        await inbox.aclose()


class Deliverer:
    """Delivers one partition in its order, with copies of what it delivered before in between."""

    def __init__(self, inbox: Inbox, folder: Path, partition: int, seed: int, kind: Kind) -> None:
        self._inbox, self._kind = inbox, kind
        self._parcels = load.read(folder / f"partition{partition}")
        self._released = folder / "released"
        self._log = os.open(folder / f"log{partition}", os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._next = _acknowledged(folder / f"log{partition}")
        self._rng = random.Random(seed)
        self._runner = asyncio.Runner()

    def run(self) -> None:
        """Deliver what has been released, until everything is acknowledged."""
        while self._next < len(self._parcels):
            released = int(self._released.read_text() or 0) * len(self._parcels) // 1_000_000
            if self._next >= released:
                time.sleep(0.02)
                continue
            try:
                self._deliver(self._parcels[self._next : released])
            except StoreError:
                time.sleep(0.05)
        self._call(self._inbox.close, self._inbox.aclose)  # the threads of open connections would keep the process

    def _deliver(self, waiting: list[load.Parcel]) -> None:
        first = waiting[0]
        if self._rng.random() < 0.1 and self._next:
            self._deliver_again()
        if first.how == "many":
            batch = [parcel for parcel in waiting[: self._rng.randint(1, 50)] if parcel.how == "many"]
            count = next((n for n, parcel in enumerate(waiting) if parcel.how != "many"), len(waiting))
            batch = waiting[: min(count, len(batch))]
            many = [_message(parcel) for parcel in batch]
            receipts = self._call(lambda: self._inbox.receive_many(many), lambda: self._inbox.areceive_many(many))
        elif first.how == "process":
            batch, one = [first], _message(first)
            receipts = [self._call(lambda: self._inbox.process(**one), lambda: self._inbox.aprocess(**one))]
        else:
            batch, one = [first], _message(first)
            receipts = [self._call(lambda: self._inbox.receive(**one), lambda: self._inbox.areceive(**one))]
        for receipt in receipts:
            self._note(receipt)
        self._next += len(batch)
        self._write(f"acknowledged {self._next}")

    def _deliver_again(self) -> None:
        """A copy of something recent; now and then with other bytes, as a careless sender would."""
        parcel = self._parcels[self._next - 1 - self._rng.randrange(min(self._next, 50))]
        message = _message(parcel)
        if self._rng.random() < 0.02:
            message["data"] = {**message["data"], "position": -1}
        receipt = self._call(lambda: self._inbox.receive(**message), lambda: self._inbox.areceive(**message))
        if receipt.status == "accepted":
            self._write(f"seen ACCEPTED-TWICE {parcel.id}")
        self._note(receipt)

    def _note(self, receipt: Receipt) -> None:
        if receipt.status == "duplicate":
            self._write(f"seen {'duplicate of a finished' if receipt.finished else 'duplicate while in flight'}")
        elif receipt.status == "mismatch":
            self._write("seen mismatch")
        elif receipt.finished:
            self._write("seen finished inline")

    def _call(self, sync: Callable[[], Any], later: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return sync() if self._kind == "sync" else self._runner.run(later())

    def _write(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())


def _message(parcel: load.Parcel) -> Arguments:
    data = {"key": parcel.key, "position": parcel.position}
    return {"source": SOURCE, "id": parcel.id, "type": parcel.kind, "data": data}


def _acknowledged(path: Path) -> int:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return max((int(line.split()[1]) for line in lines if line.startswith("acknowledged ")), default=0)


if __name__ == "__main__":
    main(sys.argv[1:])
