"""`python -m bench.mysql`: the same on MariaDB: drain, handle, receive and direct batches, and claims behind a blocked key.

Beside the same writes in pure SQL (`limits/mysql.sql`) and the loop of the textbooks. Effects are checked as on
PostgreSQL: a run that is not exact fails. Writes `bench/report-mysql.json`, of which `bench/page.py` makes a section.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.inboxes import CLAIM, GROUP, inbox_at
from bench.messages import messages
from bench.origin import commit, file_system
from bench.race import ROOT, Finish, ours, processor, race
from bench.scale import SCALES, Scale
from onceward.flow import run_sync
from onceward.stores.moves.claims import Claim
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import PlainConnection
from proof import report as proof

if TYPE_CHECKING:
    from tests.servers.mariadb import MariadbServer

REPORT = Path(__file__).with_name("report-mysql.json")
SETTINGS = {
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "1G",
    "innodb-log-file-size": "1G",
    "max-connections": "200",
}
"""Durable; large enough that no checkpoint falls on one contender and not on the other."""
LEFT = "SELECT seq FROM onceward_queue ORDER BY seq DESC LIMIT 1"
BATCH, CHUNK = 500, 1000
DRAIN, LIMIT = "mysql: drain, onceward", "mysql: drain, pure SQL"
HANDLE, TEXTBOOK = "mysql: handle, onceward", "mysql: textbook, {} connections"
RECEIVE, RECEIVE_LIMIT = "mysql: receive_many, onceward", "mysql: receive_many, pure SQL"
DIRECT = "mysql: direct, onceward"
EMPTY_CLAIM, BLOCKED_CLAIM = "mysql: claim, beside nothing (ms)", "mysql: claim, blocked (ms)"
ROUNDS = 30
TARGETS = {
    "mysql_drain_vs_limit": ("at least", 0.4),
    "mysql_handle_vs_textbook": ("at least", 3.0),
    "mysql_receive_many_vs_limit": ("at least", 0.5),
    "mysql_direct_vs_textbook": ("at least", 2.5),
    "mysql_blocked_500k": ("at most", 2.0),
}


def connected(url: str) -> PlainConnection:
    """A connection that sees what others commit."""
    connection = PlainConnection(**Address.of(url).arguments(), autocommit=True)
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


class Observer:
    """Looks at a database of the server, whose processor time it also knows."""

    def __init__(self, connection: PlainConnection, server: int, left: str) -> None:
        self._connection, self._server, self._left = connection, server, left
        self.has_backlog = bool(left)

    def finds_nothing_left(self) -> bool:
        """Whether the backlog is empty."""
        return self._connection.execute(self._left).fetchone() is None

    def server(self) -> float:
        """The processor's seconds of the server, with those of the looks, which are few."""
        return processor(self._server)


class Ground:
    """A private server on which databases are made, used once and dropped."""

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self._numbers = itertools.count()

    @contextmanager
    def database(self, kind: str = "", count: int = 0, **blocked: str) -> Iterator[str]:
        """A fresh one with onceward's tables, the domain table, and perhaps a backlog of a kind."""
        name = f"bench_{next(self._numbers)}"
        url = self.server.create_database(name)
        prepare(url)
        fill(url, kind, count, **blocked)
        try:
            yield url
        finally:
            self.server.drop_database(name)

    def race(self, url: str, commands: list[list[str]], left: str = "") -> Finish:
        """A race on one of its databases."""
        with closing(connected(url)) as connection:
            return race(commands, Observer(connection, self.server.pid, left))


def prepare(url: str) -> None:
    """Onceward's tables, its subscriptions, and what the limits and the textbook need."""
    inbox = inbox_at(url)
    try:
        inbox.migrate()
        inbox.receive(source="bench", id="first", type="nothing", data={"number": 0})
        inbox.drain()
    finally:
        inbox.close()
    with closing(connected(url)) as connection:
        for table in ("ledger", "body", "run", "worker"):
            connection.execute(f"DELETE FROM onceward_{table}")
        for statement in (ROOT / "bench/limits/mysql.sql").read_text(encoding="utf-8").split("////"):
            connection.execute(statement.strip().rstrip(";"))


def names(url: str) -> dict[str, int]:
    """The numbers under which procedures write."""
    with closing(connected(url)) as connection:
        found = dict(connection.execute("SELECT name, id FROM onceward_name").fetchall())
        kinds = dict(connection.execute("SELECT type, id FROM onceward_subscription").fetchall())
    return {"source": found["bench"], "consumer": found["default"], **kinds}


