"""Known-bad spools: each mistake is caught by a test of the spool file (R24, R53)."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward.runtime import spool
from onceward.runtime.spool import Spool
from tests.upkeep import test_spool_file as suite

Patch = pytest.MonkeyPatch


def _no_checksum(patch: Patch) -> None:
    patch.setattr(spool, "_checksums", lambda _: (0, 0))
    patch.setattr(spool, "_length", lambda head: spool._HEAD.unpack(head)[0] or None if len(head) == 12 else None)


def _length_not_in_the_checksum(patch: Patch) -> None:
    crc32 = zlib.crc32
    patch.setattr(spool, "_checksums", lambda content: (crc32(b""), crc32(content)))
    patch.setattr(spool, "_length", lambda head: spool._HEAD.unpack(head)[0] if len(head) == 12 else None)


def _behind_the_torn_end(patch: Patch) -> None:
    """Appends after what was cut off instead of over it."""
    sound = Spool._sound_end

    def size(self: Spool, file: int) -> tuple[bytes, int]:
        name, end = sound(self, file)
        return (name, os.fstat(file).st_size) if end else (name, end)

    patch.setattr(Spool, "_sound_end", size)


def _clears_whatever_came(patch: Patch) -> None:
    def clear(self: Spool, _: int) -> bool:
        self.path.unlink(missing_ok=True)
        return True

    patch.setattr(Spool, "clear", clear)


def _believes_what_it_knew(patch: Patch) -> None:
    """Takes another file under the old name for the one it has seen."""
    patch.setattr(os, "urandom", lambda count: b"\0" * count)


def _drops_what_makes_no_sense(patch: Patch) -> None:
    patch.setattr(Spool, "_put_rest_aside", lambda *_: None)


def _readable_by_all(patch: Patch) -> None:
    opened = os.open
    patch.setattr(os, "open", lambda path, flags, _mode=0: opened(path, flags, 0o644))


MUTANTS: list[tuple[Callable[[Patch], None], Callable[..., Any]]] = [
    (_no_checksum, suite.test_a_changed_byte_is_never_read_as_a_message),
    (_length_not_in_the_checksum, suite.test_zeros_are_no_record),
    (_behind_the_torn_end, suite.test_an_append_cut_off_at_every_byte),
    (_clears_whatever_came, suite.test_order_is_kept_and_the_end_removes_the_file),
    (_believes_what_it_knew, suite.test_what_is_known_of_one_file_is_not_believed_of_the_next),
    (_drops_what_makes_no_sense, suite.test_a_changed_byte_is_never_read_as_a_message),
    (_readable_by_all, suite.test_only_the_owner_can_read_it),
]


@pytest.mark.parametrize(("mutate", "test"), MUTANTS, ids=lambda one: one.__name__.strip("_"))
def test_a_known_mistake_is_caught(
    mutate: Callable[[Patch], None], test: Callable[..., Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    """The test that passes for the spool fails for the mutant."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OSError, ValueError, struct.error)):
        test(tmp_path)
