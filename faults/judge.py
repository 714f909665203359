"""The verdict. It reads the effect tables and the counts of attempts; a tool's own lists only explain what is missing.

- *lost*: a payment that was never booked, and that the tool does not show as unfinished: it believes to be done with it,
  has given it up, or has forgotten it.
- *stuck*: a payment that was never booked, and that the tool still shows as queued or running.
- *doubled*: a payment with more than one row.
- *wrong balances*: accounts whose balance is not the sum of their payments.
- *disordered*: payments that were booked behind a later one of their account.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faults.plan import Payment, Plan

Row = tuple[str, str, int]
"""Id, account and position of a payment that was booked, in the order of the bookings."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What the tables say."""

    rows: list[Row]
    balances: dict[str, int]

    @property
    def booked(self) -> set[str]:
        """The payments with at least one row."""
        return {row[0] for row in self.rows}


@dataclass(frozen=True, slots=True)
class Lists:
    """What a tool shows of itself."""

    failed: Collection[str] = ()
    """Ids that it shows as failed, dead, or in a dead-letter queue."""
    held: Collection[str] = ()
    """Ids that it shows as not finished."""


@dataclass
class Verdict:
    """The findings, by id and account."""

    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    poisons: int = 0
    poisons_visible: int = 0
    killer_attempts: int = 0
    killer_shown: str = ""
    """Where the tool has the killer in the end: failed, held, or nowhere."""
    killer_ended: bool = False
    """Whether nothing tries it any more."""
    contained: bool = False
    """Whether nothing was left waiting although the killer was there."""

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled, stuck, or out of order, and every balance is right."""
        return not (self.lost or self.stuck or self.doubled or self.wrong or self.disordered)


def read(url: str) -> Effects:
    """The effect tables as they are."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT id, account, position FROM payment ORDER BY number")
        rows = [(row[0], row[1], int(row[2])) for row in cursor.fetchall()]
        cursor.execute("SELECT account, amount FROM balance")
        return Effects(rows, {account: int(amount) for account, amount in cursor.fetchall()})


def run(url: str, statements: list[str]) -> None:
    """Run statements in one transaction: what makes the tables."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def attempts(folder: Path) -> dict[str, int]:
    """How often a handler began with each message."""
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def judge(plan: Plan, effects: Effects, tried: Mapping[str, int], lists: Lists, *, at_rest: bool) -> Verdict:
    """Hold the effects to the plan; `at_rest` says that nothing is tried any more."""
    counts = Counter(row[0] for row in effects.rows)
    missing = [payment.id for payment in plan.payments if payment.books and not counts[payment.id]]
    killer, poisons = plan.killer, [payment.id for payment in plan.payments if payment.kind == "poison"]
    verdict = Verdict(
        lost=[name for name in missing if name not in lists.held],
        stuck=[name for name in missing if name in lists.held],
        doubled=[name for name, count in counts.items() if count > 1],
        wrong=wrong_balances(plan.payments, effects.balances),
        disordered=disordered(effects.rows),
        poisons=len(poisons),
        poisons_visible=sum(name in lists.failed for name in poisons),
        killer_attempts=tried.get(killer.id, 0),
        killer_shown="failed" if killer.id in lists.failed else "held" if killer.id in lists.held else "nowhere",
    )
    verdict.contained, verdict.killer_ended = not verdict.stuck, at_rest
    return verdict


def wrong_balances(payments: list[Payment], balances: Mapping[str, int]) -> list[str]:
    """The accounts with another balance than the sum of what had to be booked."""
    right: Counter[str] = Counter()
    for payment in payments:
        right[payment.account] += payment.amount if payment.books else 0
    return sorted(account for account, amount in right.items() if balances.get(account) != amount)


def disordered(rows: list[Row]) -> list[str]:
    """The payments that were first booked behind a later one of their account."""
    latest: dict[str, int] = {}
    seen: set[str] = set()
    found = []
    for name, account, position in rows:
        if name in seen:
            continue
        seen.add(name)
        if position < latest.get(account, 0):
            found.append(name)
        latest[account] = max(position, latest.get(account, 0))
    return found


def connect(url: str) -> Any:
    """Open a connection with the driver that the URL names."""
    return _DRIVERS[urlsplit(url).scheme](url)


def _sqlite(url: str) -> Any:
    return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)


def _postgresql(url: str) -> Any:
    import psycopg  # noqa: PLC0415 - each database has a driver of its own

    return psycopg.connect(url, connect_timeout=5)


def _mysql(url: str) -> Any:
    import pymysql  # noqa: PLC0415 - the same

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:], connect_timeout=5
    )


_DRIVERS: dict[str, Callable[[str], Any]] = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
