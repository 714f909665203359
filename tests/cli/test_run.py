"""`onceward run` in one process, and watching: how they begin and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.cli.conftest import Shop
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_a_stop_finishes_what_is_running_and_leaves_nothing_behind(any_shop: Shop) -> None:
    for number in range(3):
        any_shop.deliver("held", number)
    process = any_shop.start()
    any_shop.wait(lambda: any_shop.holds(0))
    process.send_signal(signal.SIGTERM)
    any_shop.go()
    assert process.wait(timeout=30) == 0, any_shop.log()
    assert "held-0" in any_shop.effects()
    assert any_shop.ask("SELECT count(*) FROM onceward_queue WHERE token IS NOT NULL") == [(0,)]
    assert any_shop.inbox.admin.workers() == []
    assert any_shop.inbox.admin.stats().failures == 0
    assert "stopped; finished" in any_shop.log()


def test_a_stop_while_the_program_is_imported_is_an_ordinary_end(sqlite_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        f"from pathlib import Path\nimport time\nPath({str(tmp_path)!r}, 'importing').touch()\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "onceward", "run", "slow:inbox"], cwd=tmp_path, env=sqlite_shop.environment
    )
    wait_until((tmp_path / "importing").exists)
    process.terminate()
    assert process.wait(timeout=30) == 0


def test_run_logs_json_lines(sqlite_shop: Shop) -> None:
    sqlite_shop.deliver("plain", 1)
    process = sqlite_shop.start("--json")
    sqlite_shop.wait(lambda: sqlite_shop.effects() == ["plain-1"])
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0, sqlite_shop.log()
    lines = [json.loads(line) for line in sqlite_shop.log().splitlines()]
    assert lines[-1]["message"] == "stopped; finished 1 message"


def test_watching_goes_on_until_it_is_interrupted(sqlite_shop: Shop) -> None:
    words = ("status", "--store", sqlite_shop.url, "--watch", "--every", "0.1", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "onceward", *words], env=sqlite_shop.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for due in (0, 1, 2):
            while json.loads(process.stdout.readline())["unhandled"] != due:
                pass
            sqlite_shop.deliver("plain", due)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
