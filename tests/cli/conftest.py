"""Fixtures: a shop on a fresh store, with its command line at hand.

Invariant: no process that a test started outlives the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from onceward import Inbox
from tests import processes
from tests.cli import shop
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Value = TypeVar("Value")

ASK_SECONDS = 0.1
WAIT_SECONDS = 60.0
"""Generous, and yet far from the lease of the shop's workers."""
ROOT = Path(__file__).parents[2]
PROGRAM = "tests.cli.shop:inbox"
SEVERAL = """
import json, sys
from onceward.cli.app import application
for words in sys.argv[1:]:
    print("=== next ===", flush=True)
    try:
        application(json.loads(words))
    except SystemExit:
        pass
"""


class Shop:
    """The store, the folder and the processes of one test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.inbox = Inbox(url, service="shop", settings=shop.SETTINGS)
        self.environment = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "COLUMNS"}}
        self.environment |= {shop.STORE: url, shop.FOLDER: str(folder), "TERM": "xterm-256color"}
        self._started: list[subprocess.Popen[bytes]] = []

    def open(self) -> Shop:
        """Create the tables: the inbox's and the shop's own."""
        self.inbox.migrate()
        with self.inbox.transaction() as connection:
            connection.execute("CREATE TABLE effect (message text NOT NULL)")
        return self

    def deliver(self, kind: str, number: int | str, **data: Any) -> int:
        """Receive a message; answers its sequence number."""
        return self.inbox.receive(source="test", id=f"{kind}-{number}", type=kind, data=data).seq

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Look into the tables."""
        with self.inbox.transaction() as connection:
            return [tuple(row) for row in connection.execute(query).fetchall()]

    def effects(self) -> list[str]:
        """The messages that took effect, as often as they did."""
        return sorted(message for (message,) in self.ask("SELECT message FROM effect"))

    def call(self, *words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run `onceward` with its output in a pipe."""
        command = [sys.executable, "-m", "onceward", *words]
        return subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )

    def json(self, *words: str) -> Any:
        """The JSON that a command about this shop prints."""
        done = self.call(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def terminal(self, *words: str, columns: int = 120, keys: str = "") -> str:
        """What `onceward` writes to a real terminal, every byte of it; `keys` are pressed beforehand."""
        return self._on_terminal(["-m", "onceward", *words], columns, keys)

    def terminals(self, *commands: tuple[str, ...]) -> list[str]:
        """What several commands write to a terminal, each; one process for all, because starting one takes long."""
        output = self._on_terminal(["-c", SEVERAL, *map(json.dumps, commands)], 120, "")
        return output.split("=== next ===\r\n")[1:]

    def _on_terminal(self, arguments: list[str], columns: int, keys: str) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**self.environment, "COLUMNS": str(columns)},
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.write(ours, keys.encode())
        output = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                output += part
        os.close(ours)
        process.wait(timeout=60)
        return output.decode()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start `onceward run`; its log goes to a file."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "onceward", "run", PROGRAM, *options],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def wait(self, condition: Callable[[], Value]) -> Value:
        """Wait for a condition that asks the database: now and then, because the processes need the time themselves."""
        asked = 0.0

        def check() -> Value | None:
            nonlocal asked
            if time.monotonic() - asked < ASK_SECONDS:
                return None
            asked = time.monotonic()
            return condition() or None

        found = wait_until(check, timeout=WAIT_SECONDS, message=f"what {condition.__qualname__} waits for")
        assert found is not None
        return found

    def log(self) -> str:
        """What the started processes have logged."""
        return (self.folder / "log").read_text()

    def holds(self, number: int | str) -> bool:
        """Whether a `held` message is in its handler."""
        return (self.folder / f"holds-held-{number}").exists()

    def go(self) -> None:
        """Let every `held` message go on."""
        (self.folder / "go").touch()

    def close(self) -> None:
        """End whatever still runs."""
        self.go()
        for process in self._started:
            process.kill()
            process.wait()
        pids = [worker.pid for worker in self.inbox.admin.workers()] if self._started else []
        wait_until(lambda: not any(alive(pid) for pid in pids), message=f"end of the children {pids}")
        self.inbox.close()
        if self._started:
            sys.stdout.write(self.log())  # shown when the test has failed


def dead_message(place: Shop, number: int | str, *, why: str = "no such account", **data: object) -> int:
    """A message that was rejected; answers its sequence number."""
    seq = place.deliver("bad", number, why=why, **data)
    if not len(place.inbox.context.registry):
        place.inbox.on("bad", key="order")(shop.bad)
    place.inbox.drain()
    return seq


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be reaped."""
    return processes.state(pid) not in ("", "Z")


@pytest.fixture
def new_shop(store_url: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop without any tables, on each kind of store."""
    made = Shop(store_url, tmp_path)
    yield made
    made.inbox.close()


@pytest.fixture
def any_shop(store_url: str, tmp_path: Path) -> Iterator[Shop]:
    """An open shop on each kind of store."""
    made = Shop(store_url, tmp_path).open()
    yield made
    made.close()


@pytest.fixture
def sqlite_shop(sqlite_url: str, tmp_path: Path) -> Iterator[Shop]:
    """An open shop on SQLite, for what has nothing to do with the store."""
    made = Shop(sqlite_url, tmp_path).open()
    yield made
    made.close()
