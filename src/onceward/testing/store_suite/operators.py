"""What operators do: guarded, repeatable, audited."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from onceward import Message, Reject
from onceward.testing.store_suite.behaviour import Steps, Until, raising, returning, wrote
from onceward.testing.store_suite.shop import Shop, in_threads
from onceward.testing.waiting import wait_until


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


class Operators:
    """What operators do: guarded, repeatable, audited."""

    def test_redrive_gives_a_dead_message_a_new_budget(self, shop: Shop) -> None:
        """Attempts start anew, the history stays, and so does the line in the audit."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=2))
        shop.receive("m1")
        shop.finish()
        assert (shop.status("m1"), shop.detail("m1").attempts) == ("done", 0)
        shop.handle("doomed", behaviour=raising(lambda: RuntimeError("never")))
        shop.receive("m2", "doomed")
        shop.finish()
        assert (shop.status("m2"), shop.detail("m2").attempts) == ("dead", 3)
        assert shop.inbox.admin.redrive(shop.seqs["m2"], reason="fixed in 1.2", actor="ann") == 1
        assert (shop.status("m2"), shop.detail("m2").attempts, len(shop.detail("m2").history)) == ("due", 0, 3)
        shop.finish()
        detail = shop.detail("m2")
        assert (detail.status, detail.attempts) == ("dead", 3)
        assert [attempt.attempt for attempt in detail.history] == [1, 2, 3, 1, 2, 3]
        assert [(a.actor, a.action, a.reason) for a in detail.actions] == [("ann", "redrive", "fixed in 1.2")]

    def test_discard_takes_a_message_out_for_good(self, shop: Shop) -> None:
        """It never runs again, its identity stays known, and it is not called done."""
        (seq,) = dead(shop, "m1")
        assert shop.inbox.admin.discard(seq, reason="test data", actor="bob") == 1
        assert [(a.actor, a.action, a.reason) for a in shop.detail(seq).actions] == [("bob", "discard", "test data")]
        assert (shop.status(seq), shop.drain(), shop.effects()) == ("discarded", 0, [])
        for ask in (shop.receive, shop.process):
            again = ask("m1", "doomed")
            assert (again.status, again.seq) == ("duplicate", seq)
            assert not again.finished, "no effect of it was ever committed"
        assert shop.inbox.admin.redrive(seq) == 0

    def test_what_is_done_twice_changes_nothing_the_second_time(self, shop: Shop) -> None:
        """A double click, one after the other or at the same time, is one action and one line."""
        first, second = dead(shop, "m1", "m2")
        assert sum(in_threads(*(lambda: shop.inbox.admin.redrive(first) for _ in range(5)))) == 1
        assert sum(in_threads(*(lambda: shop.inbox.admin.discard(second) for _ in range(5)))) == 1
        assert (shop.inbox.admin.redrive(first), shop.inbox.admin.discard(second)) == (0, 0)
        assert (len(shop.detail(first).actions), len(shop.detail(second).actions)) == (1, 1)

    def test_redrive_and_discard_at_the_same_time(self, shop: Shop) -> None:
        """Whatever wins, the message is due, or gone, and the audit agrees."""
        seqs = dead(shop, *(f"m{number}" for number in range(6)))
        for seq in seqs:
            in_threads(partial(shop.inbox.admin.redrive, seq), partial(shop.inbox.admin.discard, seq))
            detail = shop.detail(seq)
            assert detail.status == ("discarded" if "discard" in [a.action for a in detail.actions] else "due")

    def test_any_message_at_rest_may_be_discarded(self, shop: Shop) -> None:
        """Due, backing off, unhandled: out for good, with a line in the audit."""
        shop.handle("moody", behaviour=raising(lambda: RuntimeError("not yet")))
        shop.receive("retrying", "moody")
        shop.drain()
        shop.receive("due", "moody")
        shop.receive("unhandled", "unknown")
        assert shop.inbox.admin.discard(*shop.seqs.values()) == 3
        assert {shop.status(message_id) for message_id in shop.seqs} == {"discarded"}
        assert (shop.hurry(), shop.drain(), shop.inbox.admin.stats().discarded) == (0, 0, 3)

    def test_an_operator_needs_no_handlers(self, shop: Shop) -> None:
        """A command line with only the address of the store steers what others run."""
        first, second = dead(shop, "m1", "m2")
        operator = shop.another()
        assert (operator.inbox.admin.redrive(first), operator.inbox.admin.discard(second)) == (1, 1)
        assert [row.status for row in operator.inbox.admin.messages()] == ["discarded", "due"]

    def test_every_status_is_counted_listed_and_shown(self, shop: Shop) -> None:
        """One message in each state; the same answer from stats(), messages() and message()."""
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
            assert shop.detail("running").worker == shop.inbox.admin.workers()[0].id

    def test_an_empty_inbox_has_empty_numbers(self, shop: Shop) -> None:
        """Nothing is zero, not an error."""
        stats = shop.inbox.admin.stats()
        assert {getattr(stats, name) for name in ("due", "running", "dead", "done", "duplicates", "failures")} == {0}
        assert (stats.oldest_due_seconds, stats.done_last_minute) == (0, 0)
        assert (shop.inbox.admin.messages(), shop.inbox.admin.quarantine(), shop.inbox.admin.workers()) == ([], [], [])
        assert shop.inbox.admin.message(1) is None

    def test_messages_come_in_pages_newest_first(self, shop: Shop) -> None:
        """`before` continues exactly where the last page ended, over finished and unfinished alike."""
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

    def test_messages_are_found_by_what_they_carry(self, shop: Shop) -> None:
        """By type, key, source, and by the producer's own id."""
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
        assert shop.inbox.admin.find("paypal", "m1") == shop.inbox.admin.find("unknown", "m1") == []

    def test_a_message_detail_tells_everything(self, shop: Shop) -> None:
        """Source, type, headers, payload, hash, times, attempts, error, who finished it with which code."""
        worker = shop.another(code_version="v7")
        worker.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1), key="k", version=2)
        worker.receive("m1", data={"k": 9}, headers={"h": "1"}, version=2)
        worker.finish()
        (seq,) = shop.inbox.admin.find("stripe", "m1")
        detail = shop.detail(seq)
        assert (detail.id, detail.source, detail.type, detail.version, detail.key) == (
            "m1",
            "stripe",
            "order.paid",
            2,
            "9",
        )
        assert (detail.headers, detail.body, len(detail.hash)) == ({"h": "1"}, b'{"k":9}', 64)
        assert detail.finished_at is not None
        assert detail.received_at <= detail.history[0].at <= detail.finished_at
        assert (detail.code_version, detail.history[0].code_version) == ("v7", "v7")
        assert detail.finished_by == detail.history[0].worker or detail.finished_by is not None
        assert (detail.status, detail.worker, detail.due_at) == ("done", None, None)
