"""The demo: small, but with everything in it; and a verdict that sees what it must see."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from onceward import Inbox
from onceward.cli import demonstration
from onceward.cli.app import application
from onceward.demo import careless, screen, shop
from onceward.demo.neighbour import Neighbour, Tally
from onceward.demo.show import FILE, Beside, Plan, Result, Scene, Stage, Verdict
from tests.cli.conftest import ROOT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

SMALL = ("--messages", "120", "--processes", "2", "--kills", "1", "--seed", "7")
LINE = re.compile(r"demo: accepted (\d+), duplicates (\d+), effects (\d+), dead (\d+), lost 0, doubled 0")
CARELESS = Tally(deliveries=0, effects=12, doubled=4, lost=0, too_much=99)
GOOD = Verdict(accepted=10, duplicates=3, effects=8, dead=2, lost=0, doubled=0, unfinished=0, wrong_balances=0)


def test_a_demo_in_a_pipe_ends_with_the_line_that_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceward", "demo", *SMALL, "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)
    lines = done.stdout.splitlines()
    found = LINE.fullmatch(lines[-1])
    assert found, lines
    accepted, duplicates, effects, dead = map(int, found.groups())
    assert (accepted, effects, dead) == (120, 118, 2)
    assert duplicates > 0
    assert lines[0].startswith("120 payments")
    assert any(re.search(r"s  accepted \d+/120", line) for line in lines)
    killed = [line for line in lines if re.search(r"onceward: kill -9 worker \d+, \d+ messages? in hand", line)]
    moved = r"onceward: \d+ messages? of worker \d+ rolled back, and moved to the others"
    assert killed
    # A worker that has just finished has nothing in hand, and then nothing moves.
    assert any(re.search(moved, line) for line in lines) or all(", 0 messages in hand" in line for line in killed)
    with closing(sqlite3.connect(tmp_path / "kept" / FILE)) as connection:
        crashes = connection.execute("SELECT count(*) FROM onceward_attempt WHERE charged AND kind = 'crash'")
        # The killer's three; the one that kill -9 struck may have been alone in its process and is charged once then.
        assert crashes.fetchone()[0] in (3, 4)
    again = CliRunner().invoke(application, ["demo", "--keep", str(tmp_path / "kept")])
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    "wrong",
    [{"lost": 1}, {"doubled": 1}, {"unfinished": 1}, {"wrong_balances": 1}, {"effects": 7}],
)
def test_the_exit_code_is_1_when_it_is_not_true(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int]) -> None:
    verdict = replace(GOOD, **wrong)

    def play(plan: Plan, folder: Path, show: Callable[[Scene], None], beside: Beside) -> Result:
        assert folder.is_dir()
        assert callable(beside)
        show(Scene(verdict, CARELESS, seconds=float(plan.seed)))
        return Result(verdict, CARELESS)

    monkeypatch.setattr(demonstration, "play", play)
    monkeypatch.setattr(screen, "play", play)
    result = CliRunner().invoke(application, ["demo"])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, verdict.line)
    as_json = CliRunner().invoke(application, ["demo", "--json"])
    assert (as_json.exit_code, json.loads(as_json.stdout)["holds"]) == (1, False)


def test_the_verdict_sees_lost_and_doubled_effects(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with Inbox(f"sqlite:///{path}", service="shop") as inbox:
        inbox.migrate()
        with inbox.transaction() as connection:
            for table in shop.TABLES:
                connection.execute(table)
        inbox.on("payment.received", key="account")(shop.book)
        messages = shop.payments(seed=1, messages=10)[:8]
        inbox.receive_many(messages)
        inbox.drain()
        stage = Stage(Plan(messages=8), path, {}, 0)
        assert stage.count(sent=8) == replace(GOOD, accepted=8, duplicates=0, dead=0)
        assert stage.count(sent=9).lost == 1
        with inbox.transaction() as connection:
            connection.execute("DELETE FROM payment WHERE message = ?", [messages[0]["id"]])
            connection.execute("INSERT INTO payment SELECT * FROM payment WHERE message = ?", [messages[1]["id"]])
    seen = stage.count(sent=8)
    assert (seen.lost, seen.doubled, seen.holds) == (1, 1, False)
    assert seen.wrong_balances >= 1


def test_every_sender_knows_the_same_plan() -> None:
    shares = [[message["id"] for _, message in shop.deliveries(3, 200, sender)] for sender in range(2)]
    assert {*shares[0], *shares[1]} == {message["id"] for message in shop.payments(3, 200)}
    assert 30 < len(shares[0]) + len(shares[1]) - 200 < 90
    assert len(set(shares[0])) == len(shares[0])


def caught_up(neighbour: Neighbour) -> bool:
    """Whether all is done; what dead workers held comes again first, however late their deaths are seen."""
    neighbour.look()
    return not neighbour.backlog


def test_the_careless_consumer_doubles_what_is_killed_between_work_and_memory(tmp_path: Path) -> None:
    """Deterministic: a worker is held at the worst moment before it is killed."""
    path = tmp_path / careless.FILE
    messages = shop.payments(seed=1, messages=402)[:400]
    with (tmp_path / "log").open("wb") as output:
        neighbour = Neighbour(path, 2, output.fileno())
        with neighbour.workers():
            careless.deliver(path, enumerate(messages))
            chance = random.Random(1)
            wait_until(lambda: neighbour.tally().effects >= 1, timeout=60)
            killed = neighbour.kill_one(chance)
            assert killed is not None
            wait_until(lambda: caught_up(neighbour), timeout=60)
            tally = neighbour.tally(sent=402)
    assert (tally.doubled >= 1, tally.lost, tally.too_much > 0) == (True, 0, True)


def test_the_demo_needs_nothing_but_python(tmp_path: Path) -> None:
    """`make demo` on a fresh machine: no package beside the standard library, and the first line at once."""
    hidden = "import sys; sys.modules |= dict.fromkeys(['click', 'rich', 'psycopg', 'aiosqlite', 'h11', 'starlette'])"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-m", "onceward.demo"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, "onceward demo: starting"), done.stdout + done.stderr
    assert LINE.fullmatch(lines[-1])
    found = re.search(r"careless  ([\d,]+) payments booked twice", done.stdout)
    assert found is not None
    assert int(found[1].replace(",", "")) > 0
    assert "onceward  none doubled, none lost" in done.stdout


def test_a_picture_of_the_demo_has_both_sides() -> None:
    scene = Scene(
        GOOD, CARELESS, {41: 3}, {42: 0}, frozenset({43}), frozenset({44}), 1, 0, 2.5, ("  1.0 s  something moved",)
    )
    lines = [screen.plain(line) for line in screen.picture(Plan(messages=10), scene)]
    assert "the same deliveries, 2.5 s" in lines[0]
    assert any(line.split() == ["workers", "42", "✗", "44", "workers", "41(3)", "✗", "43"] for line in lines)
    assert any("4 booked twice" in line and "0 booked twice" in line for line in lines)
    assert "\x1b[1;31m" in "".join(screen.coloured(line) for line in screen.picture(Plan(messages=10), scene))
    assert "4 payments booked twice (99 too much)" in " ".join(
        screen.plain(line) for line in screen.summary(Plan(), Result(GOOD, CARELESS))
    )


def test_the_dashboard_stays_until_it_is_interrupted(tmp_path: Path) -> None:
    words = ["demo", *SMALL, "--dashboard", "--port", "0", "--keep", str(tmp_path / "kept")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "onceward", *words], stdout=log, stderr=log)

    def shown() -> str:
        return (tmp_path / "log").read_text()

    try:
        wait_until(lambda: "The dashboard goes on" in shown() or process.poll() is not None, timeout=110)
        address = re.search(r"http://127\.0\.0\.1:\d+/", shown())
        assert address is not None, shown()
        with urllib.request.urlopen(address[0], timeout=60) as page:  # noqa: S310 - as it was printed
            assert b"onceward" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, shown()
    assert LINE.fullmatch(shown().splitlines()[-1])
