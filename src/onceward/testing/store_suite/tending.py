"""What keeps an inbox: polled APIs, retention, erasure, and what operators see of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from onceward.message import Message
from onceward.polls.poll import Response
from onceward.retry import Reject, RetryPolicy
from onceward.settings import Settings
from onceward.testing.store_suite.behaviour import Steps, returning, wrote
from onceward.testing.store_suite.shop import Shop

SOON = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(0))


class Tending:
    """What keeps an inbox: polled APIs, retention, erasure, and what operators see of it."""

    def test_a_polled_response_is_stored_with_its_cursor(self, shop: Shop) -> None:
        asked: list[object] = []

        def poll(cursor: object) -> Iterator[Response]:
            asked.append(cursor)
            start = 0 if cursor is None else int(str(cursor))
            for number in range(start, start + 2):
                yield Response(b'{"n":%d}' % number, cursor=number + 1)

        shop.handle("bank.response", key=None)
        soon = RetryPolicy(first=timedelta(milliseconds=20), cap=timedelta(milliseconds=200))
        shop.inbox.add_poll(every=timedelta(milliseconds=1), source="bank", retry=soon)(poll)
        with shop.running():
            shop.wait(lambda: len(shop.effects()) >= 4)
            # A conflict with other transactions counts as a failure, until the next turn goes well.
            shop.wait(lambda: shop.inbox.admin.polls()[0].failures == 0)
        assert asked[0] is None
        (row,) = shop.inbox.admin.polls()
        shop.finish()
        assert (row.source, row.cursor) == ("bank", row.responses)
        assert len(shop.effects()) == row.responses

    def test_what_is_finished_is_forgotten_after_its_time_and_nothing_else(self, shop: Shop) -> None:
        other = shop.another(settings=SOON)
        shop.handle()
        shop.receive("done")
        shop.drain()
        shop.receive("waits", "unknown.type")
        other.inbox.retention.prune()
        assert shop.inbox.admin.message(shop.seqs["done"]) is None
        assert shop.status("waits") == "unhandled"
        assert shop.receive("done", "unknown.type").status == "accepted", "it is not remembered any more"

    def test_an_erased_message_is_still_known(self, shop: Shop) -> None:
        shop.handle(behaviour=returning({"secret": 1}))
        shop.receive("m1", data={"secret": 1})
        shop.drain()
        shop.inbox.retention.erase(shop.seqs["m1"], reason="asked for")
        detail = shop.detail("m1")
        assert (detail.body, detail.result, [action.action for action in detail.actions]) == (None, None, ["erase"])
        assert shop.receive("m1", data={"secret": 1}).status == "duplicate"
        assert shop.receive("m1", data={"secret": 2}).status == "mismatch"

    def test_every_report_can_be_made(self, shop: Shop) -> None:
        """Of an inbox with something of everything; that their numbers are right is tested where they belong."""
        shop.handle(behaviour=returning(1), key="id")
        for message_id in ("m1", "m1", "m2"):
            shop.receive(message_id)
        shop.drain()
        admin = shop.inbox.admin
        stats = admin.stats()
        assert (stats.done, stats.duplicates, stats.due) == (2, 1, 0)
        assert [row.id for row in admin.messages()] == ["m2", "m1"]
        assert [row.id for row in admin.messages(type="order.paid", limit=1)] == ["m2"]
        assert admin.find("stripe", "m1") == [shop.seqs["m1"]]
        detail = admin.explain(shop.seqs["m1"])
        assert detail is not None
        assert detail.message.duplicates == 1
        assert [row.name for row in admin.sources()] == ["stripe"]
        assert sum(minute.done for minute in admin.traffic(minutes=5)) == 2
        assert [*admin.dead_groups(), *admin.blocked_keys(), *admin.running(), *admin.audit()] == []
        assert {table.name for table in admin.storage().tables} >= {"ledger", "queue"}
        assert admin.search("nothing has this") == []
        assert admin.standing().concerns == []

    def test_a_text_is_found_in_errors_and_payloads(self, shop: Shop) -> None:
        def refusing(message: Message) -> Steps:
            yield wrote(message)
            raise Reject(f"no such card {message.id}")

        shop.handle(behaviour=refusing)
        for message_id in ("m1", "m2"):
            shop.receive(message_id, data={"name": f"owner of {message_id}"})
        shop.drain()
        admin = shop.inbox.admin
        assert [(hit.seq, hit.place) for hit in admin.search("no such card m1")] == [(shop.seqs["m1"], "error")]
        assert [(hit.seq, hit.place) for hit in admin.search("owner of m2")] == [(shop.seqs["m2"], "payload")]
        assert {hit.seq for hit in admin.search("such card")} == {shop.seqs["m1"], shop.seqs["m2"]}
        (concern, *_) = admin.standing().concerns
        assert (concern.kind, concern.number) == ("dead", 2)
