"""Effects are commands: recorded, looked at before they run, applied with "done", and never by halves unsaid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import ConfigurationError, ContractViolation, Inbox, Message, StoreUnavailable
from onceward.flow import ROLLBACK
from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_process
from onceward.stores.recording import Open
from onceward.stores.redis.requests import Ask, End
from onceward.stores.redis.transaction import READS, WRITES, AsyncRedisTransaction, RedisTransaction
from tests.recorded.service import drain_until
from tests.redis_store.conftest import NEVER_LONG, effect, effects
from tests.waiting import wait_until

HIGHEST = 2**63 - 1


def send(inbox: Inbox, *ids: str, **more: Any) -> list[int]:
    """Messages, stored; their numbers."""
    return [inbox.receive(source="test", id=one, type="order.paid", data={"id": one}, **more).seq for one in ids]


def status(inbox: Inbox, seq: int) -> str:
    found = inbox.admin.message(seq)
    assert found is not None
    return found.status


def error(inbox: Inbox, seq: int) -> str:
    found = inbox.admin.message(seq)
    assert found is not None
    return found.history[-1].error


def test_nothing_that_is_recorded_is_there_before_the_end(inbox: Inbox, client: Any) -> None:
    seen: list[Any] = []

    @inbox.on("order.paid")
    def handler(message: Message, tx: RedisTransaction) -> None:
        tx.set("state", "paid")
        tx.hset("order:7", {"paid": 1, "by": message.id})
        tx.hincrby("order:7", "paid", 2)
        tx.sadd("orders", "7", b"\xff\x00")
        tx.zadd("scores", {"7": 1.5})
        tx.xadd("log", {"id": message.id})
        tx.command("expire", "state", 1000)
        seen.append((tx.read("GET", "state"), client.get("state")))

    send(inbox, "m1")
    assert inbox.drain() == 1
    assert seen == [(None, None)]
    assert client.get("state") == "paid"
    assert client.hgetall("order:7") == {"paid": "3", "by": "m1"}
    assert (client.zscore("scores", "7"), client.xlen("log"), client.ttl("state") > 900) == (1.5, 1, True)


def test_a_handler_that_raises_has_written_nothing(inbox: Inbox, client: Any) -> None:
    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: Any) -> None:
        effect(message, tx)
        if message.attempt < 3:
            raise RuntimeError("not yet")

    (seq,) = send(inbox, "m1")
    wait_until(lambda: inbox.drain() or status(inbox, seq) == "done")
    assert effects(client) == ["m1"]


@pytest.mark.parametrize("how", ["receive", "process"])
def test_a_command_that_cannot_work_is_found_before_any_runs(inbox: Inbox, client: Any, how: str) -> None:
    """The message fails with the reason, as by any error of its handler; nothing of it is there."""
    client.set("text", "no list")

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: Any) -> None:
        effect(message, tx)
        tx.rpush("text", "x")

    getattr(inbox, how)(source="test", id="m1", type="order.paid", data={})
    while not inbox.admin.stats().dead:
        inbox.drain()
    (row,) = inbox.admin.messages(status="dead")
    assert effects(client) == []
    assert "RPUSH needs a list, and text is a string" in error(inbox, row.seq)
    assert len(inbox.admin.message(row.seq).history) == 3  # type: ignore[union-attr] # it is there
    client.delete("text")
    inbox.admin.redrive(row.seq)
    inbox.drain()
    assert (effects(client), client.lrange("text", 0, -1)) == (["m1"], ["x"])


@pytest.mark.parametrize(
    ("before", "command", "why"),
    [
        (("SET", "k", "seven"), ("INCRBY", "k", 1), "needs a number"),
        (("HSET", "k", "f", "seven"), ("HINCRBY", "k", "f", 1), "needs a number"),
        (("SADD", "k", "a"), ("HSET", "k", "f", 1), "needs a hash"),
        (("RPUSH", "k", "a"), ("ZADD", "k", 1, "a"), "needs a zset"),
    ],
)
def test_what_is_looked_at_before(inbox: Inbox, client: Any, before: Any, command: Any, why: str) -> None:
    client.execute_command(*before)

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(_message: Message, tx: Any) -> None:
        tx.set("first", 1)
        tx.command(*command)

    (seq,) = send(inbox, "m1")
    inbox.drain()
    assert (why in error(inbox, seq), client.exists("first")) == (True, 0)


def test_types_are_those_that_the_commands_before_leave(inbox: Inbox, client: Any) -> None:
    client.set("k", "text")

    @inbox.on("order.paid")
    def handler(_message: Message, tx: Any) -> None:
        tx.delete("k")
        tx.rpush("k", "a")
        tx.command("SET", "n", 5)
        tx.incrby("n", 2)

    send(inbox, "m1")
    assert inbox.drain() == 1
    assert (client.lrange("k", 0, -1), client.get("n")) == (["a"], "7")


@pytest.mark.parametrize("how", ["receive", "process"])
def test_what_fails_in_the_middle_is_partly_applied_and_never_repeated(
    inbox: Inbox, client: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An overflow is found by running it: what came before it stays, and a person must look."""
    client.set("counter", HIGHEST)

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: Any) -> None:
        effect(message, tx)
        tx.incrby("counter", 1)
        tx.set("after", "never")

    getattr(inbox, how)(source="test", id="m1", type="order.paid", data={})
    for _ in range(3):
        inbox.drain()
    (row,) = inbox.admin.messages()
    assert (row.status, effects(client), client.exists("after")) == ("dead", ["m1"], 0)
    assert row.error is not None
    assert row.error.startswith("PartlyApplied: command 2 of 3, INCRBY counter")
    assert "is partly applied" in caplog.text
    assert inbox.receive(source="test", id="m1", type="order.paid", data={}).status == "duplicate"
    inbox.admin.discard(row.seq, reason="put right by hand")


