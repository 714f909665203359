"""Ids that begin with the time: valid, ordered and never twice, whatever the clock does."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from uuid import UUID

from onceward.domain import identity
from onceward.domain.ids import time_ordered_id
from onceward.domain.reference import new_name
from tests.contract.harness import in_threads

if TYPE_CHECKING:
    import pytest


def test_they_are_uuids_of_version_7_with_the_time_of_now() -> None:
    before, made, after = time.time_ns(), UUID(time_ordered_id()), time.time_ns()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before // 1_000_000 <= made.int >> 80 <= after // 1_000_000 + 1
    assert len(identity.stored_id(str(made))) == 17, "as short in the ledger as a UUID can be"


def test_each_is_greater_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a millisecond, and when the clock is set back."""
    now = time.time_ns()
    found = [time_ordered_id() for _ in range(1000)]
    for clock in (now, now, now - 10**12):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        found += [time_ordered_id() for _ in range(1000)]
    assert found == sorted(set(found))


def test_threads_and_forks_never_have_the_same() -> None:
    made: list[list[str]] = in_threads(*(lambda: [time_ordered_id() for _ in range(500)] for _ in range(4)))
    assert all(one == sorted(one) for one in made)
    assert len({one for several in made for one in several}) == 2000
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, "".join(time_ordered_id() for _ in range(500)).encode())
        os._exit(0)
    mine = {time_ordered_id() for _ in range(500)}
    os.waitpid(child, 0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    assert len({text[at : at + 36] for at in range(0, len(text), 36)} - mine) == 500


def test_blobs_are_listed_in_the_order_of_their_messages() -> None:
    names = [new_name("f") for _ in range(100)]
    assert names == sorted(names)
    assert {len(name) for name in names} == {len("f/2026/11/18/") + 32}, "the index by name knows how long they are"
