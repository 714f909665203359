"""A handler with a Session of SQLAlchemy and one ORM update, beside the same code by hand: one commit for each message.

Exact: one effect for each message. Both are one process with one connection, on the same tables; by hand there is no
queue, no ledger and no claim: the messages are in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column

from bench import drain
from bench.contest import Contender, compete
from bench.figures import Figures
from bench.ground import LEFT, Ground, check_drained, check_effects
from bench.inboxes import GROUP
from bench.messages import messages
from bench.race import Finish, ours, take_part
from bench.scale import Scale
from onceward import Inbox, Message

ALONE, GROUPED, BY_HAND = "orm: onceward, one at a time", "orm: onceward", "orm: by hand"


class Table(DeclarativeBase):
    """What the workload has."""


class Target(Table):
    """The domain table."""

    __tablename__ = "target"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    for name, group, guess in ((ALONE, 1, 900), (GROUPED, GROUP, 2_500)):
        _onceward(ground, scale, figures, name, group, guess)
    _by_hand(ground, scale, figures)


def _onceward(ground: Ground, scale: Scale, figures: Figures, name: str, group: int, guess: int) -> None:  # noqa: PLR0913, PLR0917 - who, where
    used = {"processes": 1, "group": group, "handler": "a Session"}
    contender = Contender(name, guess, "psycopg", "bench/orm.py", used, "onceward")

    def run(count: int) -> tuple[int, Finish]:
        with ground.copy(drain.filled(ground, "update", count)) as url:
            finish = ground.race(url, [ours("orm", "handled", url, group)], LEFT)
            check_effects(name, url, count)
            check_drained(name, url, count)
        return count, finish

    compete(contender, scale, figures, run)


def _by_hand(ground: Ground, scale: Scale, figures: Figures) -> None:
    contender = Contender(BY_HAND, 1_200, "psycopg", "bench/orm.py", {"processes": 1, "group": 1}, "sqlalchemy")

    def run(count: int) -> tuple[int, Finish]:
        with ground.copy() as url:
            finish = ground.race(url, [ours("orm", "by_hand", url, count)])
            check_effects(BY_HAND, url, count)
        return count, finish

    compete(contender, scale, figures, run)


# In a process of a race:


def update(session: Session, row: int) -> None:
    """What both do."""
    target = session.get(Target, row)
    if target is None:
        raise LookupError(f"no row {row}")
    target.n += 1


def handled(url: str, group: str) -> None:
    """A worker that drains the backlog."""
    inbox = Inbox(url)

    @inbox.on("update", group=int(group))
    def one(message: Message, session: Session) -> None:
        update(session, message.data["row"])

    inbox.store.check_schema()
    configure_mappers()  # by hand, the first look at the table does that before the clock starts
    take_part(inbox.drain)
    inbox.close()


def by_hand(url: str, count: str) -> None:
    """The loop that everybody writes: decode, a Session, commit."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
    bodies = [json.dumps(one["data"]) for one in messages(int(count), "update")]
    with Session(engine) as session:
        session.get(Target, 0)

    def loop() -> int:
        for body in bodies[: int(count)]:
            with Session(engine) as session, session.begin():
                update(session, json.loads(body)["row"])
        return int(count)

    take_part(loop)
    engine.dispose()


KINDS: dict[str, Callable[..., None]] = {"handled": handled, "by_hand": by_hand}

if __name__ == "__main__":
    partial(KINDS[sys.argv[1]], *sys.argv[2:])()
