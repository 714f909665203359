"""The claim check (R10): large bodies in files and in S3, for every way a message takes, and whatever goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onceward import Inbox, InvalidMessage, Message, Settings, StoreUnavailable
from onceward.admin.doctor import Finding, examine
from onceward.blobs.protocol import open_blobs
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival
from onceward.domain import payload
from onceward.domain.reference import HEADER
from onceward.errors import ConfigurationError
from onceward.message import Delivery
from onceward.retention import retention
from onceward.retention.archive import Archive
from onceward.retention.replay import replay
from tests.contract import behaviour as acts
from tests.contract.harness import Shop, arguments
from tests.contract.test_outages import COMMIT
from tests.outbox.post import Post
from tests.retention.conftest import NOW
from tests.retention.places import Place, bucket, files
from tests.servers import FaultProxy
from tests.waiting import wait_until

AT_ONCE = timedelta(seconds=-5)  # the clocks of a store and ours are not the same
LARGE = "x" * 500
RUNNING = Settings(
    body_retention=timedelta(0),
    dedupe_retention=timedelta(0),
    maintenance=timedelta(seconds=1),
    lease=timedelta(seconds=1),
)


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """A blob store of each kind."""
    if request.param == "files":
        yield files(tmp_path / "blobs")
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = request.getfixturevalue("moto_server")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield bucket(server, proxy)


@pytest.fixture
def shop(store_url: str, place: Place) -> Iterator[Shop]:
    """A shop whose large bodies are elsewhere: `def` handlers with files, `async def` with S3."""
    kind = "async" if place.folder is None else "def"
    with Shop(store_url, kind, settings=NOW, blobs=place.url, blob_above=200) as shop:  # type: ignore[arg-type]
        yield shop


def large(label: str, **more: Any) -> dict[str, Any]:
    """The data of a message that is too large for a row."""
    return {"id": label, "text": LARGE, **more}


def seen(into: list[Message]) -> acts.Behaviour:
    """A handler that keeps what it was given."""

    def behaviour(message: Message) -> acts.Steps:
        into.append(message)
        yield acts.wrote(message)

    return behaviour


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_large_body_is_elsewhere_and_nobody_notices(store_url: str, place: Place, kind: Any) -> None:
    """The row has a reference; key, handler, detail and copies are as for any other message."""
    messages: list[Message] = []
    with Shop(store_url, kind, settings=NOW, blobs=place.url, blob_above=200) as shop:
        shop.handle(behaviour=seen(messages), key="customer.id")
        for way in ("receive", "receive_many", "process", "transaction"):
            more: dict[str, Any] = {"data": large(way, customer={"id": 7}), "headers": {"h": "1"}}
            before = place.names()
            if way == "receive_many":
                (receipt,) = shop.receive_many([arguments(way, more=more)])
            elif way == "transaction":
                with shop.inbox.transaction() as tx:
                    receipt = shop.inbox.receive(tx=tx, **arguments(way, more=more))
            else:
                receipt = getattr(shop, way)(way, **more)
            ((headers, body),) = shop.sql(f"SELECT headers, body FROM {shop.prefix}body WHERE seq = {receipt.seq}")
            (name,) = set(place.names()) - set(before)
            assert (bytes(body), name in headers) == (b"", True)
            assert shop.drain() == (way != "process")
            message = messages[-1]
            assert (message.data, message.key, dict(message.headers)) == (more["data"], "7", {"h": "1"})
            detail = shop.detail(receipt.seq)
            assert (detail.body, detail.headers, detail.blob) == (message.body, {"h": "1"}, name)
            assert detail.hash == Delivery.of(**arguments(way, more=more)).hash.hex()
            again = shop.process if way == "process" else shop.receive
            assert again(way, **more).status == "duplicate"
            assert len(place.names()) == len(before) + 1, "what was written for a copy is removed again"
        assert shop.effects() == ["process", "receive", "receive_many", "transaction"]


def test_small_bodies_stay_in_their_rows(shop: Shop, place: Place) -> None:
    """The threshold is what a row may have."""
    shop.handle(raw=True)
    shop.receive("small", body=b"x" * 200)
    shop.receive("large", body=b"x" * 201)
    assert len(place.names()) == 1
    assert shop.drain() == 2


def test_consumers_share_one_blob(shop: Shop, place: Place) -> None:
    """Each has its row; the body is there until the last of them is erased."""
    for consumer in ("a", "b"):
        shop.handle(consumer=consumer)
    receipt = shop.receive("m1", data=large("m1", email="ann@example.com"))
    assert len(place.names()) == 1
    assert shop.drain() == 2
    first, second = shop.inbox.retention.personal(field=("email", "ann@example.com"))
    assert first.seq == receipt.seq
    assert shop.inbox.retention.erase(first.seq, reason="a request") == []
    assert len(place.names()) == 1
    assert shop.inbox.retention.erase(second.seq, reason="a request") == []
    assert place.names() == []
    assert shop.detail(second.seq).body is None
    assert shop.receive("m1", data=large("m1", email="ann@example.com")).status == "duplicate"


def test_a_type_that_nobody_handles_yet_keeps_its_body_in_the_row(shop: Shop, place: Place) -> None:
    """Its key is in the body, and is looked for when somebody comes to handle it."""
    shop.receive("m1", data=large("m1", k=1))
    messages: list[Message] = []
    shop.handle(behaviour=seen(messages), key="k")
    assert shop.drain() == 1
    assert [message.key for message in messages] == ["1"]
    shop.inbox.retention.collect(older_than=AT_ONCE)
    assert place.names() == []


def test_other_bytes_under_a_known_id(shop: Shop, place: Place) -> None:
    """The case has both bodies; accepted as new, the second runs."""
    messages: list[Message] = []
    shop.handle(behaviour=seen(messages), key="k")
    shop.receive("m1", data=large("m1", k=1))
    shop.drain()
    (name,) = place.names()
    assert shop.receive("m1", data=large("m1", k=2)).status == "mismatch"
    assert place.names() == [name]
    (case,) = shop.inbox.admin.quarantine()
    assert case.differences == (("k", 1, 2),)
    assert shop.inbox.admin.resolve(case.case, "accept-as-new")
    shop.drain()
    assert [message.key for message in messages] == ["1", "2"]


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_body_that_is_lost(shop: Shop, place: Place, damage: str) -> None:
    """Dead at once, and the error says which blob; restored and redriven it runs."""
    shop.handle()
    shop.receive("m1", data=large("m1"))
    (name,) = place.names()
    body = place.store.get(name)
    assert body is not None
    if damage == "missing":
        place.store.delete(name)
    else:
        place.replace(name, body[:-1] + b"!")
    shop.drain()
    assert shop.status("m1") == "dead"
    assert name in shop.error("m1")
    assert "redrive" in shop.error("m1")
    assert shop.detail("m1").body is None
    assert name in (shop.detail("m1").body_problem or "")
    place.replace(name, body)
    shop.inbox.admin.redrive(shop.seqs["m1"])
    assert shop.drain() == 1
    assert shop.effects() == ["m1"]


def test_the_blob_store_is_away_when_a_body_is_wanted(
    shop: Shop, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The message waits, uncharged, and what follows it in its key does too; others go on."""
    shop.handle(key="k")
    shop.receive("m1", data=large("m1", k=1))
    shop.receive("m2", data={"id": "m2", "k": 1})
    shop.receive("m3", data={"id": "m3", "k": 2})
    with place.away():
        shop.drain()
        assert shop.effects() == ["m3"]
        assert shop.status("m1") in {"retrying", "due"}  # its pause may be over by now
        assert shop.status("m2") == "waiting"
        assert "wait until it works again" in caplog.text
        assert shop.inbox.admin.message(shop.seqs["m1"]).body is None  # type: ignore[union-attr]
        with pytest.raises(StoreUnavailable):
            shop.inbox.retention.personal(field=("id", "m1"))
        shop.inbox.retention.prune()
        if place.proxy is not None:  # a folder that is not there has nothing to collect
            assert "stay for now" in caplog.text
    shop.finish()
    assert [name for (name,) in shop.sql("SELECT message_id FROM effects")] == ["m3", "m1", "m2"]
    assert shop.detail("m1").history == ()


