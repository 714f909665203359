"""The spool file (R24): whatever byte a crash leaves off at, what was acknowledged is read back, whole and in order."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from onceward import StoreUnavailable
from onceward.message import Delivery
from onceward.runtime.spool import Spool, delivery_of, record


def delivery(number: int, **more: Any) -> Delivery:
    fields = {"source": "shop", "type": "t", "body": f"body {number}".encode(), "headers": {"n": str(number)}, **more}
    return Delivery.of(id=f"m{number}", **fields)


def contents(path: Path) -> list[Delivery]:
    """What a fresh process reads."""
    return Spool(path).read(0, 1000)[0]


def aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


def test_what_is_read_is_what_was_written() -> None:
    """Every field, bytes that are no text, and nothing at all."""
    for one in (
        delivery(1, key="k", version=7, position=-3),
        delivery(2, body=b"", headers=None),
        delivery(3, body=bytes(range(256)) * 40, headers={"ü": "\n\0"}),
    ):
        assert delivery_of(record(one)[12:]) == one


def test_order_is_kept_and_the_end_removes_the_file(tmp_path: Path) -> None:
    """Read in pieces; cleared only when nothing has come meanwhile."""
    spool = Spool(tmp_path / "spool")
    assert Spool(spool.path).is_empty
    spool.append([delivery(number) for number in range(5)])
    assert not Spool(spool.path).is_empty
    first, place = spool.read(0, 3)
    rest, end = spool.read(place, 3)
    assert [one.id for one in first + rest] == ["m0", "m1", "m2", "m3", "m4"]
    Spool(spool.path).append([delivery(5)])
    assert not spool.clear(end)
    last, end = spool.read(end, 3)
    assert [one.id for one in last] == ["m5"]
    assert spool.clear(end)
    assert spool.is_empty
    assert not spool.path.exists()
    assert spool.clear(0)


def test_an_append_cut_off_at_every_byte(tmp_path: Path) -> None:
    """Whole records stay, the torn one goes, and what is appended afterwards is found."""
    path = tmp_path / "spool"
    spool, ends = Spool(path), []
    for number in range(3):
        spool.append([delivery(number)])
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        before = [f"m{number}" for number, end in enumerate(ends) if end <= cut]
        assert [one.id for one in contents(path)] == before
        Spool(path).append([delivery(9)])
        assert [one.id for one in contents(path)] == [*before, "m9"], f"cut at {cut}"
    assert aside(path) == []


def test_a_torn_end_keeps_nobody_from_clearing(tmp_path: Path) -> None:
    """It was never acknowledged, so the spool is empty without it."""
    path = tmp_path / "spool"
    spool = Spool(path)
    spool.append([delivery(0)])
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(record(delivery(1))[:-1])
    deliveries, drained = spool.read(0, 10)
    assert (len(deliveries), drained) == (1, end)
    assert spool.clear(drained)
    assert not path.exists()


def test_a_changed_byte_is_never_read_as_a_message(tmp_path: Path) -> None:
    """What comes before it is read; it and what comes after it are put aside for a person."""
    path = tmp_path / "spool"
    Spool(path).append([delivery(number) for number in range(3)])
    whole = path.read_bytes()
    written = [delivery(number) for number in range(3)]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        found = contents(path)
        assert found == written[: len(found)]
        Spool(path).append([delivery(9)])
        assert [one.id for one in contents(path)][-1] == "m9"
        kept = b"".join(part.read_bytes() for part in aside(path))
        assert len(found) == 3 or kept or place >= len(whole) - len(record(written[2])), f"byte {place} lost something"
        for part in aside(path):
            part.unlink()


def test_zeros_are_no_record(tmp_path: Path) -> None:
    """A file system may leave them where an append was cut off."""
    path = tmp_path / "spool"
    Spool(path).append([delivery(0)])
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert [one.id for one in contents(path)] == ["m0"]
    Spool(path).append([delivery(1)])
    assert [one.id for one in contents(path)] == ["m0", "m1"]


def test_what_is_known_of_one_file_is_not_believed_of_the_next(tmp_path: Path) -> None:
    """Another process drained it and began a new one while this one looked away."""
    path = tmp_path / "spool"
    ours, theirs = Spool(path), Spool(path)
    ours.append([delivery(number) for number in range(3)])
    assert theirs.clear(theirs.read(0, 10)[1])
    theirs.append([delivery(number, body=b"longer " * 50) for number in range(10, 14)])
    ours.append([delivery(20)])
    assert [one.id for one in contents(path)] == ["m10", "m11", "m12", "m13", "m20"]
    assert aside(path) == []


def test_a_full_disk_is_said_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told, and the next append is where this one would have been."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    write = os.pwrite

    def half(file: int, data: Any, at: int) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: len(data) - 5], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StoreUnavailable, match=r"spool.*No space left"):
        spool.append([delivery(1)])
    monkeypatch.setattr(os, "pwrite", write)
    spool.append([delivery(2)])
    assert [one.id for one in contents(spool.path)] == ["m0", "m2"]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Payloads are nobody else's business."""
    spool = Spool(tmp_path / "spool")
    spool.append([delivery(0)])
    assert spool.path.stat().st_mode & 0o077 == 0


def test_many_append_at_once(tmp_path: Path) -> None:
    """Each of several processes' messages are there, in their order."""
    path = tmp_path / "spool"

    def append(first: int) -> None:
        spool = Spool(path)
        for number in range(first, first + 30):
            spool.append([delivery(number)])

    threads = [threading.Thread(target=append, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [int(one.id[1:]) for one in contents(path)]
    for first in (0, 100, 200):
        assert [number for number in numbers if first <= number < first + 100] == list(range(first, first + 30))


_APPENDER = """
import sys
from onceward.message import Delivery
from onceward.runtime.spool import Spool
spool = Spool(sys.argv[1])
for number in range(100000):
    spool.append([Delivery.of(source="s", id=f"{sys.argv[2]}-{number}", type="t", body=b"x" * (number * 37 % 5000))])
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
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
    found = [one.id for one in Spool(path).read(0, 10**6)[0]]
    for life, last in acknowledged.items():
        mine = [one for one in found if one.startswith(f"{life}-")]
        assert mine == [f"{life}-{number}" for number in range(len(mine))]
        assert len(mine) > last
    assert aside(path) == []
