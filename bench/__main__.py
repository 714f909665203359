"""`make bench`: measure, verify the effects, print a table, write `bench/report.json`."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import blocked
from bench.contenders import Onceward, messages, textbook_postgres, textbook_sqlite, timed
from tests.servers.postgres import PostgresServer

COUNT = int(os.environ.get("COUNT", "5000"))
SLOW = max(COUNT // 10, 100)
WAITING = int(os.environ.get("WAITING", "1000000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))

Figures = dict[str, list[float]]


def measure_store(name: str, url: str, figures: Figures) -> None:
    """One round of onceward on one store; raises when the effects are not exact."""
    contender = Onceward(url)
    try:
        batch = messages(COUNT, "nothing")
        figures.setdefault(f"{name}: receive_many", []).append(timed(lambda: contender.receive(batch), len(batch)))
        figures.setdefault(f"{name}: drain, nothing to do", []).append(timed(contender.inbox.drain, COUNT))
        before = contender.effects()
        contender.receive(messages(COUNT, "update"))
        figures.setdefault(f"{name}: handle, one UPDATE each", []).append(timed(contender.inbox.drain, COUNT))
        few = messages(SLOW, "update")
        figures.setdefault(f"{name}: process inline", []).append(timed(lambda: contender.process(few), len(few)))
        single = messages(SLOW, "nothing")
        rate = timed(lambda: contender.receive_singly(single), len(single))
        figures.setdefault(f"{name}: receive, one by one", []).append(rate)
        applied = contender.effects() - before
        if applied != COUNT + SLOW:
            raise AssertionError(f"{name}: {applied} effects instead of {COUNT + SLOW}")
    finally:
        contender.inbox.close()


def measure_round(number: int, server: PostgresServer, folder: Path, figures: Figures) -> None:
    """Every contender once, one after the other, so that a noisy moment hits all of them alike."""
    url = server.create_database(f"round_{number}")
    measure_store("postgres", url, figures)
    few = messages(SLOW, "update")
    rate = timed(lambda: textbook_postgres(url, few), len(few))
    figures.setdefault("postgres: textbook inbox, one UPDATE each", []).append(rate)
    measure_store("sqlite", f"sqlite:///{folder}/round{number}.db", figures)
    rate = timed(lambda: textbook_sqlite(folder / f"textbook{number}.db", few), len(few))
    figures.setdefault("sqlite: textbook inbox, one UPDATE each", []).append(rate)


def main() -> int:
    """Run the rounds and report medians."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, PostgresServer(durable=True) as server:
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            measure_round(number, server, Path(folder), figures)
        version = server.version
        print(f"{WAITING:,} messages behind one key", file=sys.stderr)
        stores = {"postgres": server.create_database("blocked"), "sqlite": f"sqlite:///{folder}/blocked.db"}
        behind = {name: blocked.measure(url, WAITING) for name, url in stores.items()}
    medians = {name: round(median(rates)) for name, rates in sorted(figures.items())}
    ratios = {
        f"{store}_handle_vs_textbook": round(
            medians[f"{store}: handle, one UPDATE each"] / medians[f"{store}: textbook inbox, one UPDATE each"], 2
        )
        for store in ("postgres", "sqlite")
    }
    ratios |= {f"{store}_blocked_1m": round(after / before, 2) for store, (before, after) in behind.items()}
    width = max(map(len, medians))
    for name, rate in medians.items():
        print(f"{name:<{width}}  {rate:>8,} messages/s")
    for name, ratio in ratios.items():
        print(f"{name:<{width}}  {ratio:>8}")
    report = {
        "settings": {"messages": COUNT, "rounds": ROUNDS, "duplicates": 0.1, "durable": True},
        "versions": {"python": platform.python_version(), "postgres": version, "sqlite": sqlite3.sqlite_version},
        "repetitions": figures,
        "blocked": {"waiting": WAITING, "seconds": behind},
        "medians": medians,
        "ratios": ratios,
    }
    Path(__file__).with_name("report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
