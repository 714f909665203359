"""E16: one clock for all, which stops at the empty table; a run that is too short or not exact has no figure."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench import contest, lineup, race
from bench.contest import Contender, compete
from bench.figures import Figures
from bench.observers import at_sqlite
from bench.race import Finish, Unusable
from bench.scale import TINY

pytestmark = pytest.mark.needs("Linux")  # whose kernel says what processes have used
LEFT = "SELECT id FROM queue LIMIT 1"


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A file with a job in its queue."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE queue (id integer)")
        connection.execute("INSERT INTO queue VALUES (0)")
        connection.commit()
    return path


def _process(path: Path, *work: str) -> list[str]:
    """A process of a race that does this."""
    lines = (
        "import sqlite3, sys, time",
        "from bench.race import ready, tell, wait_for_end",
        f"queue = sqlite3.connect({str(path)!r}, isolation_level=None)",
        "ready()",
        *work,
    )
    return [sys.executable, "-c", "\n".join(lines)]


_TAKE = "queue.execute('DELETE FROM queue')"
_WORK = "deadline = time.process_time() + 0.5\nwhile time.process_time() < deadline: pass"


def test_the_clock_stops_at_the_empty_table(queue: Path) -> None:
    """What a process does after that, once it is told that nothing is left, counts for neither figure."""
    afterwards = _process(queue, _TAKE, "wait_for_end()", "told = time.perf_counter()", _WORK, "tell(told)")
    with at_sqlite(queue, LEFT) as observer:
        finish = race.race([afterwards], observer)
    assert finish.ended <= finish.answers[0]
    assert finish.clients < 0.4


def test_what_a_contender_prints_does_not_stop_it(queue: Path) -> None:
    """It may say more than a pipe can hold, as where one message in fifty fails."""
    talkative = _process(queue, "print('x' * 1_000_000, file=sys.stderr)", _TAKE, "wait_for_end()", "tell(1)")
    with at_sqlite(queue, LEFT) as observer:
        assert race.race([talkative], observer, patience=30).answers == [1]


def test_what_a_contender_used_is_counted(queue: Path) -> None:
    """Also what its children used, as pgbench is one."""
    child = f"subprocess.run([sys.executable, '-c', {f'import time{chr(10)}{_WORK}'!r}])"
    with at_sqlite(queue, LEFT) as observer:
        finish = race.race([_process(queue, "import subprocess", child, _TAKE, "tell(1)")], observer)
    assert finish.clients >= 0.4
    assert finish.seconds >= 0.4


def test_nothing_is_lost_of_a_child_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a backend of the server does when its worker has finished."""
    living = [0, 0, 0, 0], [7, 3, 0, 0]  # of the parent and of its child
    looks: list[int] = []

    def ticks(process: int) -> list[int]:
        looks.append(process)
        if len(looks) < 3:  # it has ended just before anybody looks at it
            return living[0]
        return [0, 0, 7, 3] if process == 1 else [0, 0, 0, 0]

    monkeypatch.setattr(race, "_ticks", ticks)
    monkeypatch.setattr(race, "_read", lambda *_: ["2"] if len(looks) < 4 else [])
    assert race.processor(1) == sum(living[1]) / race._TICKS


def test_a_contender_that_fails_or_leaves_something_has_no_figure(queue: Path) -> None:
    """It says why."""
    with at_sqlite(queue, LEFT) as observer:
        with pytest.raises(Unusable, match="no luck"):
            race.race([_process(queue, "raise SystemExit('no luck')")], observer)
        with pytest.raises(Unusable, match="something was left when it ended"):
            race.race([_process(queue, "tell('done')")], observer)
        with pytest.raises(Unusable, match="something was left when it had to end"):
            race.race([_process(queue, "wait_for_end()")], observer, patience=0.2)


def _peer(path: Path, found: tuple[int, int]) -> list[str]:
    jobs, total = found
    return _process(path, _TAKE, f"tell({{'jobs': {jobs}, 'total': {total}, 'first': time.perf_counter()}})")


@pytest.mark.parametrize(
    ("found", "why"), [((1, 0), ""), ((2, 0), "Inexact"), ((1, 5), "Inexact"), ((0, 0), "Inexact")]
)
def test_a_peer_has_run_each_job_exactly_once(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[int, int], why: str
) -> None:
    """One too many, another one and none at all are errors, and no figures."""
    peer = replace(lineup.SQLITE[0], left=LEFT)
    filled = [sys.executable, "-c", f"import shutil, sys; shutil.copy({str(queue)!r}, sys.argv[1])"]
    monkeypatch.setattr(
        lineup,
        "theirs",
        lambda _name, move, place, *_: [*filled, str(place)] if move == "fill" else _peer(place, found),
    )
    monkeypatch.setattr(race, "PEERS", Path(sys.executable))
    figures = Figures()
    lineup.measure_file(peer, tmp_path, replace(TINY, least=1), figures)
    assert figures.errors.get("sqlite: huey", "").partition(":")[0] == why
    assert len(figures.runs.get("sqlite: huey", [])) == (0 if why else 1)


def test_a_run_that_was_too_short_does_not_count() -> None:
    """It is run again with more messages, and the next repetition begins with as many."""
    asked: list[int] = []

    def run(count: int) -> tuple[int, Finish]:
        asked.append(count)
        return count, Finish(0.0, count / 1000, [], 1.0, 2.0)

    figures, scale = Figures(), replace(TINY, seconds=5.0)
    slow = Contender("drain: somebody", 100, "psycopg", "bench")
    compete(slow, scale, figures, run)
    assert asked == [600, 6_000]
    compete(slow, scale, figures, run)
    assert asked[2:] == [6_000]
    assert [run.seconds for run in figures.runs["drain: somebody"]] == [6.0, 6.0]
    assert figures.costs()["drain: somebody"] == {"clients": round(1e6 / 6_000, 1), "server": round(2e6 / 6_000, 1)}
    with pytest.raises(Unusable, match="none took 5"):
        compete(slow, scale, Figures(), lambda count: (count, Finish(0.0, 1.0, [], 1.0, 1.0)))
    assert contest.SPARE > 1
