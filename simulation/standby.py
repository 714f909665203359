"""A standby that lags: at a failover everything since a moment ago has not happened, and the processes live on.

Invariant: what the history says is what happened in the database that is left; what was acknowledged since then is
delivered again, as whoever fails over must see to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.history import History

if TYPE_CHECKING:
    from simulation.world import World

LISTS = (
    "publications",
    "calls",
    "actions",
    "answers",
    "sent",
    "holders",
    "acknowledged",
    "departed",
    "removals",
    "placed",
)


class Standby:
    """The database and the history as they were at one moment."""

    def __init__(self, world: World, until: float) -> None:
        self._world, self.until = world, until
        self._tables: Any = world.database.snapshot()
        history = world.history
        self._lengths = {name: len(getattr(history, name)) for name in LISTS}
        self._open = [one for one in history.receptions if one.ended < 0]
        self._receptions, self._runs = len(history.receptions), len(history.runs)
        self._archived, self._subscribed = set(history.archived), dict(history.subscribed)
        self._settled = world.broker.settled

    def promote(self) -> None:
        """It is the database from now on; every connection to the other one is gone."""
        world = self._world
        world.scheduler.note("failover to a standby that lags")
        world.scheduler.cut_all()
        before = _outgoing(world)
        world.database.restore(self._tables)
        left = _outgoing(world)
        world.history.lost |= before - left
        undone = world.history.publications[self._lengths["publications"] :]
        world.history.taken_back += [one for one in undone if one.id in left]
        self._undo(world.history)
        world.broker.deliver_again(self._settled)
        world.observer.sometimes("failover")

    def _undo(self, history: History) -> None:
        if history.subscribed != self._subscribed:
            self._world.observer.sometimes("failover takes a subscription back")
        for name, length in self._lengths.items():
            del getattr(history, name)[length:]
        late = history.receptions[self._receptions :]
        history.receptions[self._receptions :] = [one for one in late if one.ended < 0]
        for one in history.receptions:
            if one in self._open or one.ended < 0:  # whatever it is answered, what it was stored in may be lost
                one.ended, one.status, one.undone = -1, "", True
        history.runs[self._runs :] = [run for run in history.runs[self._runs :] if run.ended < 0]
        history.archived, history.subscribed = self._archived, self._subscribed


def _outgoing(world: World) -> set[str]:
    return {row["id"] for row in world.database.tables()["body"] if row["destination"] is not None}
