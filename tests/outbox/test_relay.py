"""The relay: at least once, in order per destination and key, under one id (R25; HZ-80 to HZ-84)."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Message, Reject, Retry, RetryPolicy, Settings
from onceward.brokers.protocol import Sink
from onceward.testing.broker_suite.sinks import number_of, outgoing, send
from tests.contract.harness import Kind, Shop
from tests.nursery import Child, Nursery
from tests.order.conftest import everywhere
from tests.outbox.post import LATER, Post, published, sending
from tests.waiting import wait_until


@everywhere
def test_what_is_sent_is_published_and_done(shop: Shop, post: Post) -> None:
    """By the sink of its name, or the default one; with everything the sender said; and it can be seen."""
    warehouse = Post()
    shop.inbox.add_sink("warehouse", warehouse.sink(shop.kind))
    shop.handle(behaviour=sending("a", to="warehouse", key={"order": 7}, version=3, headers={"x": "y"}))
    shop.receive("m1")
    send(shop, "b")
    shop.drain()
    assert (warehouse.names, post.names) == (["a"], ["b"])
    (message,) = warehouse.delivered
    assert (message.type, message.version, message.key, message.to) == ("shipped", 3, '{"order":7}', "warehouse")
    assert (message.body, message.headers["x"], message.attempt) == (b'{"name":"a"}', "y", 1)
    assert message.id == shop.detail("m1").sent[0].id
    assert outgoing(shop) == {"a": "done", "b": "done"}
    stats = shop.inbox.admin.stats()
    assert (stats.outbox_unsent, stats.outbox_dead, stats.outbox_sent, stats.done) == (0, 0, 2, 1)
    shop.drain()
    assert (warehouse.names, post.names) == (["a"], ["b"])


@everywhere
def test_a_body_of_bytes_is_published_as_it_is(shop: Shop, post: Post) -> None:
    """The relay reads nothing."""
    shop._call("send", "shipped", body=b'  {"name":  "spaced"}\n')
    shop.drain()
    assert [message.body for message in post.delivered] == [b'  {"name":  "spaced"}\n']
    assert post.delivered[0].data is None


def test_messages_of_a_key_go_out_in_order(shop: Shop, post: Post) -> None:
    """R25: while the head backs off its successors wait; the same key to another place, and other keys, do not."""
    other = Post()
    shop.inbox.add_sink("other", other.sink(shop.kind), retry=LATER)
    post.trouble["a1"] = lambda: ConnectionError("away")
    send(shop, "a1", "a2", key="a")
    send(shop, "o1", "o2", key="a", to="other")
    send(shop, "b1", key="b")
    send(shop, "free")
    shop.drain()
    assert (post.names, other.names) == (["b1", "free"], ["o1", "o2"])
    assert {name: outgoing(shop)[name] for name in ("a1", "a2")} == {"a1": "retrying", "a2": "waiting"}
    assert shop.inbox.admin.stats().outbox_unsent == 2
    assert shop.inbox.admin.stats().waiting == 0, "an outgoing message is not counted as an incoming one"
    post.trouble.clear()
    shop.finish()
    assert post.names == ["b1", "free", "a1", "a2"]


@everywhere
def test_a_failure_is_an_attempt_with_its_reason(shop: Shop, post: Post) -> None:
    """R13, R15: the sink's policy; dead after its budget, with every error."""
    post.trouble["a"] = lambda: ConnectionError("refused")
    send(shop, "a")
    shop.finish()
    detail = shop.detail(number_of(shop, "a"))
    assert detail.status == "dead"
    assert [entry.error.partition(" (")[0] for entry in detail.history] == ["ConnectionError: refused"] * 3
    stats = shop.inbox.admin.stats()
    assert (stats.outbox_unsent, stats.outbox_dead, stats.outbox_sent, stats.dead) == (0, 1, 0, 0)


