"""Brokers: from a full topic to the committed effects and the acknowledgements, beside the textbook's consumer.

Exact: the domain table has one effect for each message, however many copies came, the ledger has each once, and the
broker has nothing left that it would deliver again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.ground import Ground, check_effects, one
from bench.inboxes import GROUP
from bench.messages import messages
from bench.observers import PostgresObserver, at_postgres
from bench.race import Finish, ours, race
from bench.scale import Scale

if TYPE_CHECKING:
    from bench.topics import Topic

BROKERS = ("kafka", "rabbitmq", "redis")
ONCEWARD = "{}: onceward"
TEXTBOOKS = {broker: (f"{broker}: textbook, 1 process", f"{broker}: textbook, 8 processes") for broker in BROKERS}
LEFT = "SELECT 1 FROM (SELECT sum(n) AS done FROM target) AS effects WHERE done < {}"
GUESSES = {"kafka": (6_000, 1_500), "rabbitmq": (3_000, 1_000), "redis": (6_000, 1_200)}
"""Messages a second, about, of onceward and of the textbook."""


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender on every broker, each broker with a server of its own meanwhile."""
    from bench.topics import PLACES  # noqa: PLC0415 - the clients of all brokers

    for broker in BROKERS:
        server_of, topic_of = PLACES[broker]
        with closing(server_of().start()) as server:
            for contender in _contenders(broker, f"{server.name} {server.version}", scale):
                _race(ground, scale, figures, contender, partial(topic_of, server))


def _contenders(broker: str, server: str, scale: Scale) -> Iterator[tuple[Contender, list[str]]]:
    """Who takes part, and with which command."""
    quick, slow = GUESSES[broker]
    used = {"broker": server, "processes": scale.processes, "mode": "direct", "batch": GROUP}
    name = ONCEWARD.format(broker)
    yield Contender(name, quick, "psycopg", "bench/contenders.py", used, "onceward"), ours("contenders", "consume")
    for name, count in zip(TEXTBOOKS[broker], (1, scale.connections), strict=True):
        used = {"broker": server, "processes": count, "batch": 1}
        yield Contender(name, slow, "psycopg", "bench/by_the_book.py", used), ours("by_the_book", broker)


class Settled:
    """Sees that every effect is there, and then that the broker has nothing left to deliver, copies included."""

    has_backlog = True

    def __init__(self, effects: PostgresObserver, place: Topic) -> None:
        self._effects, self._place = effects, place
        self.server = effects.server

    def finds_nothing_left(self) -> bool:
        """Whether all is done and acknowledged."""
        return self._effects.finds_nothing_left() and not self._place.unsettled()


def _race(
    ground: Ground,
    scale: Scale,
    figures: Figures,
    entry: tuple[Contender, list[str]],
    topic: Callable[[], Topic],
) -> None:
    contender, command = entry
    name, processes = contender.name, int(str(contender.settings["processes"]))

    def run(count: int) -> tuple[int, Finish]:
        deliveries = messages(count, "update")
        with closing(topic()) as place, ground.copy() as url:
            place.publish(deliveries)
            with at_postgres(url, ground.server.pid, LEFT.format(count)) as effects:
                finish = race([[*command, url, place.url]] * processes, Settled(effects, place))
            expect(f"{name}: failures", [failure for answer in finish.answers for failure in answer], [])
            check_effects(name, url, count)
            table = "onceward_ledger" if "onceward" in name else "textbook"
            expect(f"{name}: ids", one(url, f"SELECT count(*) FROM {table}"), count)
        return len(deliveries), finish

    compete(contender, scale, figures, run)