def test_of_a_group_one_is_partly_applied_and_the_others_are_done_once(inbox: Inbox, client: Any) -> None:
    client.set("counter", HIGHEST)

    @inbox.on("order.paid", group=5, retry=NEVER_LONG)
    def handler(message: Message, tx: Any) -> None:
        effect(message, tx)
        if message.id == "m2":
            tx.incrby("counter", 1)

    seqs = send(inbox, "m0", "m1", "m2", "m3", "m4")
    for _ in range(3):
        inbox.drain()
    assert [status(inbox, seq) for seq in seqs] == ["done", "done", "dead", "done", "done"]
    assert sorted(effects(client)) == ["m0", "m1", "m2", "m3", "m4"]


def test_a_key_that_is_watched_and_changes_undoes_the_run(inbox: Inbox, client: Any) -> None:
    """A read that a write depends on: the message runs again, and sees what the other has written."""
    client.set("stock", 5)
    runs: list[int] = []

    @inbox.on("order.paid")
    def handler(message: Message, tx: RedisTransaction) -> None:
        tx.watch("stock")
        stock = int(tx.read("GET", "stock"))
        runs.append(stock)
        if len(runs) == 1:
            client.set("stock", 3)
        effect(message, tx)
        tx.set("stock", stock - 1)

    (seq,) = send(inbox, "m1")
    wait_until(lambda: inbox.drain() or status(inbox, seq) == "done")
    assert (runs, client.get("stock"), effects(client)) == ([5, 3], "2", ["m1"])


def test_messages_that_watch_see_what_those_before_them_have_written(inbox: Inbox, client: Any) -> None:
    """Also those of one group: what they read is not what a neighbour has recorded."""

    @inbox.on("order.paid", group=10)
    def handler(message: Message, tx: RedisTransaction) -> None:
        effect(message, tx)
        if message.id != "m2":
            tx.watch("count")
            tx.set("count", int(tx.read("GET", "count") or 0) + 1)

    send(inbox, *(f"m{number}" for number in range(6)))
    wait_until(lambda: inbox.drain() or len(effects(client)) == 6)
    assert (client.get("count"), sorted(effects(client))) == ("5", [f"m{number}" for number in range(6)])


def test_what_cannot_work_after_a_watch_is_an_error_of_the_handler(inbox: Inbox, client: Any) -> None:
    """As without it: nothing is there, and the worker goes on with the next message."""
    client.set("text", "no list")

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: RedisTransaction) -> None:
        tx.watch("stock")
        effect(message, tx)
        if message.id == "m1":
            tx.rpush("text", "x")

    seq, _ = send(inbox, "m1", "m2")
    drain_until(inbox, lambda: inbox.admin.stats().dead == 1, "the end of its attempts")
    assert effects(client) == ["m2"]
    assert "RPUSH needs a list, and text is a string" in error(inbox, seq)