@everywhere
def test_one_call_of_the_sink_is_one_attempt(shop: Shop, post: Post) -> None:
    """R13, HZ-53: in company or alone, a sink that fails is called again when its next attempt is due, not before."""
    post.trouble["bad"] = lambda: Retry("busy", after=3600)
    send(shop, "a", "bad", "b", "c")
    shop.drain()
    assert post.names == ["a", "b", "c"]
    assert post.calls == Counter(a=1, bad=1, b=1, c=1)
    assert shop.detail(number_of(shop, "bad")).attempts == 1


@everywhere
def test_what_was_published_before_a_failure_is_not_published_again(shop: Shop, post: Post) -> None:
    """R25: the group is finished up to the one that failed."""
    post.trouble = {"bad": lambda: ConnectionError("away"), "worse": lambda: Reject("never")}
    names = ["a", "b", "bad", "c", "worse", "d"]
    send(shop, *names)
    shop.drain()
    assert sorted(post.names) == ["a", "b", "c", "d"]
    assert outgoing(shop) == {"a": "done", "b": "done", "bad": "retrying", "c": "done", "worse": "dead", "d": "done"}
    assert shop.count("attempt") == 2


@everywhere
def test_what_a_sink_refuses_is_dead_and_blocks_its_key_alone(shop: Shop, post: Post) -> None:
    """HZ-81: with the reason; other keys and destinations go on."""
    post.trouble["a1"] = lambda: Reject("too large")
    send(shop, "a1", "a2", key="a")
    send(shop, "b1", key="b")
    shop.drain()
    assert outgoing(shop) == {"a1": "dead", "a2": "waiting", "b1": "done"}
    assert "too large" in shop.error(number_of(shop, "a1"))
    assert post.names == ["b1"]


def test_a_sink_names_the_time_of_the_next_attempt(shop: Shop, post: Post) -> None:
    """R14: `Retry(after=...)`, for a policy that would have come sooner or later."""
    post.trouble = {"a": lambda: Retry("busy", after=timedelta(days=2)), "b": lambda: ConnectionError("away")}
    send(shop, "a", "b")
    shop.drain()
    late, soon = (shop.detail(number_of(shop, name)) for name in ("a", "b"))
    assert late.due_at is not None
    assert soon.due_at is not None
    assert late.due_at - soon.due_at > timedelta(days=1)
    assert late.due_at - late.received_at >= timedelta(days=2)
    post.trouble.clear()
    shop.hurry()
    shop.drain()
    assert sorted(post.names) == ["a", "b"]


@pytest.mark.parametrize(("first", "second"), [("def", "async"), ("async", "def")])
def test_sinks_of_both_kinds_side_by_side(shop: Shop, first: Kind, second: Kind) -> None:
    """An `async def` sink and a `def` one, in one relay, whatever the handlers are."""
    posts = {"one": Post(), "two": Post()}
    shop.inbox.add_sink("one", posts["one"].sink(first))
    shop.inbox.add_sink("two", posts["two"].sink(second))
    shop.handle(behaviour=sending(to="one", key="k"))
    for number in range(4):
        shop.receive(f"m{number}")
        send(shop, f"s{number}", to="two", key="k")
    shop.drain()
    assert posts["one"].names == [f"m{number}" for number in range(4)]
    assert posts["two"].names == [f"s{number}" for number in range(4)]


@pytest.fixture
def stuck(shop: Shop, post: Post) -> Post:
    """An outbox in which a1 is dead and a2 and a3 wait behind it."""
    post.trouble["a1"] = lambda: Reject("never")
    send(shop, "a1", "a2", "a3", key="a")
    shop.drain()
    assert outgoing(shop) == {"a1": "dead", "a2": "waiting", "a3": "waiting"}
    return post


def test_redriving_an_outgoing_message(shop: Shop, stuck: Post) -> None:
    """R18, R25: published first, under its id, and its successors after it."""
    stuck.trouble.clear()
    assert shop.inbox.admin.redrive(number_of(shop, "a1"), reason="fixed over there") == 1
    shop.drain()
    assert stuck.names == ["a1", "a2", "a3"]