def fill(url: str, kind: str, count: int, *, key: str | None = None, state: str = "ready") -> None:
    """A backlog; with a key, a dead head and all others of its key behind it."""
    known = names(url) if count else {}
    with closing(connected(url)) as connection:
        for beginning in range(0, count, CHUNK):
            values = (beginning, known["source"], known["consumer"], known[kind], kind, key, key and 1)
            states = ("dead", state) if key else (state, state)
            connection.execute("CALL fill(%s, %s, %s, %s, %s, %s, %s, %s, %s)", (*values, *states))
        if count:
            connection.execute("ANALYZE TABLE onceward_queue, onceward_ledger, onceward_body")


def one(url: str, query: str) -> Any:
    """A single value."""
    with closing(connected(url)) as connection:
        return connection.execute(query).fetchone()[0]


def check_drained(what: str, url: str, count: int) -> None:
    """Each message is in exactly one run, and the queue is empty."""
    with closing(connected(url)) as connection:
        runs = connection.execute("SELECT seqs FROM onceward_run").fetchall()
    seqs = [seq for (text,) in runs for seq in json.loads(text)]
    expect(f"{what}: numbers in runs", (len(seqs), len({*seqs})), (count, count))
    expect(f"{what}: left in the queue", one(url, "SELECT count(*) FROM onceward_queue"), 0)


def check_effects(what: str, url: str, count: int) -> None:
    """The domain table has exactly so many effects."""
    expect(f"{what}: effects", int(one(url, "SELECT sum(n) FROM target")), count)


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    drain(ground, scale, figures, (DRAIN, "nothing", 12_000), ["contenders", "drain"])
    drain(ground, scale, figures, (LIMIT, "nothing", 25_000), ["mysql_contenders", "drain", GROUP, CLAIM])
    drain(ground, scale, figures, (HANDLE, "update", 6_000), ["contenders", "drain"])
    for connections in (1, scale.connections):
        _received(ground, scale, figures, (TEXTBOOK.format(connections), 1_000, 1), ("textbook", connections))
    _received(ground, scale, figures, (DIRECT, 4_000, scale.processes), ("direct",))
    _received(ground, scale, figures, (RECEIVE, 10_000, scale.processes), ("receive_many",))
    _receive_limit(ground, scale, figures)