@pytest.mark.parametrize("what", ["its claim", "the functions"])
def test_what_is_lost_while_a_handler_watches_is_found_out_at_its_end(inbox: Inbox, client: Any, what: str) -> None:
    """The process was declared dead meanwhile, or the server has lost our library: nothing is there; it runs again."""
    runs: list[str] = []

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: RedisTransaction) -> None:
        tx.watch("stock")
        effect(message, tx)
        runs.append(message.id)
        if len(runs) == 1 and what == "its claim":
            (name,) = {one.process for one in inbox.admin.workers()}
            perform(inbox.store, lambda: take_over_process(inbox.context, name, "as the test asks"))
        elif len(runs) == 1:
            client.execute_command("FUNCTION", "FLUSH")

    (seq,) = send(inbox, "m1")
    drain_until(inbox, lambda: status(inbox, seq) == "done", "the second run")
    assert (effects(client), runs) == (["m1"], ["m1", "m1"])


def test_a_server_that_refuses_the_end_of_a_transaction_does_not_queue_what_comes_next(
    inbox: Inbox, client: Any
) -> None:
    """It is out of memory when the command after MULTI comes; the connection is used for other commands."""
    store: Any = inbox.store
    with store.session() as session:
        session.perform(Open())
        with session.lent() as tx:
            tx.watch("stock")
            tx.set("state", "paid")
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreUnavailable):
                session.perform(End("apply"))
        finally:
            client.config_set("maxmemory", 0)
        session.perform(ROLLBACK)
        version, _ = session.perform(Ask("version", reads=True))
    assert (version, client.get("state")) == (client.hget("onceward_meta", "version"), None)


def test_a_command_of_more_words_than_lua_takes_is_refused_at_its_line(inbox: Inbox, client: Any) -> None:
    """It would fail in the middle, when the commands before it are applied and cannot be undone."""

    @inbox.on("order.paid", retry=NEVER_LONG)
    def handler(message: Message, tx: RedisTransaction) -> None:
        effect(message, tx)
        tx.sadd("many", *range(6999 if message.id == "fits" else 9000))

    seq, _ = send(inbox, "m1", "fits")
    drain_until(inbox, lambda: inbox.admin.stats().dead == 1, "the end of its attempts")
    assert (effects(client), client.scard("many")) == (["fits"], 6999)
    assert "tx cannot record SADD 'many' with 9001 words" in error(inbox, seq)


def test_async_handlers_watch_and_read_awaited(address: str, client: Any) -> None:
    client.set("stock", 5)
    runs: list[int] = []

    async def play() -> None:
        inbox = Inbox(address)
        inbox.migrate()

        @inbox.on("order.paid")
        async def handler(message: Message, tx: AsyncRedisTransaction) -> None:
            await tx.watch("stock")
            stock = int(await tx.read("GET", "stock"))
            runs.append(stock)
            if len(runs) == 1:
                client.set("stock", 3)
            effect(message, tx)
            tx.set("stock", stock - 1)

        await inbox.areceive(source="test", id="m1", type="order.paid", data={})
        while not effects(client):
            await inbox.adrain()
        await inbox.aclose()

    asyncio.run(play())
    assert (runs, client.get("stock"), effects(client)) == ([5, 3], "2", ["m1"])


@pytest.mark.parametrize("words", [("FLUSHALL",), ("GET", "k"), ("EVAL", "return 1", 0), ("SET",)])
def test_only_commands_whose_keys_are_known_can_be_recorded(inbox: Inbox, words: Any) -> None:
    inbox.on("order.paid")(lambda _message, tx: tx.command(*words))
    (seq,) = send(inbox, "m1")
    inbox.drain()
    assert (status(inbox, seq), ContractViolation.__name__ in error(inbox, seq)) == ("dead", True)


def test_what_writes_cannot_be_read_with(inbox: Inbox) -> None:
    inbox.on("order.paid")(lambda _message, tx: tx.read("SET", "k", "v") and None)
    (seq,) = send(inbox, "m1")
    inbox.drain()
    assert "tx cannot read with SET" in error(inbox, seq)
    assert not WRITES & READS


def test_a_callers_transaction_is_refused_with_the_reason(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="no transactions of a caller's own"):
        inbox.receive(source="test", id="m1", type="order.paid", data={}, tx=object())


def test_a_dry_run_shows_the_commands_and_applies_none(inbox: Inbox, client: Any) -> None:
    inbox.on("order.paid")(effect)
    (seq,) = send(inbox, "m1")
    found = inbox.admin.dry_run(seq)
    assert [one.sql for one in found.statements] == ["RPUSH effects m1"]
    assert (effects(client), status(inbox, seq)) == ([], "due")
