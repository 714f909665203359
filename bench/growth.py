"""Growth: what claims and dedupe cost beside millions of finished rows, a blocked key, dead letters, an old snapshot.

Costs are the median times of onceward's own statements, beside those on the empty tables, measured in turns.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import psycopg

from bench.figures import Figures, expect
from bench.ground import Ground, names, one
from bench.inboxes import inbox_at
from bench.messages import messages
from bench.pgbench import LIMITS
from bench.race import ours, run
from bench.scale import Scale
from bench.stopwatch import Laps, watched

ROUNDS = 5
PROBE = 2_000
"""Messages of each round: they are received, copies among them, and drained."""
_IDS = {
    "ordered": "lpad(to_hex(1700000000000000 + g), 16, '0') || substr(md5(g::text), 1, 16)",
    "random": "md5(g::text)",
}
_PART = 1_000_000


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """Everything that could make a claim or a receive slow."""
    for kind in _IDS:
        finished(ground, kind, scale.finished, figures)
    _beside(ground, "blocked", lambda url: _block(url, scale.blocked), figures)
    _beside(ground, "dead", lambda url: _bury(url, scale.dead), figures)
    _pinned(ground, scale, figures)


def finished(ground: Ground, kind: str, sizes: tuple[int, ...], figures: Figures) -> None:
    """So many finished rows, with ids of a kind, smallest size first."""
    places = {}
    for size, before in zip(sizes, (None, *sizes), strict=False):
        like = "empty" if not before else f"finished_{kind}_{before}"
        name = f"finished_{kind}_{size}"

        def fill(url: str, first: int = (before or 0) + 1, last: int = size) -> None:
            load(url, "finished", first, last - first + 1, id=_IDS[kind])

        ground.template(name, fill, like=like)
        places[size] = ground.server.url(name)
    for _ in range(ROUNDS):
        for size, url in places.items():
            _probe(url, f"{kind} ids, {size} finished", figures, ordered=kind == "ordered")
    for size in sizes:
        ground.discard(f"finished_{kind}_{size}")


def _beside(ground: Ground, what: str, fill: Callable[[str], None], figures: Figures) -> None:
    with ground.copy() as empty, ground.copy() as full:
        fill(full)
        for _ in range(ROUNDS):
            _probe(empty, f"beside nothing ({what})", figures, kind="keyed")
            _probe(full, what, figures, kind="keyed")


def load(url: str, script: str, first: int, count: int, **values: object) -> None:
    """Run a script of `limits/` that writes rows, in parts."""
    text = (LIMITS / f"{script}.sql").read_text(encoding="utf-8")
    known: dict[str, object] = {**names(url), **values}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for start in range(first, first + count, _PART):
            part = min(_PART, first + count - start)
            connection.execute(text.format(first=start, count=part, **known).encode())
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _block(url: str, count: int) -> None:
    """A dead head, and all others of its key behind it."""
    subscription = one(url, "SELECT id FROM onceward_subscription WHERE type = 'keyed'")
    state = "CASE WHEN g = 1 THEN 'dead' ELSE 'waiting' END"
    load(
        url, "waiting", 1, count, type="keyed", key="'k'", subscription=subscription, key_hash="1::bigint", state=state
    )


def _bury(url: str, count: int) -> None:
    load(url, "waiting", 1, count, type="nothing", key="NULL", key_hash="NULL::bigint", state="'dead'")


def _probe(url: str, name: str, figures: Figures, *, kind: str = "nothing", ordered: bool = False) -> None:
    """Receive and drain some messages; note what a claim and a receive took, in milliseconds."""
    inbox = inbox_at(url)
    try:
        with watched("claim", "receive") as laps:
            inbox.receive_many(messages(PROBE, kind, ordered=ordered))  # type: ignore[arg-type] # as receive takes it
            expect(f"growth, {name}: finished", inbox.drain(), PROBE)
    finally:
        inbox.close()
    for statement in ("claim", "receive"):
        figures.add(f"growth: {statement}, {name} (ms)", _median(laps, statement))


def _median(laps: Laps, statement: str, since: float = 0.0, until: float = float("inf")) -> float:
    return 1000 * median(seconds for name, at, seconds in laps if name == statement and since <= at < until)


def _pinned(ground: Ground, scale: Scale, figures: Figures) -> None:
    """Messages come and go while one transaction stays open, so that nothing of them can be vacuumed."""
    with ground.copy() as url, psycopg.connect(url) as pin:
        inbox = inbox_at(url)
        worker = threading.Thread(target=inbox.run, daemon=True)
        with watched("claim") as laps:
            worker.start()
            quiet = time.perf_counter()
            _churn(url, scale.churn, scale.pinned_seconds / 4)
            pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            pin.execute("SELECT count(*) FROM onceward_queue")
            pinned = time.perf_counter()
            sent = _churn(url, scale.churn, scale.pinned_seconds)
            ended = time.perf_counter()
            inbox.stop()
            worker.join()
        pin.rollback()
        inbox.close()
        figures.notes["pinned: messages a second"] = round(sent / (ended - pinned))
        figures.add("growth: claim, not pinned (ms)", _median(laps, "claim", quiet, pinned))
        late = ended - scale.pinned_seconds / 4
        figures.add(f"growth: claim, pinned for {scale.pinned_seconds:g} s (ms)", _median(laps, "claim", late, ended))


def _churn(url: str, rate: int, seconds: float) -> int:
    """Receive so many messages a second, for so long, in a process of its own; answers how many it was."""
    return int(run(ours("growth", url, rate, seconds)))


def _receive(url: str, rate: int, seconds: float) -> int:
    inbox = inbox_at(url)
    sent, began = 0, time.perf_counter()
    try:
        while (passed := time.perf_counter() - began) < seconds:
            due = int(passed * rate) - sent
            if due < rate // 20:
                time.sleep(0.01)
                continue
            inbox.receive_many(messages(due, "nothing"))  # type: ignore[arg-type] # as receive takes it
            sent += due
    finally:
        inbox.close()
    return sent


if __name__ == "__main__":
    print(_receive(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
