"""A virtual broker: at least once. What is not acknowledged comes again, also when its receiver died."""

from __future__ import annotations

import random
from dataclasses import dataclass

from onceward.message import Delivery
from simulation.history import History


@dataclass(slots=True, eq=False)
class Parcel:
    """One delivery on its way."""

    delivery: Delivery
    holder: str = ""
    settled: bool = False
    undone: bool = False
    """Whatever its receiver has stored was lost with the database; it is on its way once more."""


class Broker:
    """Hands out deliveries, mostly in order, and takes acknowledgements."""

    def __init__(self, deliveries: list[Delivery], history: History, chance: random.Random) -> None:
        self._queue = [Parcel(delivery) for delivery in deliveries]
        self._out: list[Parcel] = []
        self._history, self._chance = history, chance
        self._settled: list[Delivery] = []
        self.lossy = True
        """An acknowledgement may be lost, and then the delivery comes again."""

    @property
    def empty(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._queue and not self._out

    def take(self, holder: str, most: int) -> list[Parcel]:
        """The next deliveries for a receiver."""
        taken: list[Parcel] = []
        while self._queue and len(taken) < most:
            skip = len(self._queue) > 1 and self._chance.random() < 0.1
            parcel = self._queue.pop(1 if skip else 0)
            parcel.holder = holder
            taken.append(parcel)
        self._out += taken
        return taken

    def acknowledge(self, parcels: list[Parcel]) -> None:
        """The receiver has them; each is settled once."""
        for parcel in parcels:
            if parcel.settled:
                self._history.doubly_settled.append(parcel.delivery.id)
            parcel.settled = True
            self._out.remove(parcel)
            if parcel.undone:
                continue
            delivery = parcel.delivery
            self._settled.append(delivery)
            self._history.acknowledged.append((delivery.source, delivery.id, delivery.hash))
            if self.lossy and self._chance.random() < 0.03:
                self._queue.append(Parcel(delivery))

    @property
    def settled(self) -> int:
        """How many were acknowledged so far."""
        return len(self._settled)

    def deliver_again(self, since: int) -> None:
        """What was acknowledged since then comes again, and what is about to be."""
        again = [parcel.delivery for parcel in self._out if not parcel.undone] + self._settled[since:]
        for parcel in self._out:
            parcel.undone = True
        self._queue += [Parcel(delivery) for delivery in again]
        del self._settled[since:]

    def refuse(self, parcels: list[Parcel]) -> None:
        """The receiver could not take them: again, soon."""
        for parcel in parcels:
            self._return(parcel)

    def lost(self, holder: str) -> None:
        """A receiver is gone with its connection: what it had not acknowledged comes again."""
        mine = [parcel for parcel in self._out if parcel.holder == holder]
        for parcel in reversed(mine):
            self._return(parcel)

    def _return(self, parcel: Parcel) -> None:
        self._out.remove(parcel)
        if not parcel.undone:
            self._queue.insert(0, Parcel(parcel.delivery))

    def close(self) -> None:
        """The history is over."""
        self._history.unsettled += [parcel.delivery.id for parcel in self._queue + self._out]