def test_the_blob_store_is_away_when_a_body_comes(store_url: str, place: Place, tmp_path: Path) -> None:
    """Not received, so it is not acknowledged; with a spool it waits there, whole."""
    with Shop(store_url, "def", settings=NOW, blobs=place.url, blob_above=200) as shop:
        shop.handle()
        with place.away():
            for way in (shop.receive, shop.process):
                with pytest.raises(StoreUnavailable, match="cannot write the blob"):
                    way("m1", data=large("m1"))
        assert shop.count("ledger") == 0
        with shop.visitor(settings=NOW, blobs=place.url, blob_above=200, spool=tmp_path / "spool") as spooling:
            spooling.handle()
            with place.away():
                assert spooling.receive("m1", data=large("m1")).status == "spooled"
            spooling.inbox.retention.drain_spool()
            wait_until(lambda: not spooling.inbox.retention.spooled)  # a thread of its own may be at it already
        assert shop.drain() == 1
        assert len(place.names()) == 1


def test_the_doctor_tries_the_blob_store(shop: Shop, place: Place) -> None:
    def found() -> Finding:
        (finding,) = [finding for finding in examine(shop.inbox) if "bodies of more than 200 bytes" in finding.what]
        return finding

    assert found().level == "ok"
    assert place.names() == []
    with place.away():
        assert (found().level, "cannot write the blob" in found().what) == ("error", True)


