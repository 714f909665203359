"""What people see and do: guarded, repeatable, written down; and right numbers (R09, R15, R43; HZ-54, HZ-55; I13)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from onceward import ConfigurationError, Message, Reject
from tests.contract.behaviour import Steps, Until, raising, returning, wrote
from tests.contract.harness import Shop, arguments, in_threads
from tests.waiting import wait_until


def dead(shop: Shop, *ids: str, message_type: str = "doomed", source: str = "stripe", **more: object) -> list[int]:
    """Messages that were rejected; the numbers of them."""
    if not any(handler.type == message_type for handler in shop.inbox.context.registry):
        shop.handle(message_type, behaviour=raising(lambda: Reject("no")))
    seqs = [shop.receive(message_id, message_type, source, **more).seq for message_id in ids]
    shop.drain()
    return seqs


@contextmanager
def while_it_runs(shop: Shop, message_id: str) -> Iterator[int]:
    """A message that is running for as long as the block lasts, and done afterwards."""
    enough = threading.Event()

    def waiting(message: Message) -> Steps:
        yield Until(enough.is_set)
        yield wrote(message)

    shop.handle("slow", behaviour=waiting)
    with shop.running():
        seq = shop.receive(message_id, "slow").seq
        wait_until(lambda: shop.status(seq) == "running")
        yield seq
        enough.set()
        wait_until(lambda: shop.status(seq) == "done")


def test_redrive_gives_a_dead_message_a_new_budget(shop: Shop) -> None:
    """R15, HZ-55: attempts start anew, the history stays, and so does the line in the audit."""
    shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=2))
    shop.receive("m1")
    shop.finish()
    assert (shop.status("m1"), shop.story("m1").attempts) == ("done", 0)
    shop.handle("doomed", behaviour=raising(lambda: RuntimeError("never")))
    shop.receive("m2", "doomed")
    shop.finish()
    assert (shop.status("m2"), shop.story("m2").attempts) == ("dead", 3)
    assert shop.inbox.admin.redrive(shop.seqs["m2"], reason="fixed in 1.2", actor="ann") == 1
    assert (shop.status("m2"), shop.story("m2").attempts, len(shop.story("m2").history)) == ("due", 0, 3)
    shop.finish()
    story = shop.story("m2")
    assert (story.status, story.attempts) == ("dead", 3)
    assert [attempt.attempt for attempt in story.history] == [1, 2, 3, 1, 2, 3]
    assert [(a.actor, a.action, a.reason) for a in story.actions] == [("ann", "redrive", "fixed in 1.2")]


def test_discard_takes_a_message_out_for_good(shop: Shop) -> None:
    """R15: it never runs again, its identity stays known, and it is not called done."""
    (seq,) = dead(shop, "m1")
    assert shop.inbox.admin.discard(seq, reason="test data", actor="bob") == 1
    assert [(a.actor, a.action, a.reason) for a in shop.story(seq).actions] == [("bob", "discard", "test data")]
    assert (shop.status(seq), shop.drain(), shop.effects()) == ("discarded", 0, [])
    for ask in (shop.receive, shop.process):
        again = ask("m1", "doomed")
        assert (again.status, again.seq) == ("duplicate", seq)
        assert not again.finished, "no effect of it was ever committed"
    assert shop.inbox.admin.redrive(seq) == 0


def test_what_is_done_twice_changes_nothing_the_second_time(shop: Shop) -> None:
    """HZ-55, I13: a double click, one after the other or at the same time, is one action and one line."""
    first, second = dead(shop, "m1", "m2")
    assert sum(in_threads(*(lambda: shop.inbox.admin.redrive(first) for _ in range(5)))) == 1
    assert sum(in_threads(*(lambda: shop.inbox.admin.discard(second) for _ in range(5)))) == 1
    assert (shop.inbox.admin.redrive(first), shop.inbox.admin.discard(second)) == (0, 0)
    assert (len(shop.story(first).actions), len(shop.story(second).actions)) == (1, 1)


def test_redrive_and_discard_at_the_same_time(shop: Shop) -> None:
    """HZ-55: whatever wins, the message is due, or gone, and the audit agrees."""
    seqs = dead(shop, *(f"m{number}" for number in range(6)))
    for seq in seqs:
        in_threads(partial(shop.inbox.admin.redrive, seq), partial(shop.inbox.admin.discard, seq))
        story = shop.story(seq)
        assert story.status == ("discarded" if "discard" in [a.action for a in story.actions] else "due")


def test_a_message_that_is_done_or_unknown_is_left_alone(shop: Shop) -> None:
    """HZ-55: no state but the right one is touched."""
    shop.handle()
    shop.receive("m1")
    shop.drain()
    for action in (shop.inbox.admin.redrive, shop.inbox.admin.discard):
        assert action(shop.seqs["m1"]) == action(999_999) == action() == 0
    shop.receive("m2")
    assert shop.inbox.admin.redrive(shop.seqs["m2"]) == 0
    shop.drain()
    assert (shop.effects(), shop.count("audit")) == (["m1", "m2"], 0)


def test_a_running_message_is_left_to_its_worker(shop: Shop) -> None:
    """HZ-55: neither redrive nor discard takes a message out of a handler's hands."""
    with while_it_runs(shop, "m1") as seq:
        assert (shop.inbox.admin.redrive(seq), shop.inbox.admin.discard(seq)) == (0, 0)
        assert shop.status(seq) == "running"
    assert (shop.effects(), shop.count("audit")) == (["m1"], 0)


