"""The archive (R32): finished messages go to files before they go; what is there can be read, checked, replayed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import Message, Reject, Settings
from onceward.blobs.files import Files
from onceward.blobs.s3 import S3
from onceward.domain.archived import body_of, with_body
from onceward.errors import ConfigurationError
from onceward.retention import archive, retention
from onceward.retention.archive import Archive
from onceward.retention.replay import replay
from onceward.steps import archive as archiving_steps
from tests.contract import behaviour as acts
from tests.contract.harness import SOURCE, Shop, arguments
from tests.retention import places
from tests.retention.places import Place
from tests.retention.test_prune import rotate_partition
from tests.servers import FaultProxy

ARCHIVING = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(0), maintenance=None, archive_first=True)


@pytest.fixture
def archiving(store_url: str) -> Iterator[Shop]:
    """A shop whose bodies go only through the archive."""
    with Shop(store_url, "def", settings=ARCHIVING) as shop:
        shop.handle(behaviour=acts.returning({"n": 1}))
        shop.handle("bad", acts.raising(lambda: Reject("no")))
        yield shop


def ids(folder: Path) -> list[str]:
    return [record["id"] for record in Archive(folder).read()]


def test_finished_messages_move_to_files_that_anything_can_read(archiving: Shop, tmp_path: Path) -> None:
    """Gzip and JSON Lines; everything about the message is there; the dead one stays in the database."""
    shop = archiving
    shop.receive("a", data={"x": "ü"}, headers={"h": "1"}, key="k")
    shop.receive("b", body=b"\xff\x00")
    shop.handle("raw", raw=True)
    shop.receive("c", "raw", body=b"\xff\x00")
    shop.receive("dead", "bad")
    shop.drain()
    assert shop.status("b") == "dead", "what is no JSON has no handler"
    moved: list[int] = []
    assert shop.inbox.retention.archive(tmp_path / "archive", progress=moved.append) == 2
    assert moved == [2]
    (file,) = Archive(tmp_path / "archive").files()
    with gzip.open(tmp_path / "archive" / file.name, "rt", encoding="utf-8") as lines:
        first, second = [json.loads(line) for line in lines]
    assert first | {"received_at": "", "seq": 0} == {
        "seq": 0,
        "source": SOURCE,
        "id": "a",
        "type": "order.paid",
        "version": 1,
        "key": "k",
        "key_given": True,
        "position": None,
        "consumer": "default",
        "received_at": "",
        "sha256": shop.detail("a").hash,
        "headers": {"h": "1"},
        "to": None,
        "cause": None,
        "result": {"n": 1},
        "body": '{"x":"ü"}',
    }
    assert body_of(second) == b"\xff\x00"
    assert (file.messages, file.first_seq) == (2, first["seq"])
    assert shop.count("body") == 2
    assert (tmp_path / "archive" / file.name).stat().st_mode & 0o077 == 0


def test_nothing_goes_that_is_not_archived(archiving: Shop, tmp_path: Path) -> None:
    """With `archive_first` neither a prune nor a partition drop takes a body that no file has."""
    shop = archiving
    shop.receive_many(arguments(f"m{number}") for number in range(5))
    shop.drain()
    rotate_partition(shop)
    shop.inbox.retention.prune()
    assert (shop.count("body"), shop.count("ledger")) == (5, 5)
    shop.inbox.retention.archive(tmp_path)
    pruned = shop.inbox.retention.prune()
    assert (shop.count("body"), shop.count("ledger"), pruned.messages) == (0, 0, 5)
    assert pruned.partitions == (1 if shop.dialect == "postgres" else 0)
    assert sorted(ids(tmp_path)) == [f"m{number}" for number in range(5)]


def test_several_files_and_a_second_time(archiving: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have a size; what is archived is not archived again."""
    monkeypatch.setattr(retention, "FILE_MESSAGES", 4)
    monkeypatch.setattr(retention, "BATCH", 2)
    shop = archiving
    shop.receive_many(arguments(f"m{number}") for number in range(10))
    shop.drain()
    assert shop.inbox.retention.archive(tmp_path) == 10
    assert [file.messages for file in Archive(tmp_path).files()] == [4, 4, 2]
    assert [file.edition for file in Archive(tmp_path).files()] == [1, 1, 1]
    assert shop.inbox.retention.archive(tmp_path) == 0
    assert ids(tmp_path) == [f"m{number}" for number in range(10)]