def test_a_program_without_the_blob_store(shop: Shop) -> None:
    """It leaves the message to those that have one."""
    shop.handle()
    shop.receive("m1", data=large("m1"))
    with shop.visitor(settings=NOW) as poor:
        poor.handle()
        poor.drain()
        assert poor.runs["m1"] == 0
        assert "Inbox(blobs=...)" in (poor.inbox.admin.message(shop.seqs["m1"]).body_problem or "")  # type: ignore[union-attr]
    shop.finish()
    assert shop.effects() == ["m1"]


@pytest.mark.parametrize("header", [HEADER, "Onceward-Blob"])
def test_a_stranger_cannot_refer_to_a_body(header: str) -> None:
    """Refused from callers, left out of what a broker brings."""
    with pytest.raises(InvalidMessage, match="onceward's own"):
        Delivery.of(source="s", id="1", type="t", headers={header: "folder/2026/01/01/other 1 00"})
    arrival = Arrival(body=b"{}", position="1", headers={header: "x", "id": "1"}, handle=None)
    assert Envelope("s", id="header:id", type="=t").message(arrival)["headers"] == {"id": "1"}


def test_what_is_pruned_is_collected(shop: Shop, place: Place, sqlite_url: str) -> None:
    """What a message refers to stays, as does what is young, and what belongs to others."""
    shop.handle()
    shop.receive("old", data=large("old"))
    shop.drain()
    shop.receive("new", data=large("new"))
    with Inbox(sqlite_url + "2", blobs=place.url, blob_above=200) as other:
        other.migrate()
        other.on("t")(lambda _message, _tx: None)
        other.receive(source="s", id="1", type="t", data=large("theirs"))
        orphan = f"{other.context.large.folder}/2026/01/01/of-theirs"
        place.store.put(orphan, b"")
        place.store.put(f"{shop.inbox.context.large.folder}/2026/01/01/of-ours", b"")
        shop.inbox.retention.prune()
        assert len(place.names()) == 5, "nothing is old enough yet"
        assert shop.inbox.retention.collect(older_than=AT_ONCE) == 2
        assert other.retention.collect(older_than=AT_ONCE) == 1
        assert len(place.names()) == 2
    assert shop.drain() == 1


def test_a_body_that_is_not_kept(shop: Shop) -> None:
    """With `keep_body=False` the reference goes with the message's success, and the blob with the next collection."""
    shop.handle(keep_body=False)
    shop.receive("m1", data=large("m1"), headers={"h": "1"})
    shop.drain()
    shop.process("m2", data=large("m2"))
    assert (shop.detail("m1").blob, shop.detail("m1").body, shop.detail("m1").headers) == (None, None, {"h": "1"})
    assert shop.detail("m2").body is None
    assert shop.inbox.retention.collect(older_than=AT_ONCE) == 2


def test_archived_and_replayed(shop: Shop, place: Place, tmp_path: Path) -> None:
    """The file has the whole body, and a replay puts it away anew; a lost one does not stop the archive."""
    shop.handle()
    for name in ("m1", "m2"):
        shop.receive(name, data=large(name))
    shop.drain()
    lost = shop.detail("m2").blob
    assert lost is not None
    place.store.delete(lost)
    assert shop.inbox.retention.archive(tmp_path / "archive") == 2
    whole, empty = Archive(tmp_path / "archive").read()
    assert LARGE in whole["body"]
    assert HEADER not in whole["headers"]
    assert empty["body"] is None
    assert shop.inbox.retention.collect(older_than=AT_ONCE) == 1
    assert replay(shop.inbox, tmp_path / "archive", again="now") == {"accepted": 1}
    assert shop.drain() == 1
    assert shop.effects() == ["m1", "m1#now", "m2"]


@pytest.mark.parametrize("way", ["receive", "process", "send"])
def test_what_is_sent_may_be_large(shop: Shop, place: Place, way: str) -> None:
    """By a handler or by the program; the sink is given all of it."""
    post = Post()
    shop.inbox.add_sink("default", post.sink(shop.kind))

    def sends(message: Message) -> acts.Steps:
        message.send("shipped", large("out", name="out"))
        yield acts.wrote(message)

    shop.handle(behaviour=sends)
    if way == "send":
        shop._call("send", "shipped", large("out", name="out"))
    else:
        getattr(shop, way)("m1")
    shop.drain()
    assert len(place.names()) == 1
    (message,) = post.delivered
    assert payload.decode(message.body) == large("out", name="out")


