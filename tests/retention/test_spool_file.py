"""The spool file (R24): wherever a crash leaves off, what was acknowledged is read back, whole and in order."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, StoreError, StoreUnavailable
from onceward.message import Delivery
from onceward.runtime.spool import Spool, delivery_of
from tests.contract.harness import in_threads


def delivery(number: int, **more: Any) -> Delivery:
    fields = {"source": "shop", "type": "t", "body": f"body {number}".encode(), "headers": {"n": str(number)}, **more}
    return Delivery.of(id=f"m{number}", **fields)


def contents(path: Path) -> list[Delivery]:
    """What a fresh process reads."""
    return [one.delivery for one in Spool(path).read(0, 1000)]


def refused(path: Path) -> list[tuple[str, str]]:
    """What was put aside: its id, and why."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT head, body, error FROM refused ORDER BY number").fetchall()
    return [(delivery_of(head, body).id, error) for head, body, error in rows]


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    return [one.id for one in deliveries]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """Every field, bytes that are no text, and nothing at all."""
    written = [
        delivery(1, key="k", version=7, position=-3),
        delivery(2, body=b"", headers=None),
        delivery(3, body=bytes(range(256)) * 40, headers={"ü": "\n\0"}),
        delivery(4, echo_window=60.0),
    ]
    Spool(tmp_path / "spool").append(written)
    assert contents(tmp_path / "spool") == written


def test_order_is_kept_and_what_was_drained_is_gone(tmp_path: Path) -> None:
    """Read in pieces; what has come meanwhile stays. The empty file is small, and holds nothing of what it held."""
    spool, other = Spool(tmp_path / "spool"), Spool(tmp_path / "spool")
    assert Spool(spool.path).is_empty
    assert not spool.path.exists(), "looking makes no file"
    spool.append([delivery(number, body=b"payload" * 5000) for number in range(5)])
    assert not Spool(spool.path).is_empty
    first = spool.read(0, 3)
    rest = spool.read(first[-1].number, 3)
    assert ids(one.delivery for one in (*first, *rest)) == ["m0", "m1", "m2", "m3", "m4"]
    other.append([delivery(5)])
    spool.settle([one.number for one in (*first, *rest)], {})
    assert not Spool(spool.path).is_empty
    (last,) = other.read(0, 3)
    assert (last.delivery.id, last.number > rest[-1].number) == ("m5", True)
    other.settle([last.number], {})
    assert spool.is_empty
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(b"payload" in file for file in files)
    assert sum(map(len, files)) < 100_000
    spool.append([delivery(6)])
    assert spool.read(0, 3)[0].number > last.number, "numbers are never used again"


def test_what_is_refused_is_kept_with_its_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(number) for number in range(3)])
    numbers = [one.number for one in spool.read(0, 10)]
    spool.settle(numbers, {numbers[1]: "no"})
    assert (spool.is_empty, refused(spool.path)) == (True, [("m1", "no")])


def crashed(path: Path, folder: Path, **lengths: int) -> Path:
    """The files of a spool as a crash of the machine may leave them, some cut off; where they are."""
    folder.mkdir()
    for end in ("", "-wal"):
        data = Path(f"{path}{end}").read_bytes()
        (folder / f"spool{end}").write_bytes(data[: lengths.get(end.strip("-") or "file")])
    return folder / "spool"


def test_an_append_cut_off_anywhere(tmp_path: Path) -> None:
    """Whole ones stay, the torn one goes, and what is appended afterwards is found."""
    path = tmp_path / "spool"
    spool, wal, ends = Spool(path), Path(f"{path}-wal"), []
    spool.append([])
    before = wal.stat().st_size
    for number in range(3):
        spool.append([delivery(number)])
        ends.append(wal.stat().st_size)
    for place, cut in enumerate(range(before, ends[-1] + 1, 509)):
        left = crashed(path, tmp_path / f"cut-{place}", wal=cut)
        whole = [f"m{number}" for number, end in enumerate(ends) if end <= cut]
        assert ids(contents(left)) == whole, f"cut at {cut}"
        Spool(left).append([delivery(9)])
        assert ids(contents(left)) == [*whole, "m9"]


def test_zeros_are_no_record(tmp_path: Path) -> None:
    """A file system may leave them where an append was cut off."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    left = crashed(spool.path, tmp_path / "crashed")
    with Path(f"{left}-wal").open("ab") as file:
        file.write(bytes(20_000))
    assert ids(contents(left)) == ["m0"]
    Spool(left).append([delivery(1)])
    assert ids(contents(left)) == ["m0", "m1"]


def test_a_changed_byte_is_never_read_as_a_message(tmp_path: Path) -> None:
    """It is put aside; the others are read."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(number) for number in range(4)])
    spool.close()  # and everything is in the file itself
    whole = spool.path.read_bytes()
    for text, lost in ((b"body 2", "m2"), (b'"m1"', "m1"), (b"body 3", "m3")):
        damaged = bytearray(whole)
        damaged[whole.index(text) + 1] ^= 1
        spool.path.write_bytes(damaged)
        assert [one for one in ids(contents(spool.path)) if one in {"m0", "m1", "m2", "m3"}] == [
            f"m{number}" for number in range(4) if f"m{number}" != lost
        ]
        assert [error for _, error in refused(spool.path)] == ["damaged: its checksum differs"]
        assert len(contents(spool.path)) == 3


