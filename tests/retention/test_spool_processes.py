"""The spool between processes: what each may do at once, and what is left where one of them is killed (R24, E05)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Inbox
from onceward.runtime import spool as module
from onceward.runtime.spool import Spool
from tests.retention.disk import Disk, Named, Synced
from tests.retention.test_spool_file import contents, delivery, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MANY = 40

_APPENDER = """
import sys
from onceward.message import Delivery
from onceward.runtime.spool import Spool
spool, name = Spool(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
print("appending", flush=True)
for number in range(int(sys.argv[3])):
    spool.append([Delivery.of(source="s", id=f"{name}-{number}", type="t", body=b"x")])
"""

_DRAINER = """
import os, signal, sys
from onceward import Inbox
from onceward.runtime.spool import Spool
from onceward.runtime.spooling import Spooling

def killing(owner, name, when):
    real = getattr(owner, name)
    def call(self, *arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, call)

owner, name, when = sys.argv[3].split()
if owner != "nothing":
    killing({"Spool": Spool, "Spooling": Spooling}[owner], name, when)
with Inbox(sys.argv[1], spool=sys.argv[2]) as inbox:
    inbox.retention.drain_spool()
"""


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_every_connection_waits_for_the_disk(tmp_path: Path) -> None:
    """WAL, and FULL: a commit is on the disk. In a file that is new, and in one that is there already."""
    for _ in range(2):
        spool = Spool(tmp_path / "spool")
        spool.append([delivery(0)])
        assert not spool.is_empty
        for one in (spool._looking, spool._writing):
            with one.use("read") as connection:
                settings = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
            assert settings == [("wal",), (2,)]
        spool.close()


def test_the_name_of_the_file_is_on_the_disk_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another process has made the file, and died before it waited for its name."""
    disk = Disk(tmp_path / "disk", monkeypatch)
    for _ in range(2):
        before = len(disk.steps)
        Spool(disk.root / "spool").append([delivery(0)])
        assert disk.steps[before:][-1:] == [Synced(".")]
    assert [step for step in disk.steps if isinstance(step, Named)] == [Named(".", (("spool", 0),))]


def watched(real: Callable[..., Any], alone: list[bool]) -> Callable[..., Any]:
    """The same function; it notes whether other threads are kept out."""

    def call(*arguments: Any, **more: Any) -> Any:
        alone.append(module._making.locked())
        return real(*arguments, **more)

    return call


def test_no_thread_opens_the_file_while_another_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a file ends every lock that the process has on it, also those of SQLite."""
    alone: list[bool] = []
    for owner, name in ((os, "open"), (os, "close"), (sqlite3, "connect")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name), alone))
    Spool(tmp_path / "spool").append([delivery(0)])
    assert alone
    assert all(alone)


def test_processes_append_at_once(tmp_path: Path) -> None:
    """All of them find the file missing, and begin at the same moment; each one's messages are there, in its order."""
    path = tmp_path / "spool"
    processes = [started(_APPENDER, path, name, MANY) for name in "ab"]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = ids(one.delivery for one in Spool(path).read(0, 1000))
    for name in "ab":
        assert [one for one in found if one.startswith(name)] == [f"{name}-{number}" for number in range(MANY)]


def test_an_append_waits_for_that_of_another_process(tmp_path: Path) -> None:
    """Instead of refusing a message because another one comes just now."""
    path = tmp_path / "spool"
    Spool(path).append([delivery(0)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with started(_APPENDER, path, "a", 1) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "appending\n"
            assert not Spool(path).is_empty, "a look does not wait"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            other.execute("COMMIT")
            assert process.wait() == 0
    assert ids(contents(path)) == ["m0", "a-0"]


def stored(url: str) -> Sequence[str]:
    """The ids in the order in which they reached the database."""
    with Inbox(url) as inbox:
        return [row.id for row in reversed(inbox.admin.messages())]


@pytest.mark.parametrize(
    ("moment", "reached"),
    [("Spooling _refusal before", 0), ("Spooling _refusal after", 3), ("Spool _remove after", 3)],
)
def test_a_drain_that_is_killed_loses_and_doubles_nothing(
    tmp_path: Path, sqlite_url: str, moment: str, reached: int
) -> None:
    """A message is in the database before it leaves the spool, so at every moment it is in one of them at least."""
    path, names = tmp_path / "spool", [f"m{number}" for number in range(3)]
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
    Spool(path).append([delivery(number) for number in range(3)])
    with started(_DRAINER, sqlite_url, path, moment) as process:
        assert process.wait() == -signal.SIGKILL
    assert stored(sqlite_url) == names[:reached]
    assert set(stored(sqlite_url)) | set(ids(contents(path))) == set(names)
    with started(_DRAINER, sqlite_url, path, "nothing at all") as process:
        assert process.wait() == 0
    assert (list(stored(sqlite_url)), contents(path)) == (names, [])
