"""Files after a crash of the machine: at every moment, whatever it leaves of what was not synced (R10, R32, R34, E05).

What was promised by then is there and whole; what was not is absent, or under a name that means nothing.
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import Inbox
from onceward.blobs.files import Files
from onceward.domain.archived import Record, body_of, with_body
from onceward.domain.reference import split
from onceward.retention.archive import Archive
from tests.retention.conftest import NOW
from tests.retention.disk import Disk, Killed, Named, Synced, Wrote, states

if TYPE_CHECKING:
    import pytest

BODY = b"the whole body"
NAME, SECOND = "box/2026/01/01/one", "box/2026/01/01/two"
MESSAGES: list[Record] = [with_body({"seq": seq, "headers": {}}, body) for seq, body in ((1, b"ann"), (2, b"bob"))]


def of_ann(record: Record) -> bool:
    return bool(record["seq"] == 1)


def test_the_model_knows_what_a_crash_may_do() -> None:
    """Not more than was synced is certain, and no more than was done is possible."""
    made, written, renamed = Named(".", (("a", 1),)), Wrote(1, b"text"), Named(".", (("a", None), ("b", 1)))

    def left(*steps: Named | Wrote | Synced) -> list[dict[str, bytes | None]]:
        return sorted(map(dict, states(list(steps))), key=repr)

    torn = [b"", b"\0\0\0\0", b"te", b"text"]
    assert left(made, written) == [*({"a": content} for content in torn), {}]
    assert left(made, written, Synced(1)) == [{"a": b"text"}, {}]
    assert left(made, Synced("."), written) == [{"a": content} for content in torn]
    assert left(made, written, Synced(1), renamed) == [{"a": b"text"}, {"b": b"text"}, {}]
    assert left(made, written, Synced(1), renamed, Synced(".")) == [{"b": b"text"}]
    below = (Named(".", (("f", -1),)), Named("f", (("a", 1),)), Synced("f"), Wrote(1, b"x"), Synced(1))
    assert left(*below) == [{"f": None, "f/a": b"x"}, {}], "what is in a folder goes with its name"


def test_a_blob_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `put` and `create` returned for is there, in folders that are new; `create` has one winner."""
    kept: set[str] = set()
    disk = Disk(tmp_path / "disk", monkeypatch, lambda: frozenset(kept))
    store = Files(str(disk.root / "blobs"))
    store.put(NAME, BODY)
    kept.add(NAME)
    assert store.create(SECOND, BODY)
    kept.add(SECOND)
    assert not store.create(SECOND, b"another")
    store.put("box/2026/01/02/three", BODY)
    kept.add("box/2026/01/02/three")
    disk.promise()
    for place, promised in disk.crashes(tmp_path / "crashed"):
        left = Files(str(place / "blobs"))
        found = {name: left.get(name) for name, _ in left.listed("")}
        whole = {name for name in found if not name.endswith(".part")}
        assert promised <= whole
        assert {found[name] for name in whole} <= {BODY}


def test_what_was_deleted_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that was erased is not found on the disk afterwards."""
    disk = Disk(tmp_path / "disk", monkeypatch)
    store = Files(str(disk.root / "blobs"))
    store.put(NAME, BODY)
    store.delete(NAME)
    store.delete(NAME)
    for place, _ in disk.crashes(tmp_path / "crashed", since=len(disk.steps)):
        assert list(Files(str(place / "blobs")).listed("")) == []


def test_who_relies_on_what_another_made_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed anywhere in its first `put`; what the next was told is safe, and so is what it has listed."""
    moment = 0
    while True:
        disk = Disk(tmp_path / f"disk-{moment}", monkeypatch)
        first, second = (Files(str(disk.root / "blobs")) for _ in range(2))
        disk.kill_at(moment)
        with suppress(Killed):
            first.put(NAME, BODY)
        finished = len(disk.steps) < moment
        disk.kill_at(None)
        seen = {name for name, _ in second.listed("")}
        if seen:
            for place, _ in disk.crashes(tmp_path / f"listed-{moment}", since=len(disk.steps)):
                left = Files(str(place / "blobs"))
                assert {name for name, _ in left.listed("")} == seen
        second.put(SECOND, BODY)
        for place, _ in disk.crashes(tmp_path / f"crashed-{moment}", since=len(disk.steps)):
            assert Files(str(place / "blobs")).get(SECOND) == BODY
        monkeypatch.undo()
        if finished:
            return
        moment += 1


def read(place: Path) -> dict[int, bytes | None]:
    """What the archive has, each message once."""
    found = [(record["seq"], body_of(record)) for record in Archive(place / "archive").read()]
    assert len(dict(found)) == len(found)
    return dict(found)