def test_discarding_an_outgoing_message(shop: Shop, stuck: Post) -> None:
    """R18, R25: it never goes out."""
    assert shop.inbox.admin.discard(number_of(shop, "a1"), reason="obsolete") == 1
    shop.drain()
    assert stuck.names == ["a2", "a3"]
    assert outgoing(shop)["a1"] == "discarded"
    assert shop.inbox.admin.stats().outbox_dead == 0


def test_unblocking_an_outgoing_message(shop: Shop, stuck: Post) -> None:
    """R18, R25: its key goes on without it; redriven out of order, it holds its old key again."""
    assert shop.inbox.admin.unblock(number_of(shop, "a1")) == 1
    shop.drain()
    assert stuck.names == ["a2", "a3"]
    with pytest.raises(ConfigurationError, match="left behind by its key 'a'"):
        shop.inbox.admin.redrive(number_of(shop, "a1"))
    stuck.trouble["a1"] = lambda: ConnectionError("away")
    assert shop.inbox.admin.redrive(number_of(shop, "a1"), out_of_order=True) == 1
    send(shop, "a4", key="a")
    shop.drain()
    assert outgoing(shop)["a4"] == "waiting"
    stuck.trouble.clear()
    shop.finish()
    assert stuck.names == ["a2", "a3", "a1", "a4"]


@pytest.mark.parametrize("command", ["redrive", "discard", "unblock"])
def test_the_outbox_in_bulk(shop: Shop, stuck: Post, command: str) -> None:
    """R18: by `outgoing=True`; a command for incoming messages leaves it alone."""
    assert getattr(shop.inbox.admin, command)(key="a") == 0
    assert getattr(shop.inbox.admin, command)(outgoing=True, key="a") == 1
    shop.drain()
    assert stuck.names == ([] if command == "redrive" else ["a2", "a3"])


def test_a_sink_needs_a_name_of_its_own(shop: Shop, post: Post) -> None:
    with pytest.raises(ConfigurationError, match="a sink named 'default' already"):
        shop.inbox.add_sink("default", post.sink("def"))


def test_the_budget_of_a_sink_is_its_own(shop: Shop) -> None:
    """R13: two sinks of one process, each with the policy it was given."""
    hasty, patient = Post(), Post()
    for post in (hasty, patient):
        post.trouble = {"a": lambda: ConnectionError("away")}
    shop.inbox.add_sink("hasty", hasty.sink(shop.kind), retry=RetryPolicy(attempts=1))
    shop.inbox.add_sink("patient", patient.sink(shop.kind), retry=LATER)
    for name in ("hasty", "patient"):
        send(shop, "a", to=name)
    shop.drain()
    statuses = {row.seq: row.status for row in shop.inbox.admin.messages(outgoing=True)}
    assert [statuses[seq] for seq in sorted(statuses)] == ["dead", "retrying"]


class Waking:
    """A sink that says when it was called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def publish(self, message: Message) -> None:
        """Note it."""
        self.names.append(message.body.decode())


@pytest.mark.parametrize("way", ["inbox.send", "message.send"])
def test_a_waiting_relay_is_woken(store_url: str, way: str) -> None:
    """R22, R25: published at once, not when the relay looks by itself, which here is in an hour."""
    with Shop(store_url, "def", settings=Settings(poll=timedelta(hours=1))) as shop:
        sink: Sink = Waking()
        shop.inbox.add_sink("default", sink)
        shop.handle(behaviour=sending("a"))
        send(shop, "first")
        with shop.running():
            assert isinstance(sink, Waking)
            wait_until(lambda: len(sink.names) == 1, message="the relay at work")
            if way == "inbox.send":
                send(shop, "a")
            else:
                shop.receive("m1")
            wait_until(lambda: len(sink.names) == 2, message="the message published at once")


class Relays:
    """Relay processes on a shop's database that publish to a file."""

    def __init__(self, nursery: Nursery, shop: Shop, folder: Path) -> None:
        self._nursery, self._shop, self._folder = nursery, shop, folder
        self.path = str(folder / "published")

    def start(self, **arguments: Any) -> Child:
        """Start one; returns when it is ready."""
        child = self._nursery.start(
            "tests.outbox.program:relay",
            self._folder,
            url=self._shop.url,
            path=self.path,
            **{"sinks": ["default"], **arguments},
        )
        child.hear("ready")
        return child

    def bury(self, child: Child) -> None:
        """See it die of SIGKILL, and do for it what a supervisor does."""
        assert child.end() == -signal.SIGKILL, child.errors
        for row in self._shop.inbox.admin.workers():
            if row.pid == child.pid:
                self._shop.declare_dead(row.process)


