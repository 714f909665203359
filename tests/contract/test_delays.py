"""Messages with a time (R59), beyond the shipped suite: age, the spool, crashes in between."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pymysql
import pytest

from onceward import Inbox, Message, RetryPolicy
from onceward.domain.schedule import AT_ONCE
from onceward.flow import run_sync
from onceward.message import Delivery
from onceward.runtime.spool import delivery_of, row
from onceward.steps.membership import register, take_over_process
from onceward.steps.subscribe import fan_out
from onceward.stores.moves.claims import Claim, Claimed
from onceward.stores.mysql.address import Address
from onceward.testing.memory import MemoryStore


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def inbox(request: pytest.FixtureRequest) -> Any:
    """An inbox on each store."""
    kind = request.param
    with Inbox(MemoryStore() if kind == "memory" else request.getfixturevalue(f"{kind}_url")) as made:
        made.migrate()
        yield made


def received(inbox: Inbox, message_id: str, kind: str = "a", **more: Any) -> int:
    """Store a message of the one key."""
    return inbox.receive(source="s", id=message_id, type=kind, data={"k": 1}, **more).seq


def test_its_age_counts_from_its_time_on(inbox: Inbox) -> None:
    """A policy's maximum age is not over when the message runs for the first time, however long ago it came."""
    ran: list[int] = []
    store: Any = inbox.store
    later = [0]
    if store.dialect != "postgres":  # the clock of a server is its own
        store.clock = lambda: time.time_ns() // 1000 + later[0]

    @inbox.on("a", retry=RetryPolicy(attempts=5, first=timedelta(hours=1), max_age=timedelta(seconds=30)))
    def fail(message: Message) -> None:
        ran.append(message.attempt)
        raise ValueError("not yet")

    seq = received(inbox, "1", at=datetime.now(UTC) + timedelta(hours=1))
    if store.dialect == "postgres":
        inbox.admin.hasten(seq)
    later[0] = 3_601_000_000
    inbox.drain()
    found = inbox.admin.message(seq)
    assert found is not None
    assert (ran, found.status) == ([1], "retrying")


def test_a_claim_says_how_long_it_is_due(inbox: Inbox) -> None:
    """The age is that since its time, whenever it was received."""
    inbox.on("a", key="k")(lambda message, tx: None)  # noqa: ARG005 - it is claimed, not run
    seq = received(inbox, "1", delay=3600)
    assert inbox.admin.hasten(seq) == 1
    found = claimed(inbox)
    ((kept, _),) = found.kept
    assert kept.seq == seq
    assert seq < kept.place < 2**60, "the next number"
    assert 0 <= kept.age < 3600


def claimed(inbox: Inbox) -> Claimed:
    """What a worker claims."""
    moves = inbox.context.moves
    with inbox.store.session() as session:
        catalog = run_sync(moves.catalog.load_catalog(), session.perform)
        subscriptions = [one.id for one in catalog.subscriptions]
        worker = run_sync(register(inbox.context, process="test", host="h", pid=1, inline=False), session.perform)
        claim = Claim(worker, 7, subscriptions, limit=10, retries=10)
        return run_sync(moves.claims.claim(claim), session.perform)


def test_a_claim_that_is_given_back_leaves_it_in_its_key(inbox: Inbox) -> None:
    """It has joined: what comes afterwards waits behind it, though no worker has it."""
    ran: list[str] = []

    @inbox.on("a", key="k")
    def note(message: Message) -> None:
        ran.append(message.id)

    seq = received(inbox, "1", delay=3600)
    inbox.admin.hasten(seq)
    assert [one.seq for one, _ in claimed(inbox).kept] == [seq]
    received(inbox, "2")
    with inbox.store.session() as session:
        assert run_sync(take_over_process(inbox.context, "test", "killed by the test"), session.perform) == 1
    inbox.drain()
    assert ran == ["1", "2"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_what_another_lane_has_locked_is_not_overtaken(request: pytest.FixtureRequest, kind: str) -> None:
    """It looked at the first of a key, and did not get the key: what is due later is left for the next claim."""
    ran: list[str] = []
    url = request.getfixturevalue(f"{kind}_url")
    with Inbox(url) as inbox, closing(connected(url)) as other:
        inbox.migrate()

        @inbox.on("a", key="k")
        def note(message: Message) -> None:
            ran.append(message.id)

        seqs = [received(inbox, message_id, delay=3600) for message_id in "123"]
        for seq in reversed(seqs):
            inbox.admin.hasten(seq)
        cursor = other.cursor()
        cursor.execute("SELECT seq FROM onceward_queue WHERE seq = %s FOR UPDATE", (seqs[1],))
        inbox.drain()
        assert ran == ["3"]
        other.rollback()
        inbox.drain()
        assert ran == ["3", "2", "1"]


def connected(url: str) -> Any:
    """A connection of another program."""
    if url.startswith("postgres"):
        return psycopg.connect(url)
    return pymysql.connect(**Address.of(url).arguments(), ssl_disabled=True)


def test_an_unplaced_one_holds_up_no_key(inbox: Inbox) -> None:
    """A message of a type that is subscribed to, but not fanned out yet."""
    ran: list[str] = []
    received(inbox, "1", "b", delay=3600)
    for kind in "ab":

        @inbox.on(kind, key="k")
        def note(message: Message) -> None:
            ran.append(message.id)

    received(inbox, "2")
    found = claimed(inbox)
    assert (len(found.kept), found.unplaced) == (1, False)
    with inbox.store.session() as session:
        assert run_sync(fan_out(inbox.context), session.perform) == 1
    assert [row.status for row in inbox.admin.messages()] == ["running", "scheduled"]


@pytest.mark.parametrize("hours", [0, 1])
def test_the_spool_keeps_the_time(hours: int) -> None:
    """A delay that begins while the database is away ends by the clock of this host."""
    delivery = Delivery.of(source="s", id="1", type="a", data={}, delay=timedelta(hours=hours))
    before = time.time_ns() // 1000
    head, body, _ = row(delivery)
    back = delivery_of(head, body)
    assert back._replace(due=AT_ONCE) == delivery._replace(due=AT_ONCE)
    if not hours:
        assert back.due == AT_ONCE
    else:
        assert before <= (back.due.at or 0) - 3_600_000_000 <= time.time_ns() // 1000
