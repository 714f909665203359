"""`onceward run` in one process, and watching: how they begin and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from onceward import Inbox
from tests.cli.conftest import PROGRAM, Shop
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


RELOADED = """
from onceward import Inbox

inbox = Inbox({url!r}, service="shop")


@inbox.on("plain")
def plain(message, tx):
    {body}
"""


def test_a_change_of_the_program_starts_it_again_with_errors_in_the_log(sqlite_url: str, tmp_path: Path) -> None:
    """R69: also when the program cannot even be imported in between."""
    program, log = tmp_path / "reloaded.py", tmp_path / "log"

    def write(body: str) -> None:
        program.write_text(RELOADED.format(url=sqlite_url, body=body))

    def logged(text: str) -> None:
        wait_until(lambda: text in log.read_text(), timeout=60, message=f"{text!r} in the log")

    write("raise ValueError(message.data['secret'])")
    with log.open("ab") as output:
        words = ["run", "reloaded:inbox", "--reload"]
        process = subprocess.Popen(
            [sys.executable, "-m", "onceward", *words], cwd=tmp_path, stderr=output, stdout=output
        )
    try:
        logged(f"created the onceward tables in {sqlite_url.removeprefix('sqlite:///')}")
        logged("working on")
        with Inbox(sqlite_url, service="shop") as inbox:
            inbox.receive(source="test", id="1", type="plain", data={"secret": "what is wrong"})
        logged("ValueError: what is wrong")
        assert "Traceback" in log.read_text()
        assert "Details: onceward explain reloaded:inbox 1" in log.read_text()
        write("this is no Python")
        logged("reloaded.py changed: restarting")
        logged("it is started again when a .py file changes")
        write("open('done', 'w').close()")
        with Inbox(sqlite_url, service="shop") as inbox:
            inbox.receive(source="test", id="2", type="plain", data={})
        wait_until((tmp_path / "done").exists, timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    "options", [("--only", "plain"), ("--except", "ordered", "--except", "bad", "--processes", "2")]
)
def test_some_of_the_types(sqlite_shop: Shop, options: tuple[str, ...]) -> None:
    """R59: also by the processes of a supervisor."""
    sqlite_shop.deliver("ordered", 1, order=1)
    process = sqlite_shop.start(*options)
    sqlite_shop.deliver("plain", 2)
    sqlite_shop.wait(lambda: "plain-2" in sqlite_shop.effects())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0, sqlite_shop.log()
    assert sqlite_shop.effects() == ["plain-2"]
    assert sqlite_shop.inbox.admin.stats().due == 1


def test_a_type_without_a_handler_is_wrong_usage(sqlite_shop: Shop) -> None:
    """With what was meant."""
    told = sqlite_shop.call("run", PROGRAM, "--only", "plane")
    assert told.returncode == 2
    assert "did you mean 'plain'?" in told.stderr
