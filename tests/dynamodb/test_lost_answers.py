"""Answers that are lost on the way, clocks that jump, and others who come in between: everything takes effect once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from onceward import Inbox, Message, Reject, StoreUnavailable
from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_process
from onceward.stores.dynamodb.due import wanted
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Cancelled, Transact, Unit
from onceward.stores.moves.claims import Claim
from tests.crash.points import seed, takes_all
from tests.dynamodb.place import DynamoPlace
from tests.dynamodb.proxy import LossyProxy
from tests.recorded.kills import CASES, chosen, fresh_prefix
from tests.recorded.service import SCENARIOS, Place, built, drain_until, recover
from tests.servers import DynamoServer
from tests.waiting import wait_until_async

TYPE = "order.paid"
FORGETS = [False, True] if takes_all() else [True]
"""Whether a transaction's token is forgotten: that it is not is DynamoDB's to prove."""
MESSAGE: Any = {"source": "shop", "type": TYPE, "data": {"k": 1}}


@pytest.fixture
def proxy(dynamo_server: DynamoServer) -> Iterator[LossyProxy]:
    """What stands before the server."""
    with LossyProxy(dynamo_server.port) as proxy:
        yield proxy


@pytest.fixture
def behind(inbox: Inbox, place: DynamoPlace, proxy: LossyProxy) -> str:
    """The URL of the inbox, behind the proxy."""
    return place.url.replace(inbox.store.url.partition("endpoint=")[2], proxy.address)


@pytest.fixture
def proxied(behind: str) -> Iterator[Inbox]:
    """The inbox there."""
    with Inbox(behind) as made:
        yield made


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("forgets", FORGETS)
@pytest.mark.parametrize(("scenario", "kind"), CASES)
def test_any_answer_is_lost(  # noqa: PLR0913 - who stands where
    behind: str, place: DynamoPlace, proxy: LossyProxy, *, scenario: str, kind: str, forgets: bool
) -> None:
    """The client asks again, as if ten minutes had passed or at once: whatever the server did, it counts once."""
    proxy.forgets = forgets

    def played(number: int) -> int:
        prefix = fresh_prefix()
        with Inbox(place.url, prefix=prefix) as made:
            made.migrate()
        begun = proxy.asked
        proxy.lose_answers(lambda *_: proxy.asked - begun == number)
        with built(Place(behind, prefix, place.effects_table), kind) as working:
            SCENARIOS[scenario](working, kind)
        count = proxy.asked - begun
        assert proxy.hits == (0 < number <= count)  # who was quicker needs fewer requests
        recover(Place(place.url, prefix, place.effects_table), 0)
        return count

    for number in chosen(played(0), scenario, kind, forgets):
        try:
            played(number)
        except BaseException as error:
            error.add_note(f"{scenario}, {kind}, the answer to request {number} lost, seed {seed()}")
            raise


def handled_by(inbox: Inbox, place: DynamoPlace, **options: Any) -> None:
    """A handler that writes its message's id."""

    @inbox.on(TYPE, **options)
    def pay(message: Message, tx: Any) -> None:
        place.write(tx, (message.id, "paid"))


def names(inbox: Inbox, place: DynamoPlace) -> list[str]:
    """The messages that took effect, in order."""
    return [name for name, _ in place.effects(inbox)]


def test_a_write_of_a_caller_s_own_is_applied_once_when_its_answer_is_lost(
    inbox: Inbox, proxied: Inbox, place: DynamoPlace, proxy: LossyProxy
) -> None:
    """The client asks again; a single write needs the token of a transaction for that, too."""
    proxy.lose_answer(b"ADD n :one")
    with proxied.transaction() as tx:
        tx.update(place.effects_table, {"id": 1}, "ADD n :one", values={":one": 1})
    store: Any = inbox.store
    item = store.client().get_item(TableName=place.effects_table, Key={"id": {"N": "1"}})["Item"]
    assert (proxy.hits, item["n"]) == (1, {"N": "1"})