def test_any_message_at_rest_may_be_discarded(shop: Shop) -> None:
    """R15: due, backing off, unhandled: out for good, with a line in the audit."""
    shop.handle("moody", behaviour=raising(lambda: RuntimeError("not yet")))
    shop.receive("retrying", "moody")
    shop.drain()
    shop.receive("due", "moody")
    shop.receive("unhandled", "unknown")
    assert shop.inbox.admin.discard(*shop.seqs.values()) == 3
    assert {shop.status(message_id) for message_id in shop.seqs} == {"discarded"}
    assert (shop.hurry(), shop.drain(), shop.inbox.admin.stats().discarded) == (0, 0, 3)


def test_dead_messages_are_chosen_by_filter(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """HZ-55: by type, key and source; only dead ones; more than one page of them."""
    monkeypatch.setattr("onceward.runtime.group_commit.SHARED", 5)
    many = [f"m{number}" for number in range(12)]
    shop.handle("doomed", behaviour=raising(lambda: Reject("no")))
    shop.receive_many(arguments(message_id, "doomed") for message_id in many)
    shop.drain()
    dead(shop, "other type", message_type="other")
    dead(shop, "other source", source="paypal")
    (keyed,) = dead(shop, "keyed", key="k")
    shop.receive("not dead", "doomed")
    assert shop.inbox.admin.redrive(type="doomed", key="k", reason="by key") == 1
    assert shop.status(keyed) == "due"
    assert shop.inbox.admin.discard(source="paypal") == 1
    assert shop.inbox.admin.redrive(type="doomed", source="stripe") == 12
    assert shop.inbox.admin.stats().dead == 1
    assert [row.id for row in shop.inbox.admin.messages(status="dead")] == ["other type"]


def test_an_action_names_its_actor(sqlite_shop: Shop) -> None:
    """I13: without a name it is the user of the process."""
    (seq,) = dead(sqlite_shop, "m1")
    sqlite_shop.inbox.admin.redrive(seq)
    assert sqlite_shop.story(seq).actions[0].actor


def test_an_operator_needs_no_handlers(shop: Shop) -> None:
    """R44: a command line with only the address of the store steers what others run."""
    first, second = dead(shop, "m1", "m2")
    operator = shop.another()
    assert (operator.inbox.admin.redrive(first), operator.inbox.admin.discard(second)) == (1, 1)
    assert [row.status for row in operator.inbox.admin.messages()] == ["discarded", "due"]


# Numbers


def test_every_status_is_counted_listed_and_shown(shop: Shop) -> None:
    """R09, R43: one message in each state; the same answer from stats(), messages() and message()."""
    with while_it_runs(shop, "running"):
        shop.handle("calm", behaviour=returning("r"))
        shop.handle("keyed", behaviour=raising(lambda: RuntimeError("head")), key="id")
        shop.handle("doomed", behaviour=raising(lambda: Reject("no")))
        worker = shop.another()
        for name, behaviour in (("calm", returning("r")), ("doomed", raising(lambda: Reject("no")))):
            worker.handle(name, behaviour=behaviour)
        worker.handle("keyed", behaviour=raising(lambda: RuntimeError("head")), key="id")
        shop.receive("done", "calm")
        shop.receive("done", "calm")
        shop.receive("dead", "doomed")
        shop.receive("discarded", "doomed")
        shop.receive("retrying", "keyed", data={"id": 1})
        shop.receive("waiting", "keyed", data={"id": 1})
        shop.receive("unhandled", "unknown")
        worker.drain()
        shop.inbox.admin.discard(shop.seqs["discarded"])
        shop.receive("due", "calm")
        shop.receive("due", "calm", data="other")
        names = ("due", "running", "retrying", "waiting", "unhandled", "dead", "done", "discarded")
        assert {row.id: row.status for row in shop.inbox.admin.messages()} == {name: name for name in names}
        for name in names:
            assert shop.status(name) == name
            assert [row.id for row in shop.inbox.admin.messages(status=name)] == [name]
        stats = shop.inbox.admin.stats()
        assert {name: getattr(stats, name) for name in names} == dict.fromkeys(names, 1)
        assert (stats.quarantined, stats.duplicates, stats.failures, stats.done_last_minute) == (1, 1, 3, 1)
        assert stats.workers == 1
        assert stats.oldest_due_seconds > 0
        assert [w.holds for w in shop.inbox.admin.workers()] == [1]
        assert shop.story("running").worker == shop.inbox.admin.workers()[0].id


def test_an_empty_inbox_has_empty_numbers(shop: Shop) -> None:
    """R43: nothing is zero, not an error."""
    stats = shop.inbox.admin.stats()
    assert {getattr(stats, name) for name in ("due", "running", "dead", "done", "duplicates", "failures")} == {0}
    assert (stats.oldest_due_seconds, stats.done_last_minute) == (0, 0)
    assert (shop.inbox.admin.messages(), shop.inbox.admin.quarantine(), shop.inbox.admin.workers()) == ([], [], [])
    assert shop.inbox.admin.message(1) is None


def test_messages_come_in_pages_newest_first(shop: Shop) -> None:
    """R09: `before` continues exactly where the last page ended, over finished and unfinished alike."""
    shop.handle()
    seqs = [shop.receive(f"m{number:02}").seq for number in range(12)]
    shop.drain()
    seqs += [shop.receive(f"m{number:02}").seq for number in range(12, 25)]
    pages, before = [], None
    while page := shop.inbox.admin.messages(limit=10, before=before):
        pages.append([row.seq for row in page])
        before = page[-1].seq
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [seq for page in pages for seq in page] == seqs[::-1]
    assert [row.seq for row in shop.inbox.admin.messages(status="done", limit=3)] == seqs[11:8:-1]


def test_messages_are_found_by_what_they_carry(shop: Shop) -> None:
    """R09: by type, key, source, and by the producer's own id."""
    shop.handle("a", key="k")
    shop.receive("m1", "a", data={"k": 1})
    shop.drain()
    shop.receive("m2", "a", data={"k": 1})
    shop.receive("m3", "a", source="paypal", data={"k": 2})
    shop.receive("m4", "b")

    def found(**filters: str) -> list[str]:
        return [row.id for row in shop.inbox.admin.messages(**filters)]  # type: ignore[arg-type]

    assert found(type="a") == ["m3", "m2", "m1"]
    assert found(key="1") == ["m2", "m1"]
    assert found(source="paypal") == ["m3"]
    assert found(type="a", key="1", status="done") == ["m1"]
    assert found(type="' OR 1=1") == []
    assert shop.inbox.admin.find("paypal", "m3") == [shop.seqs["m3"]]
    assert shop.inbox.admin.find("paypal", "m1") == shop.inbox.admin.find("nobody", "m1") == []


def test_a_story_tells_everything(shop: Shop) -> None:
    """R09: source, type, headers, payload, hash, times, attempts, error, who finished it with which code."""
    worker = shop.another(code_version="v7")
    worker.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1), key="k", version=2)
    worker.receive("m1", data={"k": 9}, headers={"h": "1"}, version=2)
    worker.finish()
    (seq,) = shop.inbox.admin.find("stripe", "m1")
    story = shop.story(seq)
    assert (story.id, story.source, story.type, story.version, story.key) == ("m1", "stripe", "order.paid", 2, "9")
    assert (story.headers, story.body, len(story.hash)) == ({"h": "1"}, b'{"k":9}', 64)
    assert story.finished_at is not None
    assert story.received_at <= story.history[0].at <= story.finished_at
    assert (story.code_version, story.history[0].code_version) == ("v7", "v7")
    assert story.finished_by == story.history[0].worker or story.finished_by is not None
    assert (story.status, story.worker, story.due_at) == ("done", None, None)


@pytest.mark.parametrize("what", ["redrive", "discard"])
def test_a_wrong_filter_is_an_error(sqlite_shop: Shop, what: str) -> None:
    """HZ-55: a misspelt filter must not become "all of them"."""
    dead(sqlite_shop, "m1")
    with pytest.raises(ConfigurationError, match="has no argument typ="):
        getattr(sqlite_shop.inbox.admin, what)(typ="doomed")
    assert sqlite_shop.inbox.admin.stats().dead == 1
