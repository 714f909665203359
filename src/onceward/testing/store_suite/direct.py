"""Direct batches: many messages received and handled in one transaction."""

from __future__ import annotations

from onceward import Message, Reject, Retry
from onceward.domain.breaker import Circuit
from onceward.message import Receipt
from onceward.testing.store_suite.behaviour import Steps, effect, returning, wrote
from onceward.testing.store_suite.shop import Shop, arguments


def batch(shop: Shop, *messages: str | tuple[str, str] | dict[str, object]) -> list[Receipt]:
    """Handle messages in one batch: an id, an id and a type, or arguments."""
    given = [one if isinstance(one, dict) else arguments(*([one] if isinstance(one, str) else one)) for one in messages]
    return shop.process_many(given)


def outcomes(receipts: list[Receipt]) -> list[str]:
    """What became of each."""
    return [receipt.outcome for receipt in receipts]


class Direct:
    """Direct batches: many messages received and handled in one transaction."""

    def test_a_batch_is_done_at_once(self, shop: Shop) -> None:
        """Effects, results and receipts in their order; what comes again is a duplicate with its result."""
        shop.handle(behaviour=returning({"ok": 1}))
        receipts = batch(shop, "m1", "m2", "m3")
        assert [(one.outcome, one.result) for one in receipts] == [("done", {"ok": 1})] * 3
        assert (shop.effects(), shop.drain()) == (["m1", "m2", "m3"], 0)
        again = batch(shop, "m3", "m4", "m1")
        assert outcomes(again) == ["duplicate", "done", "duplicate"]
        assert (again[0].finished, again[0].result, again[0].seq) == (True, {"ok": 1}, receipts[2].seq)
        assert (shop.status("m1"), shop.detail("m1").duplicates) == ("done", 1)

    def test_copies_inside_a_batch_are_folded(self, shop: Shop) -> None:
        """The first is handled; the same bytes again are a duplicate, others a mismatch."""
        shop.handle()
        receipts = batch(shop, "m1", "m2", "m1", arguments("m2", more={"data": "other"}))
        assert outcomes(receipts) == ["done", "done", "duplicate", "mismatch"]
        assert (shop.effects(), shop.runs["m1"], shop.inbox.admin.stats().quarantined) == (["m1", "m2"], 1, 1)

    def test_one_that_raises_is_stored_and_the_others_stay(self, shop: Shop) -> None:
        """Charged in the same commit; what it wrote is undone, what its neighbours wrote is not."""

        def picky(message: Message) -> Steps:
            yield wrote(message)
            if message.attempt == 1 and message.id == "later":
                raise Retry("busy", after=3600)
            if message.id == "never":
                raise Reject("not this one")

        shop.handle(behaviour=picky)
        receipts = batch(shop, "m1", "later", "m2", "never", "m3")
        assert outcomes(receipts) == ["done", "retrying", "done", "dead", "done"]
        assert [one.error and one.error.kind for one in receipts] == [None, "Retry", None, "Reject", None]
        assert shop.effects() == ["m1", "m2", "m3"]
        assert [(shop.status(one), shop.detail(one).attempts) for one in ("later", "never")] == [
            ("retrying", 1),
            ("dead", 1),
        ]
        assert "not this one" in shop.error("never")
        shop.inbox.admin.redrive(shop.seqs["never"])

    def test_all_may_raise(self, shop: Shop) -> None:
        def failing(message: Message) -> Steps:
            yield wrote(message)
            if message.attempt == 1:
                raise RuntimeError("not yet")

        shop.handle(behaviour=failing)
        assert outcomes(batch(shop, "m1", "m2")) == ["retrying", "retrying"]
        assert shop.effects() == []
        shop.finish()
        assert shop.effects() == ["m1", "m2"]

    def test_what_follows_one_that_raises_waits_for_it(self, shop: Shop) -> None:
        """Of one key, in the order of the batch; other keys go on."""

        def picky(message: Message) -> Steps:
            yield wrote(message)
            if message.attempt == 1 and message.id == "a1":
                raise RuntimeError("not yet")

        shop.handle(behaviour=picky, key="k")
        names = ("a0", "a1", "b0", "a2", "b1")
        receipts = batch(shop, *(arguments(name, more={"data": {"k": name[0]}}) for name in names))
        assert outcomes(receipts) == ["done", "retrying", "done", "queued", "done"]
        shop.finish()
        assert [name for name, _ in shop.journal() if name[0] == "a"] == ["a0", "a1", "a2"]
        assert shop.effects() == sorted(names)

    def test_behind_what_is_unfinished_of_its_key_it_is_queued(self, shop: Shop) -> None:
        ran: list[str] = []

        def noting(message: Message) -> Steps:
            ran.append(message.id)
            yield wrote(message)

        shop.handle(behaviour=noting, key="k")
        shop.receive("a0", data={"k": "a"})
        receipts = batch(shop, *(arguments(name, more={"data": {"k": name[0]}}) for name in ("a1", "b0", "a2")))
        assert outcomes(receipts) == ["queued", "done", "queued"]
        shop.drain()
        assert ran == ["b0", "a0", "a1", "a2"]

    def test_numbers_of_a_key_are_kept(self, shop: Shop) -> None:
        """Each runs behind the one before it, also in its batch; a stale one is skipped, one after a gap queued."""
        shop.handle(key="k", sequence="n")
        numbers = [(name, {"k": name[0], "n": number}) for name, number in (("a2", 2), ("a1", 1), ("a4", 4), ("b1", 1))]
        receipts = batch(shop, *(arguments(name, more={"data": data}) for name, data in numbers))
        assert outcomes(receipts) == ["done", "done", "queued", "done"]
        more = [("again", {"k": "a", "n": 1}), ("a3", {"k": "a", "n": 3})]
        late = batch(shop, *(arguments(name, more={"data": data}) for name, data in more))
        assert outcomes(late) == ["queued", "queued"], "a worker decides where others wait"
        shop.finish()
        assert [name for name in shop.effects() if name[0] == "a"] == ["a1", "a2", "a3", "a4"]
        assert outcomes(batch(shop, arguments("old", more={"data": {"k": "b", "n": 1}}), "odd"))[0] == "done"
        assert shop.status("old") == "skipped"
        shop.inbox.admin.discard(shop.seqs["odd"], reason="test")

    def test_what_is_not_due_yet_is_stored(self, shop: Shop) -> None:
        """Beside a batch that is done; it holds nothing of its key."""
        shop.handle(key="k")
        keyed = {"data": {"k": "a"}}
        later = arguments("later", more={**keyed, "delay": 3600})
        receipts = batch(shop, later, arguments("m1", more=keyed), arguments("m2", more=keyed))
        assert outcomes(receipts) == ["queued", "done", "done"]
        assert shop.status("later") == "scheduled"
        detail = shop.inbox.admin.explain(shop.seqs["later"])
        assert detail is not None
        assert any(event.what.startswith("scheduled for") for event in detail.events)
        shop.let_time_pass("later")
        assert shop.inbox.admin.stats().oldest_due_seconds < 3600  # late since its time, not since it came

    def test_a_type_without_a_handler_is_stored(self, shop: Shop) -> None:
        """As ever: the first process that knows it gets it."""
        shop.handle()
        assert outcomes(batch(shop, "m1", ("m2", "unheard.of"))) == ["done", "queued"]
        assert shop.status("m2") == "unhandled"
        shop.handle("unheard.of")
        shop.drain()
        assert shop.effects() == ["m1", "m2"]

    def test_consumers_of_other_programs_get_theirs(self, shop: Shop) -> None:
        """In the same commit, for their workers."""
        other = shop.another()
        other.handle(consumer="mail")
        other.drain()
        shop.handle(consumer="billing")
        receipts = batch(shop, "m1", "m2")
        assert outcomes(receipts) == ["queued", "queued"], "finished when it is to all"
        assert shop.notes() == [("m1", "billing"), ("m2", "billing")]
        assert other.drain() == 2
        assert shop.notes() == sorted((one, who) for one in ("m1", "m2") for who in ("billing", "mail"))

    def test_handlers_of_both_kinds_have_a_transaction_each(self, shop: Shop) -> None:
        """The receipt is for both; a key that they share is for the workers, who keep its order."""
        shop.handle(consumer="one", kind="def")
        shop.handle(consumer="other", kind="async")
        shop.handle("keyed", key="k", consumer="one", kind="def")
        shop.handle("as keyed", key="k", consumer="one", kind="async")
        shared, own = {"data": {"k": "both"}}, {"data": {"k": "own"}}
        receipts = batch(
            shop,
            "m1",
            arguments("k1", "as keyed", more=shared),
            arguments("k2", "keyed", more=shared),
            arguments("k3", "keyed", more=own),
        )
        assert outcomes(receipts) == ["done", "queued", "queued", "done"]
        assert shop.notes() == [("k3", "one"), ("m1", "one"), ("m1", "other")]
        shop.finish()
        assert [one for one, _ in shop.journal() if one in {"k1", "k2"}] == ["k1", "k2"]

    def test_a_handler_that_wants_no_company_is_for_a_worker(self, shop: Shop) -> None:
        """With `group=1`; alone in its batch it runs."""
        shop.handle(group=1)
        shop.handle("usual")
        assert outcomes(batch(shop, "m1", ("m2", "usual"))) == ["queued", "done"]
        assert outcomes(batch(shop, "m3")) == ["done"]
        shop.drain()
        assert shop.effects() == ["m1", "m2", "m3"]

    def test_what_follows_one_for_a_worker_waits_for_it(self, shop: Shop) -> None:
        """Of one key: in the batch as anywhere."""
        shop.handle("alone", group=1, key="k")
        shop.handle("usual", key="k")
        keyed = {"data": {"k": "a"}}
        given = [arguments("a1", "alone", more=keyed), arguments("a2", "usual", more=keyed)]
        assert outcomes(batch(shop, *given, ("free", "unkeyed"))) == ["queued"] * 3
        shop.handle("unkeyed")
        shop.drain()
        assert [name for name, _ in shop.journal() if name[0] == "a"] == ["a1", "a2"]

    def test_a_handler_whose_circuit_is_open_is_not_called(self, shop: Shop) -> None:
        def down(message: Message) -> Steps:
            yield wrote(message)
            if message.type == "down" and message.attempt == 1:
                raise ConnectionError("not there")

        shop.handle("down", behaviour=down, circuit=Circuit(failures=1))
        receipts = batch(shop, ("m1", "down"), ("m2", "down"))
        assert outcomes(receipts) == ["retrying", "queued"]
        assert outcomes(batch(shop, ("m3", "down"), ("m4", "down"))) == ["queued", "queued"]
        assert shop.runs["m2"] + shop.runs["m3"] + shop.runs["m4"] == 0

    def test_what_takes_too_long_is_queued(self, shop: Shop) -> None:
        """After the time of a batch nothing more is begun; what is done, stays."""
        context = shop.inbox.context
        now = [context.clock()]
        context.clock = lambda: now[0]

        def slow(message: Message) -> Steps:
            now[0] += 100.0
            yield wrote(message)

        shop.handle(behaviour=slow)
        assert outcomes(batch(shop, "m1", "m2", "m3")) == ["done", "queued", "queued"]
        assert shop.effects() == ["m1"]
        shop.drain()
        assert shop.effects() == ["m1", "m2", "m3"]

    def test_a_handler_of_batches_gets_its_batch(self, shop: Shop) -> None:
        """In one call; where it raises each of them is tried alone."""
        seen: list[list[str]] = []

        def take(messages: list[Message]) -> None:
            seen.append([one.id for one in messages])
            if "bad" in seen[-1]:
                raise RuntimeError("bad")

        def handler(messages: list[Message], tx: object) -> None:
            del tx
            take(messages)

        async def async_handler(messages: list[Message], tx: object) -> None:
            del tx
            take(messages)

        shop.inbox.on("list", batch=True)(handler if shop.kind == "def" else async_handler)
        assert outcomes(batch(shop, *((name, "list") for name in ("m1", "m2", "m3")))) == ["done"] * 3
        assert seen == [["m1", "m2", "m3"]]
        receipts = batch(shop, *((name, "list") for name in ("m4", "bad", "m5")))
        assert outcomes(receipts) == ["done", "retrying", "done"]
        shop.inbox.admin.discard(shop.seqs["bad"], reason="test")

    def test_what_handlers_send_is_in_the_same_commit(self, shop: Shop) -> None:
        """And nothing of one that raised."""

        def sending(message: Message) -> Steps:
            message.send("sent", {"of": message.id}, to="there")
            yield wrote(message)
            if message.id == "bad":
                raise Reject("no")

        shop.handle(behaviour=sending)
        shop.inbox.add_sink("there", Nowhere())
        batch(shop, "m1", "bad", "m2")
        sent = shop.inbox.admin.messages(outgoing=True)
        assert len(sent) == 2
        shop.inbox.admin.redrive(shop.seqs["bad"])

    def test_a_body_that_cannot_be_read_is_dead_and_the_others_done(self, shop: Shop) -> None:
        shop.handle(behaviour=effect)
        receipts = batch(shop, "m1", arguments("bad", more={"body": b"{"}), "m2")
        assert outcomes(receipts) == ["done", "dead", "done"]
        assert shop.effects() == ["m1", "m2"]

    def test_a_dead_one_may_leave_its_key(self, shop: Shop) -> None:
        """With `on_dead="continue"` nothing waits for it; what was behind it in its batch is queued."""

        def picky(message: Message) -> Steps:
            yield wrote(message)
            if message.id == "a1":
                raise Reject("no")

        shop.handle(behaviour=picky, key="k", on_dead="continue")
        keyed = [arguments(name, more={"data": {"k": "a"}}) for name in ("a1", "a2")]
        assert outcomes(batch(shop, *keyed)) == ["dead", "queued"]
        shop.drain()
        assert shop.effects() == ["a2"]
        assert outcomes(batch(shop, *(arguments(name, more={"data": {"k": "a"}}) for name in ("a3", "a4")))) == [
            "done",
            "done",
        ]


class Nowhere:
    """A sink that takes everything."""

    def publish(self, message: Message) -> None:
        """Take it."""