@pytest.fixture
def relays(nursery: Nursery, shop: Shop, tmp_path: Path) -> Relays:
    """Starts relays."""
    return Relays(nursery, shop, tmp_path)


def test_two_relays_keep_the_order(shop: Shop, relays: Relays) -> None:
    """R25, HZ-82: two processes, six keys, two destinations: each (destination, key) in order, everything once."""
    places = [(to, key) for to in ("one", "two") for key in "abc"]
    children = [relays.start(sinks=["one", "two"]) for _ in range(2)]
    for number in range(25):
        for to, key in places:
            send(shop, f"{to}.{key}.{number}", to=to, key=key)
    wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 150, timeout=60, message="everything published")
    for child in children:
        child.stop()
    lines = published(relays.path)
    for to, key in places:
        names = [line["name"] for line in lines if (line["to"], line["key"]) == (to, key)]
        assert names == [f"{to}.{key}.{number}" for number in range(25)]


def test_a_relay_killed_after_publishing_publishes_again_under_the_same_id(shop: Shop, relays: Relays) -> None:
    """HZ-80: at least once; nothing is skipped, nothing overtakes, nobody is dead of it."""
    ids = dict(zip(("a1", "a2", "a3"), send(shop, "a1", "a2", "a3", key="a"), strict=True))
    relays.bury(relays.start(deadly=["a2"]))
    assert [line["name"] for line in published(relays.path)][-1] == "a2"
    child = relays.start()
    wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 3, message="everything published")
    child.stop()
    lines = published(relays.path)
    assert all(line["id"] == ids[line["name"]] for line in lines)
    counts = Counter(line["name"] for line in lines)
    assert counts["a2"] == 2
    firsts = list(dict.fromkeys(line["name"] for line in lines))
    assert firsts == ["a1", "a2", "a3"]


def test_relays_killed_again_and_again_lose_nothing(shop: Shop, relays: Relays) -> None:
    """HZ-80, HZ-82: killed after every fifth publication; each goes out, each under one id, each key in order."""
    ids: dict[str, str] = {}
    for number in range(8):
        for key in "abc":
            ids |= dict(zip([f"{key}{number}"], send(shop, f"{key}{number}", key=key), strict=True))
    for _ in range(5):
        relays.bury(relays.start(every=5))
    child = relays.start()
    wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 24, message="everything published")
    child.stop()
    lines = published(relays.path)
    assert {line["name"]: line["id"] for line in lines} == ids
    assert all(line["id"] == ids[line["name"]] for line in lines)
    firsts = list(dict.fromkeys(line["name"] for line in lines))
    for key in "abc":
        assert [name for name in firsts if name[0] == key] == [f"{key}{number}" for number in range(8)]


def test_a_message_whose_publication_kills_the_relay_is_dead_after_three(shop: Shop, relays: Relays) -> None:
    """R16, R25: the relay is a worker like any other; the others go out."""
    send(shop, "killer", key="k")
    for _ in range(3):
        relays.bury(relays.start(deadly=["killer"]))
    child = relays.start(deadly=["killer"])
    send(shop, "behind", key="k")
    send(shop, "a", "b")
    wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 2, message="the others published")
    child.stop()
    shop.inbox.add_sink("default", Post().sink(shop.kind))
    shop.drain()
    assert outgoing(shop) == {"killer": "dead", "behind": "waiting", "a": "done", "b": "done"}
    assert [line["name"] for line in published(relays.path)].count("killer") == 3