@pytest.mark.parametrize("step", ["before the rename", "before the manifest", "before the deletion"])
def test_dying_at_every_step_loses_nothing(
    archiving: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In a file, in the database, or in both; reading gives it once; what nobody names is tidied up."""
    shop, folder = archiving, tmp_path / "archive"
    shop.receive_many(arguments(f"m{number}") for number in range(3))
    shop.drain()
    place: Any = {"before the rename": (Path, "rename"), "before the manifest": (Archive, "_publish")}.get(
        step, (archiving_steps, "drop_archived")
    )

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place[0], place[1], dies)
        with pytest.raises(KeyboardInterrupt):
            shop.inbox.retention.archive(folder)
    assert shop.count("body") == 3
    assert len(ids(folder)) == (3 if step == "before the deletion" else 0)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert shop.inbox.retention.archive(folder) == 3
    assert shop.count("body") == 0
    assert sorted(ids(folder)) == ["m0", "m1", "m2"]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left <= files, "it may be about to get its entry"
    monkeypatch.setattr(archive, "GRACE", timedelta(0))
    Archive(folder).tidy()
    named = {name for file in Archive(folder).files() for name in (file.name, file.entry)}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == named


def test_a_changed_or_lost_file_is_refused(archiving: Shop, tmp_path: Path) -> None:
    """The manifest has its checksum."""
    archiving.receive("a")
    archiving.drain()
    archiving.inbox.retention.archive(tmp_path)
    (file,) = Archive(tmp_path).files()
    path = tmp_path / file.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="checksum differs"):
        list(Archive(tmp_path).read())
    path.unlink()
    with pytest.raises(ConfigurationError, match="has lost"):
        replay(archiving.inbox, tmp_path)


def test_replay_runs_what_was_forgotten_and_again_runs_everything(archiving: Shop, tmp_path: Path) -> None:
    """A remembered id is a duplicate; a label makes messages of their own, once."""
    shop = archiving
    shop.receive("a", data={"n": 1}, headers={"h": "1"})
    shop.receive("b", data={"n": 2}, key="k")
    shop.drain()
    shop.inbox.retention.archive(tmp_path)
    assert replay(shop.inbox, tmp_path) == {"duplicate": 2}
    shop.inbox.retention.prune()
    shop.sql("DELETE FROM effects")
    assert replay(shop.inbox, tmp_path, key="k") == {"accepted": 1}
    shop.drain()
    assert shop.effects() == ["b"]
    told: list[int] = []
    assert replay(shop.inbox, tmp_path, again="audit", progress=told.append) == {"accepted": 2}
    assert told == [2]
    assert replay(shop.inbox, tmp_path, again="audit") == {"duplicate": 2}
    shop.drain()
    assert shop.effects() == ["a#audit", "b", "b#audit"]
    with pytest.raises(ConfigurationError, match="label"):
        replay(shop.inbox, tmp_path, again="")


def test_outgoing_messages_are_archived_and_not_replayed(archiving: Shop, tmp_path: Path) -> None:
    """They were sent once; replaying is about what came in."""
    shop = archiving

    def sends(message: Message) -> acts.Steps:
        yield acts.wrote(message)
        message.send("told", {"n": 1})

    shop.handle("tell", sends)
    shop.receive("a", "tell")
    shop.drain()
    (out,) = shop.inbox.admin.messages(outgoing=True)
    shop.inbox.admin.discard(out.seq)
    assert shop.inbox.retention.archive(tmp_path) == 2
    assert replay(shop.inbox, tmp_path) == {"duplicate": 1}


def test_erasing_reaches_the_archive(archiving: Shop, tmp_path: Path) -> None:
    """R34: by field, key or id; ids and hashes stay; the old file is gone."""
    shop = archiving
    shop.receive("a", data={"mail": "ann"}, key="ann")
    shop.receive("b", data={"mail": "bob"}, key="bob")
    shop.receive("c", data={"mail": "cy"})
    shop.drain()
    shop.inbox.retention.archive(tmp_path)
    before = Archive(tmp_path).files()
    assert shop.inbox.retention.erase_archived(tmp_path, field=("mail", "ann")) == 1
    assert shop.inbox.retention.erase_archived(tmp_path, field=("mail", "ann")) == 0
    assert shop.inbox.retention.erase_archived(tmp_path, key="bob") == 1
    assert shop.inbox.retention.erase_archived(tmp_path, source=SOURCE, id="c") == 1
    records = list(Archive(tmp_path).read())
    assert [(record["id"], record["body"], record["key"]) for record in records] == [
        ("a", None, None),
        ("b", None, None),
        ("c", None, None),
    ]
    assert [record["sha256"] for record in records] == [shop.detail(name).hash for name in "abc"]
    text = "".join(gzip.decompress(path.read_bytes()).decode() for path in tmp_path.rglob("*.gz"))
    assert "ann" not in text
    assert "bob" not in text
    assert not (tmp_path / before[0].name).exists()
    assert replay(shop.inbox, tmp_path, again="x") == {}
    assert shop.inbox.retention.erase_archived(tmp_path / "none", key="k") == 0


@pytest.mark.parametrize("forgotten", [False, True])
def test_erasing_an_id_reaches_what_its_handler_sent(archiving: Shop, tmp_path: Path, *, forgotten: bool) -> None:
    """D43: whichever file it is in, and whether or not the tables still remember what it was sent for."""
    shop = archiving

    def sends(message: Message) -> acts.Steps:
        yield acts.wrote(message)
        message.send("told", {"mail": message.data})

    shop.handle("tell", sends)
    for name in ("ann", "bob"):
        shop.receive(name, "tell", data=name)
    shop.drain()
    shop.inbox.retention.archive(tmp_path)
    for out in shop.inbox.admin.messages(outgoing=True):
        shop.inbox.admin.discard(out.seq)
    shop.inbox.retention.archive(tmp_path)
    assert len(Archive(tmp_path).files()) == 2
    if forgotten:
        assert shop.inbox.retention.prune().messages == 4
    assert shop.inbox.retention.erase_archived(tmp_path, source=SOURCE, id="ann") == 2
    text = "".join(gzip.decompress(path.read_bytes()).decode() for path in tmp_path.rglob("*.gz"))
    assert '\\"ann\\"' not in text
    assert text.count('\\"bob\\"') == 2


@pytest.mark.parametrize("body", [b"", b"text", "ü\r\n\u2028".encode(), b"\xff\xfe", None])
def test_a_body_comes_back_as_it_was(body: bytes | None, tmp_path: Path) -> None:
    """Text stays readable, anything else is base64, nothing is nothing."""
    Archive(tmp_path).add([with_body({"seq": 1}, body)])
    assert [body_of(record) for record in Archive(tmp_path).read()] == [body]


@pytest.fixture(params=["folder", "bucket"])
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where an archive may be."""
    if request.param == "folder":
        yield places.files(tmp_path / "archive")
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = request.getfixturevalue("moto_server")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield places.bucket(server, proxy)


def test_an_archive_is_in_a_folder_or_in_a_bucket(sqlite_url: str, place: Place) -> None:
    """R32: one code for both: archived, read, replayed, erased; and a bucket has no half a file either."""
    with Shop(sqlite_url, "def", settings=ARCHIVING) as shop:
        shop.handle()
        shop.receive("a", data={"mail": "ann"})
        shop.receive("b", data={"mail": "bob"})
        shop.drain()
        assert shop.inbox.retention.archive(place.url) == 2
        (before,) = Archive(place.url).files()
        assert place.names() == [before.entry, before.name]
        assert shop.inbox.retention.erase_archived(place.url, field=("mail", "ann")) == 1
        (after,) = Archive(place.url).files()
        assert (after.place, after.edition) == (before.place, 2)
        assert place.names() == [after.entry, after.name]
        assert [one["body"] for one in Archive(place.url).read()] == [None, '{"mail":"bob"}']
        assert replay(shop.inbox, place.url, again="x") == {"accepted": 1}
        shop.drain()


def test_of_two_that_erase_at_once_neither_undoes_the_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """R34: the second begins anew with what the first has left; what it had written is gone."""
    Archive(place.url).add([with_body({"seq": seq, "headers": {}}, name) for seq, name in ((1, b"ann"), (2, b"bob"))])
    publish = Archive._publish

    def beaten(self: Archive, file: archive.ArchiveFile) -> bool:
        monkeypatch.setattr(Archive, "_publish", publish)
        assert Archive(place.url).erase(lambda one: one["seq"] == 1) == 1
        return publish(self, file)

    monkeypatch.setattr(Archive, "_publish", beaten)
    assert Archive(place.url).erase(lambda one: one["seq"] == 2) == 1
    assert [body_of(one) for one in Archive(place.url).read()] == [None, None]
    (file,) = Archive(place.url).files()
    assert (file.edition, place.names()) == (3, [file.entry, file.name])


def test_an_answer_that_was_lost_loses_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry was made, and a repetition of the request finds it there: it is our own."""
    Archive(place.url).add([with_body({"seq": 1, "headers": {}}, b"ann"), with_body({"seq": 2, "headers": {}}, b"bob")])
    for kind in (Files, S3):
        create = kind.create

        def twice(self: Any, name: str, body: bytes, create: Any = create) -> bool:
            create(self, name, body)
            return bool(create(self, name, body))

        monkeypatch.setattr(kind, "create", twice)
    assert Archive(place.url).erase(lambda one: one["seq"] == 1) == 1
    assert [body_of(one) for one in Archive(place.url).read()] == [None, b"bob"]


def test_large_bodies_end_a_file_sooner(archiving: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written in one piece, so it must fit into memory."""
    monkeypatch.setattr(retention, "FILE_BYTES", 1000)
    archiving.receive_many(arguments(f"m{number}", more={"data": "x" * 600}) for number in range(5))
    archiving.drain()
    assert archiving.inbox.retention.archive(tmp_path) == 5
    assert [file.messages for file in Archive(tmp_path).files()] == [2, 2, 1]
