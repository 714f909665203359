"""The dashboard: its first page beside an empty inbox, and what the history costs.

First paint is the time until the whole page has come, plots and all, from a server in a process of its own: nothing that
a browser does afterwards brings anything new. Measured on an empty inbox, and on one with a million finished messages and
90 days of history, in turns. The cost of the history is the rate of receiving and draining with it and without it, in
turns too; beside it the processor time of the client, which holds on noisy machines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import NamedTuple

import psycopg

from bench.figures import Figures, expect
from bench.ground import SETTINGS, Ground
from bench.growth import load
from bench.inboxes import inbox_at
from bench.messages import messages
from onceward import Inbox, Settings
from onceward.dashboard import Dashboard
from onceward.domain.histogram import Histogram
from onceward.runtime.http_server import serving
from onceward.runtime.runner import perform
from onceward.stores.moves.history import DAYS, HOURS, MINUTES, HistoryRow
from proof import report
from tests.servers.postgres import PostgresServer

ROUNDS = 5
PATHS = {"first paint": "/", "a quarter": "/?range=quarter", "sources": "/sources"}
"""The first page, and those that read all of the history."""
TYPES = 5
MOST_TIMES, MOST_COST = 3.0, 0.01
"""What is promised: at most so many times the page of an empty inbox; at most so much of the rate."""
_KEPT = ((MINUTES, 60, 48 * 60), (HOURS, 3600, 14 * 24), (DAYS, 86400, 90))


def paint(ground: Ground, finished: int, figures: Figures) -> None:
    """Pages of an empty inbox, and beside so many finished messages and 90 days."""
    with ground.copy() as empty, ground.copy() as full:
        load(full, "finished", 1, finished, id="md5(g::text)")
        _fill(full)
        for _ in range(ROUNDS):
            for page, path in PATHS.items():
                for name, url in (("empty", empty), (_full(finished), full)):
                    figures.add(f"dashboard: {page}, {name} (ms)", 1000 * _painted(url, path))


def _full(finished: int) -> str:
    return f"{finished:,} messages and 90 days"


def _painted(url: str, path: str) -> float:
    """A page of a dashboard that nothing has been asked of."""
    with Inbox(url, service="bench") as inbox:
        app = Dashboard(inbox, anonymous="viewer")
        with serving(app, "127.0.0.1:0", stop=lambda: None, patience=timedelta(seconds=1)) as port:
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                text = answer.read().decode()
            took = time.perf_counter() - began
    expect("dashboard: plots", text.count("<figure"), 0 if path == "/sources" else 6)
    return took


def _fill(url: str) -> None:
    """All the history that an inbox can have, of some types."""
    with Inbox(url, service="bench") as inbox:
        rows = list(_rows(datetime.now(UTC)))
        for first in range(0, len(rows), 5000):
            perform(inbox.store, partial(inbox.context.moves.history.record, rows[first : first + 5000]))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE onceward_history")


def _rows(now: datetime) -> Iterator[HistoryRow]:
    durations = Histogram(dict.fromkeys(range(4, 16), 10)).text()
    for level, length, count in _KEPT:
        last = int(now.timestamp()) // length * length
        for start in range(last - length * (count - 1), last + 1, length):
            for number in range(TYPES):
                yield {
                    "level": level,
                    "starts_at": start * 1_000_000,
                    "consumer": "bench",
                    "source": "bench",
                    "type": f"type-{number}",
                    **dict.fromkeys(("received", "duplicates", "mismatches", "done", "failed", "dead"), 120),  # type: ignore[typeddict-item] # each is a count
                    "backlog": 5,
                    "oldest": 1_000_000,
                    **dict.fromkeys(("lateness", "wait", "run"), durations),
                }


def cost(ground: Ground, count: int, figures: Figures) -> None:
    """Receive and drain with the history and without it."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    worked: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * ROUNDS):
        kept = turn % 2 == 0
        with ground.copy() as url:
            took = _took(url, count, kept=kept)
        seconds[kept].append(took.seconds)
        worked[kept].append(took.processor)
        name = f"history: {'kept' if kept else 'not kept'}"
        figures.add(f"{name} (messages a second)", count / took.seconds)
        figures.add(f"{name} (processor of the client, microseconds a message)", took.processor / count * 1_000_000)
    figures.notes["history: cost"] = round(1 - median(seconds[False]) / median(seconds[True]), 4)
    figures.notes["history: cost in processor time"] = round(1 - median(worked[False]) / median(worked[True]), 4)


class _Took(NamedTuple):
    seconds: float
    processor: float


def _took(url: str, count: int, *, kept: bool) -> _Took:
    inbox = inbox_at(url, settings=Settings(history=kept))
    deliveries = messages(count, "nothing")
    try:
        began, worked = time.perf_counter(), time.process_time()
        inbox.receive_many(deliveries)  # type: ignore[arg-type] # as receive takes it
        expect("history: finished", inbox.drain(), count)
        return _Took(time.perf_counter() - began, time.process_time() - worked)
    finally:
        inbox.close()


def main() -> int:
    """Measure, and print what was promised beside what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--finished", type=int, default=1_000_000, help="finished messages of the full inbox")
    parser.add_argument("--messages", type=int, default=50_000, help="messages of each run for the cost")
    parser.add_argument("--json", metavar="FILE", help="record the figures, such as in proof/figures/dashboard.json")
    options = parser.parse_args()
    figures = Figures()
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        ground = Ground(server)
        paint(ground, options.finished, figures)
        cost(ground, options.messages, figures)
    times = {
        page: figures.ratio(f"dashboard: {page}, {_full(options.finished)} (ms)", f"dashboard: {page}, empty (ms)")
        for page in PATHS
    }
    load = round(os.getloadavg()[1], 1)
    known = {
        "repetitions": figures.rounded(),
        "times": times,
        "history": figures.notes,
        "cores": os.cpu_count(),
        "load": load,
    }
    print(json.dumps(known, indent=2), file=sys.stderr)
    if options.json:
        report.write(options.json, {"run": "dashboard", "finished": options.finished, **known}, ["postgres"])
    print(
        f"first paint: {times['first paint']} times that of an empty inbox (at most {MOST_TIMES}); "
        f"history: {figures.notes['history: cost']:.1%} of the rate, "
        f"{figures.notes['history: cost in processor time']:.1%} of the client's processor time (at most {MOST_COST:.0%}); "
        f"load of the machine: {load} on {os.cpu_count()} cores"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