def test_a_damaged_disk_is_said(tmp_path: Path) -> None:
    """What comes before the damage can be drained; then an error says what to do, and nothing more is accepted."""
    path = tmp_path / "spool"
    Spool(path).append([delivery(number, body=b"x" * 1000) for number in range(100)])
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek((pages - 3) * 4096)
        file.write(b"\xff" * 3 * 4096)
    before = contents(path)
    assert ids(before) == [f"m{number}" for number in range(len(before))]
    assert 0 < len(before) < 100
    spool = Spool(path)
    with pytest.raises(StoreError, match=r"is damaged .*\.recover"):
        spool.read(len(before), 100)
    with pytest.raises(StoreError, match=r"spool .* (is damaged|cannot be written)"):
        spool.append([delivery(number, body=b"x" * 1000) for number in range(100)])


def test_what_is_no_spool_of_this_version_is_refused(tmp_path: Path) -> None:
    """A file of the format before, or of a later one: nothing in it is touched."""
    path = tmp_path / "spool"
    path.write_bytes(b"onceward spool 1" + bytes(100))
    for use in (lambda: Spool(path).is_empty, lambda: Spool(path).append([delivery(1)])):
        with pytest.raises(ConfigurationError, match=r"is not a spool .* move the file away"):
            use()
    assert path.read_bytes() == b"onceward spool 1" + bytes(100)
    later = tmp_path / "later"
    Spool(later).append([delivery(1)])
    with closing(sqlite3.connect(later)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigurationError, match="format 2, here 1"):
        Spool(later).append([delivery(2)])


def test_a_file_that_was_removed_is_not_written_to(tmp_path: Path) -> None:
    """An operator removed it: what is accepted afterwards is in a file that has a name."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    for path in tmp_path.iterdir():
        path.unlink()
    spool.append([delivery(1)])
    assert ids(contents(spool.path)) == ["m1"]


def test_a_full_disk_is_said_and_leaves_no_trace(tmp_path: Path) -> None:
    """The caller is told; what was there stays, and with space again it goes on."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    with spool._writing.use("written") as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    with pytest.raises(StoreUnavailable, match=r"spool.*cannot be written: database or disk is full"):
        spool.append([delivery(number, body=b"x" * 5000) for number in range(1, 9)])
    spool.append([delivery(2)])
    assert ids(contents(spool.path)) == ["m0", "m2"]


def test_a_disk_that_fails_at_the_end_of_a_write_acknowledges_nothing(tmp_path: Path) -> None:
    """A limit of the process stands for the full disk: the operating system refuses to let the file grow."""
    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "spool")], check=True, capture_output=True, text=True
    )
    acknowledged = int(ran.stdout)
    assert 1 < acknowledged < 200
    assert ids(contents(tmp_path / "spool")) == [f"m{number}" for number in range(acknowledged)]


_LIMITED = """
import resource, signal, sys
from onceward import StoreUnavailable
from onceward.message import Delivery
from onceward.runtime.spool import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
spool = Spool(sys.argv[1])
for number in range(200):
    try:
        spool.append([Delivery.of(source="s", id=f"m{number}", type="t", body=b"x" * 3000)])
    except StoreUnavailable:
        print(number)
        break
"""


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Payloads are nobody else's business."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_many_append_at_once(tmp_path: Path) -> None:
    """Each of several threads' messages are there, in their order; all of them may be the first."""
    path = tmp_path / "spool"

    def append(first: int) -> None:
        spool = Spool(path)
        for number in range(first, first + 30):
            spool.append([delivery(number)])

    in_threads(*(partial(append, first) for first in (0, 100, 200, 300)))
    numbers = [int(one.id[1:]) for one in contents(path)]
    for first in (0, 100, 200, 300):
        assert [number for number in numbers if first <= number < first + 100] == list(range(first, first + 30))


def test_one_drains_at_a_time(tmp_path: Path) -> None:
    """The right ends with the block, or with the process that has it."""
    ours, theirs = Spool(tmp_path / "spool"), Spool(tmp_path / "spool")
    with ours.draining() as mine, theirs.draining() as other:
        assert (mine, other) == (True, False)
    words = [sys.executable, "-c", _DRAINER, str(tmp_path / "spool")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with ours.draining() as mine:
            assert not mine
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ours.draining() as mine:
        assert mine


def test_a_child_of_a_fork_has_a_connection_of_its_own(tmp_path: Path) -> None:
    """Its end does not take the locks of its parent, or what the parent wrote."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    child = os.fork()
    if child == 0:
        spool.append([delivery(1)])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    spool.append([delivery(2)])
    assert ids(contents(spool.path)) == ["m0", "m1", "m2"]


_DRAINER = """
import sys, time
from onceward.runtime.spool import Spool
with Spool(sys.argv[1]).draining() as mine:
    print(mine, flush=True)
    time.sleep(600)
"""

_APPENDER = """
import sys
from onceward.message import Delivery
from onceward.runtime.spool import Spool
spool = Spool(sys.argv[1])
for number in range(100000):
    spool.append([Delivery.of(source="s", id=f"{sys.argv[2]}-{number}", type="t", body=b"x" * (number * 37 % 5000))])
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Appended by processes that are killed, one after the other, into the same file."""
    path = tmp_path / "spool"
    patience = random.Random(seed)
    acknowledged: dict[int, int] = {}
    for life in range(3):
        words = [sys.executable, "-c", _APPENDER, str(path), str(life)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(patience.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split("\n")
        acknowledged[life] = max([0, *(int(line) for line in lines[:-1] if line)])
    found = ids(one.delivery for one in Spool(path).read(0, 10**6))
    for life, last in acknowledged.items():
        mine = [one for one in found if one.startswith(f"{life}-")]
        assert mine == [f"{life}-{number}" for number in range(len(mine))]
        assert len(mine) > last