def test_a_key_whose_hold_has_lost_its_answer_is_held_all_the_same(
    inbox: Inbox, proxied: Inbox, place: DynamoPlace, proxy: LossyProxy
) -> None:
    """The message runs at once; it does not wait for its own hold to run out."""
    handled_by(proxied, place, key="k")
    proxied.process(id="m1", **MESSAGE)
    proxy.lose_answer(b"fence")
    receipt = proxied.process(id="m2", **MESSAGE)
    assert (proxy.hits, receipt.outcome) == (1, "done")
    assert names(inbox, place) == ["m1", "m2"]


def test_a_key_whose_hold_is_not_known_is_let_go(
    inbox: Inbox, proxied: Inbox, place: DynamoPlace, proxy: LossyProxy
) -> None:
    """The answer to each attempt is lost: the call begins again, and its own hold is not in the way."""
    handled_by(proxied, place, key="k")
    proxied.process(id="m1", **MESSAGE)
    proxy.lose_answers(lambda operation, body: operation == "PutItem" and b"fence" in body and proxy.hits < 4)
    assert proxied.process(id="m2", **MESSAGE).outcome == "done"
    assert (proxy.hits, names(inbox, place)) == (4, ["m1", "m2"])


def test_a_registration_whose_answer_is_lost_has_happened(
    proxied: Inbox, place: DynamoPlace, proxy: LossyProxy
) -> None:
    """The worker works, and is there once."""
    handled_by(proxied, place)
    proxied.receive(id="m1", **MESSAGE)
    proxy.lose_answer(b"alive_until")
    assert (proxied.drain(), proxy.hits) == (1, 1)
    assert proxied.admin.workers() == []


def test_a_key_that_was_taken_while_its_message_was_processed_is_not_written_to(
    inbox: Inbox, place: DynamoPlace
) -> None:
    """By a worker whose clock is ahead, with a message that blocks its key since: the passed one waits behind it."""
    ran: list[str] = []
    with Inbox(place.url) as other:
        ours: Any = inbox.store
        ahead: Any = other.store
        ahead.clock = lambda: ours.clock() + 120_000_000

        @other.on(TYPE, key="k")
        def refuse(_message: Message, _tx: Any) -> None:
            raise Reject("as the test asks")

        @inbox.on(TYPE, key="k")
        def pay(message: Message, tx: Any) -> None:
            place.write(tx, (message.id, "paid"))
            ran.append(message.id)
            if len(ran) == 1:
                other.receive(id="m2", **MESSAGE)
                drain_until(other, lambda: other.admin.stats().dead == 1, "the one behind it")

        receipt = inbox.process(id="m1", **MESSAGE)
        assert (receipt.outcome, names(inbox, place)) == ("queued", [])
        (dead,) = inbox.admin.messages(status="dead")
        inbox.admin.discard(dead.seq)
        drain_until(inbox, lambda: inbox.admin.stats().done == 1, "the one that was passed")
    assert names(inbox, place) == ["m1"]


@pytest.mark.parametrize("key", [None, "k"])
def test_what_has_ended_while_its_token_was_forgotten_has_ended_once(
    inbox: Inbox, proxied: Inbox, place: DynamoPlace, proxy: LossyProxy, *, key: str | None
) -> None:
    """The answer to a transaction is lost, and ten minutes pass: the items are read, inline and by a worker."""
    told: list[str] = []
    proxy.forgets = True

    @proxied.on(TYPE, key=key)
    def pay(message: Message, tx: Any) -> None:
        place.write(tx, (message.id, "paid"))
        message.after_commit(lambda: told.append(message.id))

    proxied.receive(id="m1", **MESSAGE)
    proxy.lose_answer(b"note")
    proxied.drain()
    assert proxy.hits == 1
    proxy.lose_answer(b"note")
    assert proxied.process(id="m2", **MESSAGE).outcome == "done"
    assert (proxy.hits, names(inbox, place), told) == (1, ["m1", "m2"], ["m1", "m2"])
    assert inbox.admin.stats().done == 2


