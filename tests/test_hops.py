"""A message walks no further than it must, and the pages say how far."""

from __future__ import annotations

import pytest

from tests import hops
from tests.hops import ARCHITECTURE, CONTRIBUTING, MOST, MOST_ENTRIES, MOST_MEMBERS, MOST_MODULES, Entered, Hops, Walk


@pytest.fixture(scope="module")
def counted() -> Hops:
    return hops.count()


def test_a_message_changes_files_no_more_often_than_it_must(counted: Hops) -> None:
    for (name, most), walk in zip(MOST.items(), counted, strict=False):
        assert walk.changes <= most, f"{name}: {walk.changes} changes of file\n" + "\n".join(walk.lines())
    assert counted.received.stays.count("inbox.py") <= MOST_ENTRIES
    assert len(hops.root_modules()) <= MOST_MODULES
    assert len(hops.members()) <= MOST_MEMBERS


def test_the_pages_show_what_was_counted(counted: Hops) -> None:
    for page, part in ((CONTRIBUTING, hops.table(counted)), (ARCHITECTURE, hops.ways(counted))):
        text = page.read_text()
        assert text == hops.renewed(text, part), "the walk has changed: run `make hops`"


def test_a_walk_counts_what_it_should() -> None:
    walk = Walk()
    walk.entered = [Entered(file, "f") for file in ("a.py", "a.py", "b.py", "a.py")]
    assert (walk.functions, walk.files, walk.stays, walk.changes) == (2, ["a.py", "b.py"], ["a.py", "b.py", "a.py"], 2)