def drain(ground: Ground, scale: Scale, figures: Figures, contender: tuple[str, str, int], command: list[Any]) -> None:
    """Processes that empty the same backlog."""
    name, kind, guess = contender

    def run(count: int) -> tuple[int, Finish]:
        count = -(-count // CHUNK) * CHUNK
        with ground.database(kind, count) as url:
            module, what, *sizes = command
            each = [
                ours(module, what, url, *([number + 1, *sizes] if sizes else [])) for number in range(scale.processes)
            ]
            finish = ground.race(url, each, LEFT)
            check_drained(name, url, count)
            if kind == "update":
                check_effects(name, url, count)
        return count, finish

    used = {"processes": scale.processes, "group": GROUP}
    compete(Contender(name, guess, "PyMySQL", f"bench/{command[0]}.py", used), scale, figures, run)


def _received(
    ground: Ground, scale: Scale, figures: Figures, contender: tuple[str, int, int], command: tuple[Any, ...]
) -> None:
    """Processes that take deliveries, copies among them."""
    name, guess, processes = contender
    module = "mysql_contenders" if command[0] == "textbook" else "contenders"

    def run(count: int) -> tuple[int, Finish]:
        each = -(-count // processes)
        with ground.database() as url:
            finish = ground.race(url, [ours(module, command[0], url, each, *command[1:])] * processes)
            copies = (len(messages(each, "")) - each) * processes
            for status, wanted in (("accepted", each * processes), ("duplicate", copies)):
                expect(f"{name}: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
            if command[0] == "receive_many":
                rows = "SELECT count(*) FROM onceward_{} WHERE seq IN (SELECT seq FROM onceward_body WHERE id NOT LIKE 'warm-%%')"
                for table in ("ledger", "queue"):
                    expect(f"{name}: {table}", one(url, rows.format(table).replace("%%", "%")), each * processes)
            else:
                check_effects(name, url, each * processes)
        return each * processes + copies, finish

    used = {"processes": processes, "connections": command[1] if len(command) > 1 else 1}
    compete(Contender(name, guess, "PyMySQL", f"bench/{module}.py", used), scale, figures, run)


def _receive_limit(ground: Ground, scale: Scale, figures: Figures) -> None:
    def run(count: int) -> tuple[int, Finish]:
        calls = -(-count // (BATCH * scale.processes))
        with ground.database() as url:
            each = [ours("mysql_contenders", "receive_many", url, number, calls) for number in range(scale.processes)]
            finish = ground.race(url, each)
            stored = one(url, "SELECT count(*) FROM onceward_ledger")
            copies = int(one(url, "SELECT coalesce(sum(copies), 0) FROM onceward_duplicate"))
            expect(f"{RECEIVE_LIMIT}: accounted for", stored + copies, sum(finish.answers))
            for table in ("body", "queue"):
                expect(f"{RECEIVE_LIMIT}: {table}", one(url, f"SELECT count(*) FROM onceward_{table}"), stored)
        return calls * BATCH * scale.processes, finish

    used = {"processes": scale.processes, "batch": BATCH}
    compete(Contender(RECEIVE_LIMIT, 20_000, "PyMySQL", "bench/limits/mysql.sql", used), scale, figures, run)


def blocked(ground: Ground, count: int, figures: Figures) -> None:
    """What a claim takes that finds a message behind so many of a blocked key, beside the same on empty tables."""
    with ground.database() as empty, ground.database("keyed", count, key="k", state="waiting") as full:
        for url, name in ((empty, EMPTY_CLAIM), (full, BLOCKED_CLAIM)):
            for milliseconds in claims(url):
                figures.add(name, milliseconds)


def claims(url: str) -> Iterator[float]:
    """The milliseconds of each of some claims, which each find one message."""
    inbox = inbox_at(url)
    moves, worker = inbox.context.moves, 7
    try:
        wanted = [names(url)["keyed"]]
        with closing(connected(url)) as connection, inbox.store.session() as session:
            connection.execute(
                "INSERT INTO onceward_worker (id, process, host, pid, code_version, handles, inline, started_at, "
                f"alive_until) VALUES ({worker}, 'bench', '', 0, '', '', 0, 0, {1 << 60})"
            )
            for token in range(1, ROUNDS + 1):
                message: Any = {"source": "bench", "id": f"new-{token}", "data": {"number": 0, "key": f"new-{token}"}}
                inbox.receive(type="keyed", **message)
                began = time.perf_counter()
                found = run_sync(moves.claims.claim(Claim(worker, token, wanted, limit=1)), session.perform)
                yield 1000 * (time.perf_counter() - began)
                expect("mysql: claimed", [row.id for row, _ in found.kept], [message["id"]])
                connection.execute(f"DELETE FROM onceward_queue WHERE worker = {worker} AND token = {token}")
    finally:
        inbox.close()


def ratios(figures: Figures) -> dict[str, float | None]:
    """The flat table."""
    textbook = tuple(name for name in figures.repetitions if name.startswith("mysql: textbook"))
    return {
        "mysql_drain_vs_limit": figures.ratio(DRAIN, LIMIT),
        "mysql_handle_vs_textbook": figures.ratio(HANDLE, textbook),
        "mysql_receive_many_vs_limit": figures.ratio(RECEIVE, RECEIVE_LIMIT),
        "mysql_direct_vs_textbook": figures.ratio(DIRECT, textbook),
        "mysql_blocked_500k": figures.ratio(BLOCKED_CLAIM, EMPTY_CLAIM),
    }


def shown(found: dict[str, Any]) -> list[str]:
    """The lines of the table, as the page has them."""
    lines = ["| ratio | found | to reach | |", "|---|---:|---|---|"]
    for name, (words, target) in TARGETS.items():
        value = found["ratios"][name]
        reached = value is not None and (value >= target if words == "at least" else value <= target)
        verdict = "not measured" if value is None else "reached" if reached else "short"
        lines.append(f"| `{name}` | {'-' if value is None else f'{value:g}'} | {words} {target:g} | {verdict} |")
    return lines


def run(scale: Scale, behind: int) -> dict[str, Any]:
    """All of it, as it is written down."""
    from tests.servers.mariadb import MariadbServer  # noqa: PLC0415 - the processes of a race need no server

    figures, began = Figures(), time.monotonic()
    with MariadbServer(durable=True, settings=SETTINGS) as server:
        ground = Ground(server)
        for _ in range(scale.repetitions):
            measure(ground, scale, figures)
        blocked(ground, behind, figures)
        where = {"server": f"{server.name} {server.version}", "file_system": file_system(server.folder)}
    return {
        "run": "mysql",
        **proof.today("bench/report-mysql.json"),
        **commit(ROOT),
        **where,
        "scale": scale.name,
        "behind": behind,
        "seconds": round(time.monotonic() - began),
        "machine": {"cores": os.cpu_count(), "load": [round(load, 1) for load in os.getloadavg()]},
        "settings": SETTINGS,
        "runs": figures.lengths(),
        "processor_microseconds": figures.costs(),
        "repetitions": figures.rounded(),
        "medians": figures.medians(),
        "ratios": ratios(figures),
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.mysql")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--behind", type=int, default=500_000, help="how many messages of a key are blocked")
    parser.add_argument("--seconds", type=float, help="how long a run must last at least")
    parser.add_argument("--quiet", action="store_true", help="write nothing; only print")
    options = parser.parse_args()
    scale = SCALES[options.scale]
    if options.seconds is not None:
        scale = replace(scale, seconds=options.seconds)
    found = run(scale, options.behind)
    if not options.quiet:
        REPORT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, value in found["medians"].items():
        print(f"{name:<40} {value:>12,.2f}")
    print("\n".join(shown(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