def test_a_key_is_free_when_the_process_that_held_it_is_dead(inbox: Inbox, place: DynamoPlace) -> None:
    """It waits for whoever notices the death, and not for as long as a handler might run."""
    handled_by(inbox, place, key="k")
    with Inbox(place.url) as dying:

        @dying.on(TYPE, key="k")
        def die(_message: Message, _tx: Any) -> None:
            (name,) = {one.process for one in inbox.admin.workers()}
            perform(inbox.store, lambda: take_over_process(inbox.context, name, "as the test asks"))
            inbox.receive(id="m1", **MESSAGE)
            assert inbox.drain() == 1

        with suppress(StoreUnavailable):
            dying.process(id="m0", **MESSAGE)
        assert names(inbox, place)[0] == "m1"


def test_what_comes_before_a_message_that_waits_is_not_put_off_with_it(inbox: Inbox, place: DynamoPlace) -> None:
    """A worker looks between the number and the message of a sender, and says after both that nothing may run yet."""

    @inbox.on(TYPE, key="k", sequence="n")
    def pay(message: Message, tx: Any) -> None:
        place.write(tx, (message.id, "paid"))

    def numbered(number: int) -> None:
        inbox.receive(source="shop", id=f"m{number}", type=TYPE, data={"k": 1, "n": number})

    store: Any = inbox.store
    worker, sender = store.connect(), store.ask
    inbox.drain()
    numbered(2)
    inbox.drain()  # it waits for the number before it
    store.clock = lambda: time.time_ns() // 1000 + 70_000_000  # the key is looked at again
    looking = wanted(Table(store._base), Claim(0, 0, [1], limit=10, retries=10), puts_off=True)
    says: list[Transact] = []

    def ask(operation: str, arguments: Any) -> Any:
        if operation == "transact_write_items" and not says:
            request = next(looking)
            while not isinstance(request, Transact):
                request = looking.send(worker.perform(request))
            says.append(request)
        return sender(operation, arguments)

    store.ask = ask
    numbered(1)
    with suppress(Cancelled):
        worker.perform(*says)
    assert inbox.drain() == 2
    assert names(inbox, place) == ["m1", "m2"]


def test_a_key_is_free_when_the_call_that_held_it_was_cancelled(inbox: Inbox, place: DynamoPlace) -> None:
    """At once: no handler runs any more."""

    @inbox.on(TYPE, key="k")
    async def wait(message: Message, tx: Any) -> None:
        if message.id == "m1" and not began.is_set():
            began.set()
            await asyncio.Event().wait()
        place.write(tx, (message.id, "paid"))

    async def cancelled() -> None:
        call = asyncio.ensure_future(inbox.aprocess(id="m1", **MESSAGE))
        await began.wait()
        call.cancel()
        await asyncio.wait([call])
        await wait_until_async(free, message="the key to be free")
        assert (await inbox.aprocess(id="m2", **MESSAGE)).outcome == "done"
        await inbox.aclose()

    async def free() -> bool:
        heads = perform(store, lambda: Unit(store._base).query(store._base.layout.at("Q", 0).pk, first="k#"))
        return not any("fence" in head for head in heads)

    store: Any = inbox.store
    began = asyncio.Event()
    asyncio.run(cancelled())
    assert names(inbox, place) == ["m2"]


def test_a_mismatch_of_a_message_that_is_forgotten_meanwhile_is_a_new_message(inbox: Inbox, place: DynamoPlace) -> None:
    """Its mismatch would be of no message, and nothing could be shown of any mismatch any more."""
    handled_by(inbox, place)
    inbox.process(id="m1", **MESSAGE)
    store: Any = inbox.store
    asked = store.ask
    with Inbox(place.url) as other:
        ahead: Any = other.store
        ahead.clock = lambda: time.time_ns() // 1000 + 60 * 86_400_000_000

        def ask(operation: str, arguments: Any) -> Any:
            if "onceward_Z" in str(arguments.get("TransactItems")) and store.ask is ask:
                store.ask = asked
                pruned.append(other.retention.prune().messages)
            return asked(operation, arguments)

        pruned: list[int] = []
        store.ask = ask
        receipt = inbox.receive(**{**MESSAGE, "id": "m1", "data": {"k": 2}})
    assert (pruned, receipt.status) == ([1], "accepted")
    assert inbox.admin.quarantine() == []