def test_the_blob_store_is_away_when_a_handler_sends(shop: Shop, place: Place) -> None:
    """Rolled back and tried again, uncharged; a group goes on without it."""

    def sends(message: Message) -> acts.Steps:
        yield acts.wrote(message)
        if message.id in {"m1", "m4"}:
            message.send("shipped", large("out", name="out"))

    shop.handle(behaviour=sends)
    shop.receive_many(arguments(f"m{number}") for number in range(3))
    with place.away():
        shop.drain()
        assert shop.effects() == ["m0", "m2"]
        with pytest.raises(StoreUnavailable):
            shop.process("m4")
    shop.finish()
    assert shop.effects() == ["m0", "m1", "m2"]
    ((charged,),) = shop.sql(f"SELECT count(*) FROM {shop.prefix}attempt")
    assert charged == 0
    assert len(place.names()) == 1


def test_a_copy_that_is_our_own(proxied_postgres_url: str, postgres_proxy: FaultProxy, tmp_path: Path) -> None:
    """The answer of the commit is lost and the receive repeated: the blob that its own row refers to stays."""
    place = files(tmp_path / "blobs")
    with Shop(proxied_postgres_url, "def", settings=NOW, blobs=place.url, blob_above=200) as shop:
        shop.handle()
        shop.receive("first", data=large("first"))
        fresh = shop.another(blobs=place.url, blob_above=200)  # it has not prepared its statements yet
        fresh.inbox.context.large.folder = shop.inbox.context.large.folder
        fresh.receive("small")
        postgres_proxy.drop_reply_after(COMMIT)
        assert fresh.receive("m1", data=large("m1")).status == "accepted"
        assert postgres_proxy.hits == 1
        assert len(place.names()) == 2
        assert shop.drain() == 3


def test_who_can_read_the_files(shop: Shop, place: Place) -> None:
    """Their owner only; and what was cut off while it was written is collected like everything else."""
    shop.handle()
    shop.receive("m1", data=large("m1"))
    if place.folder is not None:
        (path,) = (path for path in place.folder.rglob("*") if path.is_file())
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        path.with_name("torn.part").write_bytes(b"half")
        assert shop.inbox.retention.collect(older_than=AT_ONCE) == 1
        assert path.exists()


@pytest.mark.parametrize(
    "url", ["file://relative/path", "file:relative", "ftp://x/y", "s3:///nothing", "s3://bucket/?secret=1", "blobs"]
)
def test_where_blobs_cannot_be(url: str) -> None:
    """Said at once, with what can be."""
    with pytest.raises(ConfigurationError, match="file:///path"):
        open_blobs(url)


def test_running_workers_archive_and_collect(store_url: str, place: Place, tmp_path: Path) -> None:
    """What is old is in files before it goes; then its blobs go too. One process at a time does each."""
    folder = tmp_path / "archive"
    options: dict[str, Any] = {"settings": RUNNING, "blobs": place.url, "blob_above": 200, "archive": folder}
    with Shop(store_url, "def", **options) as shop, mock.patch.object(retention, "GRACE", AT_ONCE):
        shop.handle()
        shop.receive_many(arguments(f"m{number}", more={"data": large(f"m{number}")}) for number in range(3))
        shop.drain()
        with mock.patch.object(retention, "TURN_MESSAGES", 2), mock.patch.object(retention, "BATCH", 2), shop.running():
            wait_until(lambda: shop.count("body") == 0, message="everything archived")
            wait_until(lambda: shop.count("ledger") == 0, message="everything forgotten")
            shop.sql(f"UPDATE {shop.prefix}maintenance SET due_at = 0")
            wait_until(lambda: not place.names(), message="every blob collected")
        files_of = Archive(folder).files()
        assert [file.messages for file in files_of] == [2, 1]
        assert [LARGE in record["body"] for record in Archive(folder).read()] == [True] * 3


def test_an_archive_that_cannot_be_written(store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said in the log; nothing goes, and the worker works on."""
    (tmp_path / "taken").write_text("a file")
    with Shop(store_url, "def", settings=RUNNING, archive=tmp_path / "taken") as shop:
        shop.handle()
        shop.receive("m1")
        with shop.running():
            wait_until(lambda: "archive is postponed: cannot" in caplog.text, message="the warning")
            shop.receive("m2")
            wait_until(lambda: shop.effects() == ["m1", "m2"], message="both handled")
        shop.inbox.retention.prune()
        assert shop.count("body") == 2