def on_disk(place: Path) -> bytes:
    """Every byte of every file of the archive, as far as it is a whole one."""
    return b"".join(gzip.decompress(path.read_bytes()) for path in place.rglob("*.gz"))


def test_an_archive_has_all_of_a_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `add` returned for may leave the database; what it did not is archived again."""
    kept: set[str] = set()
    disk = Disk(tmp_path / "disk", monkeypatch, lambda: frozenset(kept))
    archive = Archive(disk.root / "archive")
    for record in MESSAGES:
        archive.add([record])
        kept.add(str(record["seq"]))
    disk.promise()
    for place, promised in disk.crashes(tmp_path / "crashed"):
        found = read(place)
        assert promised <= {str(seq) for seq in found}
        assert found.items() <= {1: b"ann", 2: b"bob"}.items()
        Archive(place / "archive").add([with_body({"seq": 3, "headers": {}}, b"cy")])
        assert read(place) == {**found, 3: b"cy"}, "and it goes on from there"


def test_erasing_from_an_archive_loses_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is there at every moment; when `erase` has returned, no file has what was erased."""
    erased: set[str] = set()
    disk = Disk(tmp_path / "disk", monkeypatch, lambda: frozenset(erased))
    archive = Archive(disk.root / "archive")
    archive.add(MESSAGES)
    start = len(disk.steps)
    assert archive.erase(of_ann) == 1
    erased.add("ann")
    disk.promise()
    for place, promised in disk.crashes(tmp_path / "crashed", since=start):
        found = read(place)
        assert found in ({1: b"ann", 2: b"bob"}, {1: None, 2: b"bob"})
        if promised:
            assert (found[1], b"ann" in on_disk(place)) == (None, False)


def test_one_that_dies_while_it_erases_endangers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one finds its entry, removes what came before, and the machine crashes."""
    moment = 0
    while True:
        disk = Disk(tmp_path / f"disk-{moment}", monkeypatch)
        Archive(disk.root / "archive").add(MESSAGES)
        start = len(disk.steps)
        disk.kill_at(start + moment)
        with suppress(Killed):
            Archive(disk.root / "archive").erase(of_ann)
        finished = len(disk.steps) < start + moment
        dead = len(disk.steps)
        disk.kill_at(None)
        Archive(disk.root / "archive").tidy()
        Archive(disk.root / "archive").erase(of_ann)
        for place, _ in disk.crashes(tmp_path / f"crashed-{moment}", since=dead):
            assert read(place) in ({1: b"ann", 2: b"bob"}, {1: None, 2: b"bob"})
        for place, _ in disk.crashes(tmp_path / f"erased-{moment}", since=len(disk.steps)):
            assert (read(place), b"ann" in on_disk(place)) == ({1: None, 2: b"bob"}, False)
        monkeypatch.undo()
        if finished:
            return
        moment += 1


def test_what_a_row_refers_to_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Received, repeated, erased, pruned, collected: between any two steps, and whatever a crash leaves of them."""
    database = tmp_path / "inbox.db"

    def referred() -> frozenset[str]:
        """By rows that are committed, as another connection sees them."""
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT headers FROM onceward_body WHERE headers IS NOT NULL").fetchall()
        references = [split(headers)[1] for (headers,) in rows]
        return frozenset(reference.name for reference in references if reference is not None)

    with Inbox(
        f"sqlite:///{database}", settings=NOW, blobs=f"file://{tmp_path}/disk/blobs", blob_above=len(BODY)
    ) as inbox:
        inbox.migrate()
        inbox.on("t")(lambda _message, _tx: None)
        disk = Disk(tmp_path / "disk", monkeypatch, referred)
        arguments: dict[str, Any] = {"source": "s", "type": "t", "data": BODY.decode() * 2}
        first = inbox.receive(id="first", **arguments)
        inbox.receive(id="second", **arguments)
        assert inbox.receive(id="first", **arguments).status == "duplicate"
        assert inbox.receive(id="first", **arguments | {"data": BODY.decode() * 3}).status == "mismatch"
        inbox.drain()
        inbox.receive(id="third", **arguments)
        assert inbox.retention.erase(first.seq, reason="a request") == []
        inbox.retention.prune()
        assert inbox.retention.collect(older_than=timedelta(seconds=-5)) == 1
    disk.promise()
    assert {len(promised) for promised in disk.promises} == {0, 1, 2, 3}, "rows came and went meanwhile"
    for place, promised in disk.crashes(tmp_path / "crashed"):
        left = Files(str(place / "blobs"))
        for name in promised:
            assert len(left.get(name) or b"") > 2 * len(BODY)
