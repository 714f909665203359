"""The listener on SQLite notices what other connections write, and leaves nothing behind when it is closed."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from onceward.stores.sqlite.notifier import FileListener


def test_it_wakes_for_what_others_write_until_it_is_closed(tmp_path: Path) -> None:
    file, woken, listeners = tmp_path / "shop.db", threading.Semaphore(0), set[FileListener]()
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE t (n)")
    watched = sqlite3.connect(file, check_same_thread=False)
    listener = FileListener(watched, woken.release, listeners)
    listeners.add(listener)
    assert woken.acquire(timeout=30), "at its first look it knows nothing of what is there"
    for number in range(3):
        other.execute("INSERT INTO t VALUES (?)", (number,))
        other.commit()
        assert woken.acquire(timeout=30)
    listener.close()
    assert listeners == set()
    assert not listener.is_alive()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        watched.execute("SELECT 1")
    other.close()
