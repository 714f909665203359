"""Membership: processes register, renew their leases, and give back what a dead one had claimed.

A take-over has several steps, each of which may be repeated by another process: the dead one is marked, so that it
claims nothing more; how much it held is written down, for that decides what is charged; each message is given back, and
each key that it held for a message inline; its item goes.
"""

from __future__ import annotations

from collections.abc import Callable

from onceward.flow import Flow
from onceward.stores.dynamodb.catalog import touch, version_of
from onceward.stores.dynamodb.claims import held
from onceward.stores.dynamodb.inline import let_go
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Cancelled, Shared, Unit, repeated
from onceward.stores.moves.membership import Charge, Crash, Heartbeat, Member, NewWorker

APART, ALONE = 2, 1
"""Levels at which isolated messages run one by one, and with nothing beside them in the process."""
ORPHANS = 60_000_000
"""Claims of processes that are not registered are looked for so often, in microseconds."""


class Membership:
    """What processes do."""

    def __init__(self, base: Shared) -> None:
        self._base = base
        self._looked_at = 0

    def register(self, worker: NewWorker, cause: Callable[[Member], str], charge: Charge) -> Flow[bool]:
        yield from self.take_over_named(worker.process, cause, charge)
        unit = Unit(self._base)
        place = self._base.layout.worker(worker.worker)
        unit.seen[place] = None
        until = unit.now + int(worker.lease * 1_000_000)
        unit.set(place, {**worker._asdict(), "started_at": unit.now, "alive_until": until})
        try:
            yield from unit.commit()
        except Cancelled:  # it has this number already: because the answer to the first of two calls was lost, or not
            (item,) = yield from Unit(self._base).get(place)
            return item is not None and item["process"] == worker.process
        return True

    def heartbeat(self, heartbeat: Heartbeat) -> Flow[bool]:
        def work() -> Flow[bool]:
            unit = Unit(self._base)
            place = self._base.layout.worker(heartbeat.worker)
            (known,) = yield from unit.get(place)
            if known is None or "dead" in known or known["process"] != heartbeat.process:
                return False
            until, inline = unit.now + int(heartbeat.lease * 1_000_000), bool(known.get("inline")) or heartbeat.inline
            unit.set(place, {**known, "alive_until": until, "inline": inline, "circuits": heartbeat.circuits})
            yield from unit.commit()
            return True

        return (yield from repeated(work))

    def members_named(self, process: str) -> Flow[list[Member]]:
        return [_member(item) for item in (yield from self._workers()) if _is_named(item, process)]

    def take_over_lapsed(self, worker: int, cause: Callable[[Member], str], charge: Charge) -> Flow[int]:
        now = self._base.clock()
        workers = yield from self._workers()
        lapsed = [one for one in workers if one["worker"] != worker and ("dead" in one or one["alive_until"] < now)]
        for one in lapsed:
            yield from self._take_over(one, cause(_member(one)), charge)
        if lapsed or now - self._looked_at > ORPHANS:
            self._looked_at = now
            yield from self._free_orphans()
        return len(lapsed)

    def take_over_named(self, process: str, cause: Callable[[Member], str], charge: Charge) -> Flow[int]:
        dead = [item for item in (yield from self._workers()) if _is_named(item, process)]
        for one in dead:
            yield from self._take_over(one, cause(_member(one)), charge)
        return len(dead)

    def take_over_process(self, process: str, cause: str, charge: Charge) -> Flow[int]:
        return (yield from self.take_over_named(process, lambda _: cause, charge))

    def deregister(self, worker: int) -> Flow[None]:
        yield from self._give_back(worker)
        unit = Unit(self._base)
        unit.remove(self._base.layout.worker(worker))
        yield from unit.commit()

    def tokens(self, worker: int) -> Flow[set[int]]:
        rows = yield from held(Table(self._base), worker)
        return {row.token for row in rows if row.token is not None}

    def _workers(self) -> Flow[list[Item]]:
        return (yield from Unit(self._base).query(self._base.layout.at("W").pk))

    def _give_back(self, worker: int) -> Flow[None]:
        """Uncharged."""
        for row in (yield from held(Table(self._base), worker)):

            def work(seq: int = row.seq) -> Flow[None]:
                table = Table(self._base)
                found = yield from table.row(seq)
                if found is not None and found.worker == worker:
                    found.unclaim()
                    yield from table.save()
                    yield from table.commit()

            yield from repeated(work)

    def _free_orphans(self) -> Flow[None]:
        """A process that died right after a claim, which came after it was declared dead, has left it."""
        claimed = {row.worker for row in (yield from held(Table(self._base), None))}
        registered = {item["worker"] for item in (yield from self._workers())}  # after that: who claims is there
        for worker in claimed - registered:
            yield from self._give_back(worker or 0)

    def _take_over(self, worker: Item, cause: str, charge: Charge) -> Flow[None]:
        """Marked, counted, given back, removed."""
        if not (yield from self._mark(worker)):
            return
        rows = yield from held(Table(self._base), worker["worker"])
        counted = yield from repeated(lambda: self._count(worker, len(rows), [row.isolation for row in rows].count(0)))
        if counted is None:
            return
        for row in rows:
            yield from repeated(lambda seq=row.seq: self._release(seq, worker["worker"], counted, cause, charge))  # type: ignore[misc] # a call
        if worker.get("inline"):
            yield from let_go(self._base, f"{worker['worker']}.")
        yield from repeated(lambda: self._remove(worker))

    def _mark(self, worker: Item) -> Flow[bool]:
        """It is declared dead, unless its lease was renewed meanwhile."""
        if "dead" in worker:
            return True
        unit = Unit(self._base)
        place = self._base.layout.worker(worker["worker"])
        unit.seen[place] = worker
        unit.set(place, {**worker, "dead": True})
        try:
            yield from unit.commit()
        except Cancelled:
            return False
        return True

    def _count(self, worker: Item, held: int, fresh: int) -> Flow[Item | None]:
        """How much it held: as the first one to take it over has found it."""
        unit = Unit(self._base)
        place = self._base.layout.worker(worker["worker"])
        (known,) = yield from unit.get(place)
        if known is None or "held" in known:
            return known
        unit.set(place, {**known, "held": held, "fresh": fresh})
        yield from unit.commit()
        return unit.item(place)

    def _release(self, seq: int, worker: int, counted: Item, cause: str, charge: Charge) -> Flow[None]:
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None or row.worker != worker:
            return
        alone = counted["held"] == 1
        first = max(1, counted["fresh"] // 2) + 1
        before, crashes = row.crashes, row.crashes + alone
        level = ALONE if alone or row.isolation in (ALONE, APART) else APART if row.isolation else first
        spent = crashes >= charge.limit
        row.unclaim(isolation=level, crashes=crashes)
        if spent:
            row.change(state="dead", due_at=None)
        table.add_attempt(row, charge.attempt(Crash(seq, row.attempts, before, worker, cause, counted["held"], level)))
        if spent and row.key_hash is not None:
            (subscription,) = yield from table.get(table.layout.at("C", sk=f"sub#{row.subscription or 0:06d}"))
            if subscription is not None and subscription["on_dead"] == "continue":
                yield from table.leave_key(seq)
        yield from table.save()
        yield from table.commit()

    def _remove(self, worker: Item) -> Flow[None]:
        unit = Unit(self._base)
        yield from version_of(unit)
        unit.remove(self._base.layout.worker(worker["worker"]))
        if worker.get("inline"):  # perhaps a message without a claim was the cause: store first for a while
            touch(unit, crashed_at=unit.now)
        yield from unit.commit()


def _member(item: Item) -> Member:
    return Member(item["worker"], bool(item.get("inline")), item["pid"], item["host"])


def _is_named(item: Item, process: str) -> bool:
    name = str(item["process"])
    return name == process or name.startswith(f"{process}#")
