"""Known-bad spools: each mistake is caught by a test of the spool file (R24, R53)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import StoreError
from onceward.runtime import spool
from onceward.runtime.spool import Spool
from tests.retention import test_spool_file as suite

Patch = pytest.MonkeyPatch


def _no_checksum(patch: Patch) -> None:
    patch.setattr(spool, "_checksum", lambda *_: 0)


def _no_transaction(patch: Patch) -> None:
    """A part of an append stays when the rest of it fails."""
    patch.setattr(spool, "_transaction", nullcontext)


def _numbers_are_used_again(patch: Patch) -> None:
    patch.setattr(spool, "_TABLES", tuple(one.replace("AUTOINCREMENT", "") for one in spool._TABLES))


def _drops_what_is_refused(patch: Patch) -> None:
    remove = Spool._remove
    patch.setattr(Spool, "_remove", lambda self, numbers, _: remove(self, numbers, {}))


def _leaves_what_was_drained(patch: Patch) -> None:
    patch.setattr(spool, "_SETTINGS", tuple(one for one in spool._SETTINGS if "secure_delete" not in one))
    patch.setattr(spool, "_FIRST", "PRAGMA auto_vacuum = NONE")


def _believes_what_it_knew(patch: Patch) -> None:
    """Takes another file under the old name for the one it has opened."""
    patch.setattr(spool._Connection, "_present", lambda _: (0,))


def _all_may_drain(patch: Patch) -> None:
    patch.setattr(Spool, "draining", lambda _: nullcontext(enter_result=True))


def _readable_by_all(patch: Patch) -> None:
    opened = os.open
    patch.setattr(os, "open", lambda path, flags, _mode=0: opened(path, flags, 0o644))


MUTANTS: list[tuple[Callable[[Patch], None], Callable[..., Any]]] = [
    (_no_checksum, suite.test_a_changed_byte_is_never_read_as_a_message),
    (_no_transaction, suite.test_a_full_disk_is_said_and_leaves_no_trace),
    (_numbers_are_used_again, suite.test_order_is_kept_and_what_was_drained_is_gone),
    (_drops_what_is_refused, suite.test_what_is_refused_is_kept_with_its_error),
    (_leaves_what_was_drained, suite.test_order_is_kept_and_what_was_drained_is_gone),
    (_believes_what_it_knew, suite.test_a_file_that_was_removed_is_not_written_to),
    (_all_may_drain, suite.test_one_drains_at_a_time),
    (_readable_by_all, suite.test_only_the_owner_can_read_it),
]


@pytest.mark.parametrize(("mutate", "test"), MUTANTS, ids=lambda one: one.__name__.strip("_"))
def test_a_known_mistake_is_caught(
    mutate: Callable[[Patch], None], test: Callable[..., Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    """The test that passes for the spool fails for the mutant."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OSError, ValueError, StoreError, sqlite3.Error)):
        test(tmp_path)
