"""The program of a page, in a folder of its own, with its processes.

Invariant: what runs is the text of the page; only addresses are those of the test's servers.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceward import Inbox
from tests.pages.reader import ROOT, read
from tests.waiting import wait_until

PATIENCE = 90.0

WATCHED = """
from {module} import *
import {module} as page

inner, ainner = page.inbox.{call}, page.inbox.a{call}


def watched(**message):
    before(message)
    receipt = inner(**message)
    after(message)
    return receipt


async def awatched(**message):
    before(message)
    receipt = await ainner(**message)
    after(message)
    return receipt


page.inbox.{call}, page.inbox.a{call} = watched, awatched
"""
DIES = """
import os, signal


def before(message):
    pass


def after(message):
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
BEGINS = """
def before(message):
    with open("began", "a") as file:
        file.write(".")


def after(message):
    pass
"""


class Recipe:
    """A page's program and what runs of it."""

    name = ""
    """Of its queue, in the broker."""

    def __init__(self, page: str, folder: Path, addresses: dict[str, str]) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        for block in read(ROOT / "docs" / "recipes" / f"{page}.md").blocks:
            if block.file:
                text = block.text
                for address, ours in addresses.items():
                    assert address in text, f"{page}.md: {address}"
                    text = text.replace(address, ours)
                (folder / block.file).write_text(text)
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE shipped (order_id integer NOT NULL)")
            connection.execute("CREATE TABLE thanked (order_id integer NOT NULL)")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        self.environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONWARNINGS": "ignore",
        }

    def dying(self, module: str, call: str = "process") -> None:
        """Make a module `dying`: the page's, whose first worker dies right after its first commit."""
        (self.folder / "dying.py").write_text(DIES + WATCHED.format(module=module, call=call))

    def beginning(self, module: str, call: str = "process") -> None:
        """Make a module `beginning`: the page's, which says when it has got its first message."""
        (self.folder / "beginning.py").write_text(BEGINS + WATCHED.format(module=module, call=call))

    def connect(self) -> sqlite3.Connection:
        """The shop's database."""
        return sqlite3.connect(self.folder / "shop.db", timeout=10)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program, as the page says."""
        name = re.sub(r"\W+", "-", " ".join(command[:3]))
        with (self.folder / f"{name}-{len(self._started)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    def run(self, code: str) -> None:
        """Run a few lines beside the page's program."""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=self.environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As kill -9 of a whole container does."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def rows(self, table: str) -> list[int]:
        """The orders that had this effect, as often as they had it."""
        with closing(self.connect()) as connection:
            return sorted(order for (order,) in connection.execute(f"SELECT order_id FROM {table}"))

    def migrate(self) -> None:
        """Make the tables of the inbox."""
        with self._inbox() as inbox:
            inbox.migrate()

    def copies(self, source: str, message_id: str) -> int:
        """How many copies of a message were recognised."""
        with self._inbox() as inbox:
            details = [inbox.admin.message(seq) for seq in inbox.admin.find(source, message_id)]
        return sum(detail.duplicates for detail in details if detail)

    def ids(self, kind: str, *, outgoing: bool = False) -> list[str]:
        """The ids of the messages of a type."""
        with self._inbox() as inbox:
            details = [inbox.admin.message(row.seq) for row in inbox.admin.messages(type=kind, outgoing=outgoing)]
        return [detail.id for detail in details if detail]

    def _inbox(self) -> Inbox:
        return Inbox(f"sqlite:///{self.folder / 'shop.db'}")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Until it is so; the logs are shown where it never is."""
        try:
            wait_until(condition, timeout=PATIENCE, message=what)
        except TimeoutError as error:
            logs = "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from error

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Callable[..., Recipe]]:
    """Makes the program of a page."""
    made: list[Recipe] = []

    def make(page: str, addresses: dict[str, str]) -> Recipe:
        made.append(Recipe(page, tmp_path, addresses))
        return made[-1]

    yield make
    for one in made:
        one.end()
