"""One process of a contender: `python -m faults.program CONTENDER prepare|deliver|work|show [NUMBER]`.

It runs in the contender's own environment, and finds its place (`place.py`) in the environment variables.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from faults import plan
from faults.place import Place, here
from faults.plan import Delivery, Payment
from tests.processes import die_with

Send = Callable[[Payment], None]
PAUSE_SECONDS = 0.2
"""Between two tries of a sender, and between two starts of a worker that could not start."""


class Module(Protocol):
    """What each module in `contenders/` has."""

    def prepare(self, place: Place) -> None:
        """Make its tables and queues."""

    def sender(self, place: Place) -> Send:
        """What a thread of the sender calls with each payment; it returns when the payment was accepted for good."""

    def work(self, place: Place, number: int) -> None:
        """A worker process, until it is killed."""

    def failed(self, place: Place) -> list[str]:
        """The ids that the tool shows as failed, by its own means."""

    def held(self, place: Place) -> list[str]:
        """The ids that it shows as not finished; asked when every worker has ended."""


def main(arguments: list[str]) -> None:
    """Do one of them."""
    name, role, *rest = arguments
    die_with(os.getppid())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    place = here()
    module: Module = importlib.import_module(f"faults.contenders.{name}")
    if role == "prepare":
        module.prepare(place)
    elif role == "deliver":
        deliver(module, place)
    elif role == "work":
        module.work(place, int(rest[0]))
    else:
        print(json.dumps({"failed": module.failed(place), "held": module.held(place) if "held" in rest else []}))


def deliver(module: Module, place: Place) -> None:
    """Send everything in its order, as far as it is released; both copies of some in the same moment."""
    folder = Path(place.folder)
    deliveries = plan.read(folder / "deliveries")
    one, other = Sender(module, place), Sender(module, place)
    for number, delivery in enumerate(deliveries):
        while number >= released(folder, len(deliveries)):
            time.sleep(0.01)
        _send(delivery, one, other)


def _send(delivery: Delivery, one: Sender, other: Sender) -> None:
    if delivery.how != "at once":
        one.send(delivery.payment)
        return
    both = threading.Barrier(2)
    second = threading.Thread(target=other.send, args=(delivery.payment, both))
    second.start()
    one.send(delivery.payment, both)
    second.join()


def released(folder: Path, count: int) -> int:
    """How many deliveries may be made by now; the trial replaces the file as a whole."""
    return int(float((folder / "released").read_text()) * count)


class Sender:
    """Sends until it was accepted, as a sender of webhooks does: what it got no answer for, it sends again."""

    def __init__(self, module: Module, place: Place) -> None:
        self._module, self._place = module, place
        self._send: Send | None = None

    def send(self, payment: Payment, both: threading.Barrier | None = None) -> None:
        """Send one payment."""
        if both is not None:
            both.wait()
        while True:
            try:
                self._send = self._send or self._module.sender(self._place)
                self._send(payment)
            except Exception:
                logging.getLogger(__name__).warning("%s is sent again", payment.id, exc_info=True)
                self._send = None
                time.sleep(PAUSE_SECONDS)
            else:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
