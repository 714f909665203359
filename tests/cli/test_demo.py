"""The demo: small, but with everything in it; and a verdict that sees what it must see."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from onceward import Inbox
from onceward.cli import demonstration
from onceward.cli.app import application
from onceward.demo import shop
from onceward.demo.show import FILE, Plan, Scene, Stage, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = ("--messages", "120", "--processes", "2", "--kills", "1", "--seed", "7")
LINE = re.compile(r"demo: accepted (\d+), duplicates (\d+), effects (\d+), dead (\d+), lost 0, doubled 0")
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
    assert re.search(r"s  accepted \d+/120", lines[0])
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

    def play(plan: Plan, folder: Path, show: Callable[[Scene], None]) -> Verdict:
        assert folder.is_dir()
        show(Scene(verdict, running=0, kills=0, deaths=0, seconds=float(plan.seed)))
        return verdict

    monkeypatch.setattr(demonstration, "play", play)
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
    shares = [[message["id"] for message in shop.deliveries(3, 200, sender)] for sender in range(2)]
    assert {*shares[0], *shares[1]} == {message["id"] for message in shop.payments(3, 200)}
    assert 30 < len(shares[0]) + len(shares[1]) - 200 < 90
    assert len(set(shares[0])) == len(shares[0])
