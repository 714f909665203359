"""`message.once`: an external call is made once and recorded; what nobody knows waits for a person (R27)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, OutcomeUnknown, Reject, Retry, RetryPolicy
from onceward.flow import Query
from onceward.steps.context import in_transaction
from tests.contract.behaviour import Do, Steps, wrote
from tests.contract.harness import Shop, arguments
from tests.order.conftest import everywhere

ONE_ATTEMPT = RetryPolicy(attempts=1)


class Provider:
    """The other side: it counts what it was asked to do, and may raise instead of answering."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.answer: Any = {"charge": "ch_1"}
        self.error: Callable[[], BaseException] | None = None
        self.awaitable = False

    def charge(self, message: Message, name: str = "charge", *, idempotent: bool | timedelta = False) -> Do:
        """The step that charges once."""
        return Do(lambda _: message.once(name, self._call(message, name), idempotent=idempotent))

    def _call(self, message: Message, name: str) -> Callable[[], Any]:
        def call() -> Any:
            self.calls.append(f"{message.id} {name}")
            self.keys.append(message.idempotency_key(name))
            if self.error:
                raise self.error()
            return self.answer

        async def async_call() -> Any:
            return call()

        return async_call if self.awaitable else call


@pytest.fixture
def provider(shop: Shop) -> Provider:
    """The other side."""
    return Provider(shop)


def charging(
    provider: Provider, *, failures: int = 0, idempotent: bool | timedelta = False
) -> Callable[[Message], Steps]:
    """A behaviour: charge, write down the answer, and fail in the first attempts."""

    def behaviour(message: Message) -> Steps:
        answer = yield provider.charge(message, idempotent=idempotent)
        yield wrote(message, str(answer))
        if message.attempt <= failures:
            raise RuntimeError("not yet")

    return behaviour


@everywhere
def test_a_call_is_made_once_however_often_the_handler_fails(shop: Shop, provider: Provider) -> None:
    """The result is recorded outside of the handler's transaction, and a retry gets the record."""
    shop.handle(behaviour=charging(provider, failures=2))
    shop.receive("m1")
    shop.finish()
    assert shop.status("m1") == "done"
    assert provider.calls == ["m1 charge"]
    assert shop.notes() == [("m1", str(provider.answer))]
    (effect,) = shop.detail("m1").effects
    assert (effect.name, effect.done, effect.result, effect.key) == ("charge", True, provider.answer, provider.keys[0])
    assert effect.finished_at is not None
    assert shop.inbox.admin.effects() == []


@pytest.mark.parametrize("shop", ["sqlite-async", "postgres-async"], indirect=True)
def test_a_call_may_be_awaitable(shop: Shop, provider: Provider) -> None:
    """In an `async def` handler: an `async def` call or a plain one."""
    provider.awaitable = True
    shop.handle(behaviour=charging(provider, failures=1))
    shop.receive("m1")
    shop.finish()
    assert (shop.notes(), provider.calls) == ([("m1", str(provider.answer))], ["m1 charge"])


@pytest.mark.parametrize("value", [None, 0, "", False, [], {}, "text", 1.5, {"a": [None, {"b": "ü\u2028"}]}], ids=repr)
def test_every_json_value_comes_back_as_it_was(shop: Shop, provider: Provider, value: Any) -> None:
    """Also nothing at all: a call that returned None is not a call without a result."""
    seen: list[Any] = []
    provider.answer = value

    def behaviour(message: Message) -> Steps:
        seen.append((yield provider.charge(message)))
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.finish()
    assert seen == [value, value]
    assert [type(one) for one in seen] == [type(value)] * 2
    assert len(provider.calls) == 1


@everywhere
def test_a_result_that_cannot_be_recorded(shop: Shop, provider: Provider) -> None:
    """It has happened, so it is never made again; the message is dead and says what to change."""
    provider.answer = object()
    shop.handle(behaviour=charging(provider))
    shop.receive("m1")
    shop.finish()
    assert shop.status("m1") == "dead"
    assert "message.once('charge'): the call returned object, which cannot be recorded" in shop.error("m1")
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.finish()
    assert provider.calls == ["m1 charge"]
    assert shop.inbox.admin.effects() == []


@everywhere
def test_a_call_that_raises_has_an_unknown_outcome(shop: Shop, provider: Provider) -> None:
    """A timeout, a reset connection: perhaps it happened. The message is dead until a person says."""
    provider.error = lambda: TimeoutError("no answer")
    shop.handle(behaviour=charging(provider))
    shop.receive("m1")
    shop.drain()
    assert shop.status("m1") == "retrying"
    assert shop.error("m1") == "TimeoutError: no answer"
    provider.error = None
    shop.hurry()
    shop.drain()
    assert shop.status("m1") == "dead"
    assert "'charge' of message 'm1' was begun by an earlier attempt, and whether it happened is unknown" in shop.error(
        "m1"
    )
    assert "settle_effect" in shop.error("m1")
    assert provider.calls == ["m1 charge"]
    (effect,) = shop.inbox.admin.effects()
    assert (effect.seq, effect.name, effect.done) == (shop.seqs["m1"], "charge", False)


@pytest.fixture
def unknown(shop: Shop, provider: Provider) -> Provider:
    """A message that is dead because nobody knows whether its charge happened."""
    provider.error = lambda: TimeoutError("no answer")
    shop.handle(behaviour=charging(provider))
    shop.receive("m1")
    shop.finish()
    assert (shop.status("m1"), provider.calls) == ("dead", ["m1 charge"])
    provider.error = None
    return provider


def test_a_person_says_that_it_happened(shop: Shop, unknown: Provider) -> None:
    """The handler gets the result that the person gave; the call is not made again."""
    seq = shop.seqs["m1"]
    assert shop.inbox.admin.settle_effect(
        seq, "charge", happened=True, result={"charge": "seen"}, actor="ann", reason="log"
    )
    assert not shop.inbox.admin.settle_effect(seq, "charge", happened=True, result={"charge": "other"})
    assert not shop.inbox.admin.settle_effect(seq, "charge", happened=False)
    assert shop.inbox.admin.effects() == []
    assert shop.inbox.admin.redrive(seq) == 1
    shop.drain()
    assert shop.notes() == [("m1", "{'charge': 'seen'}")]
    assert unknown.calls == ["m1 charge"]
    actions = [(entry.actor, entry.action, entry.reason) for entry in shop.detail("m1").actions]
    assert actions[0] == ("ann", "effect happened", "log")
    assert len(actions) == 2


def test_a_person_says_that_it_did_not_happen(shop: Shop, unknown: Provider) -> None:
    """The call is made again."""
    seq = shop.seqs["m1"]
    assert shop.inbox.admin.settle_effect(seq, "charge", happened=False)
    assert shop.inbox.admin.effects() == []
    shop.inbox.admin.redrive(seq)
    shop.drain()
    assert unknown.calls == ["m1 charge"] * 2
    assert len(set(unknown.keys)) == 1
    assert shop.notes() == [("m1", str(unknown.answer))]


def test_a_redrive_without_a_word_changes_nothing(shop: Shop, unknown: Provider) -> None:
    """Whoever redrives first and looks later is stopped again."""
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()
    assert shop.status("m1") == "dead"
    assert unknown.calls == ["m1 charge"]


def test_there_is_nothing_to_say_about_an_effect_that_is_not_there(shop: Shop, unknown: Provider) -> None:
    """A wrong name or number is an error, not a silent nothing."""
    assert unknown.calls
    for seq, name in ((shop.seqs["m1"], "refund"), (999_999, "charge")):
        with pytest.raises(LookupError, match="has no effect named"):
            shop.inbox.admin.settle_effect(seq, name, happened=True)


@everywhere
def test_an_idempotent_call_is_made_again_under_the_same_key(shop: Shop, provider: Provider) -> None:
    """R26, R27: the other side honours the key, so nobody has to be asked."""
    provider.error = lambda: TimeoutError("no answer")
    shop.handle(behaviour=charging(provider, idempotent=True))
    shop.receive("m1")
    shop.drain()
    provider.error = None
    shop.finish()
    assert shop.status("m1") == "done"
    assert provider.calls == ["m1 charge"] * 2
    assert len(set(provider.keys)) == 1


def redriven_late(shop: Shop, provider: Provider, memory: bool | timedelta) -> None:  # noqa: FBT001
    """A call without an answer, whose message is redriven 25 hours later."""
    provider.error = lambda: TimeoutError("no answer")
    shop.handle(behaviour=charging(provider, idempotent=memory), retry=ONE_ATTEMPT)
    shop.receive("m1")
    shop.drain()
    provider.error = None
    shop.sql(f"UPDATE {shop.prefix}effect SET started_at = started_at - 90000000000")
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()


@everywhere
@pytest.mark.parametrize("memory", [True, timedelta(hours=1)], ids=str)
def test_a_late_redrive_does_not_trust_a_key_that_may_be_forgotten(
    shop: Shop,
    provider: Provider,
    memory: bool | timedelta,  # noqa: FBT001
) -> None:
    """C34, R27: providers drop keys in time; a repetition is then a second charge, so a person is asked."""
    redriven_late(shop, provider, memory)
    assert (shop.status("m1"), provider.calls) == ("dead", ["m1 charge"])
    assert "settle_effect" in shop.error("m1")
    assert shop.inbox.admin.settle_effect(shop.seqs["m1"], "charge", happened=False)
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()
    assert (shop.status("m1"), provider.calls) == ("done", ["m1 charge"] * 2)


@everywhere
def test_a_long_memory_makes_a_late_redrive_safe(shop: Shop, provider: Provider) -> None:
    """R27: a handler that knows its provider says for how long the key is good."""
    redriven_late(shop, provider, timedelta(days=30))
    assert (shop.status("m1"), len(set(provider.keys))) == ("done", 1)


@everywhere
def test_retry_inside_the_call_says_that_it_did_not_happen(shop: Shop, provider: Provider) -> None:
    """Refused before anything was done: tried again as if it had never been begun."""
    provider.error = lambda: Retry("rate limited", after=3600)
    shop.handle(behaviour=charging(provider))
    shop.receive("m1")
    shop.drain()
    assert shop.status("m1") == "retrying"
    assert shop.detail("m1").effects == ()
    provider.error = None
    shop.finish()
    assert shop.status("m1") == "done"
    assert provider.calls == ["m1 charge"] * 2


def test_a_rejected_call_is_dead_at_once(shop: Shop, provider: Provider) -> None:
    """R14: and a redrive does not charge again."""
    provider.error = lambda: Reject("card refused")
    shop.handle(behaviour=charging(provider))
    shop.receive("m1")
    shop.drain()
    assert shop.status("m1") == "dead"
    assert "card refused" in shop.error("m1")
    provider.error = None
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()
    assert provider.calls == ["m1 charge"]


@everywhere
def test_a_handler_that_swallows_the_unknown_is_stopped_all_the_same(shop: Shop, provider: Provider) -> None:
    """R27: it went on as if the call had been made; nothing of that is committed."""
    provider.error = lambda: TimeoutError("no answer")

    def behaviour(message: Message) -> Steps:
        try:
            yield provider.charge(message)
        except TimeoutError:
            raise
        except OutcomeUnknown:
            pass
        yield wrote(message, "went on")
        return "fine"

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.finish()
    assert shop.status("m1") == "dead"
    assert shop.effects() == []
    assert "whether it happened is unknown" in shop.error("m1")


@everywhere
def test_a_call_inside_a_group_runs_alone(shop: Shop, provider: Provider) -> None:
    """R27, HZ-51: its group is undone before anything is recorded, and nobody is charged for that."""
    shop.handle("plain")
    shop.handle("charge", charging(provider))
    kinds = ["plain", "charge", "plain", "charge", "plain"]
    shop.receive_many(arguments(f"m{number}", kind) for number, kind in enumerate(kinds))
    shop.drain()
    assert shop.effects() == [f"m{number}" for number in range(5)]
    assert sorted(provider.calls) == ["m1 charge", "m3 charge"]
    assert shop.count("attempt") == 0


def test_a_call_inside_a_keyed_group_keeps_the_order(shop: Shop, provider: Provider) -> None:
    """R17, R27: by position, too."""
    shop.handle("charge", charging(provider), key="k")
    for position in (3, 1, 2):
        shop.receive(f"m{position}", "charge", data={"k": "k"}, position=position)
    shop.drain()
    assert provider.calls == ["m1 charge", "m2 charge", "m3 charge"]


@everywhere
def test_a_handler_that_catches_everything_still_runs_alone(shop: Shop, provider: Provider) -> None:
    """R27: a broad `except` around the call must not turn "start again, alone" into "done without the call"."""

    def handler(message: Message, tx: Any) -> None:  # noqa: ARG001 - what a handler takes
        with suppress(BaseException):  # as careless code does
            message.once("charge", provider._call(message, "charge"))

    async def async_handler(message: Message, tx: Any) -> None:  # noqa: ARG001 - what a handler takes
        with suppress(BaseException):  # as careless code does
            await message.once("charge", provider._call(message, "charge"))

    shop.inbox.on("charge")(handler if shop.kind == "def" else async_handler)
    for number in range(3):
        shop.receive(f"m{number}", "charge")
    shop.drain()
    assert {shop.status(f"m{number}") for number in range(3)} == {"done"}
    assert sorted(provider.calls) == ["m0 charge", "m1 charge", "m2 charge"]


def test_a_batch_that_calls_is_run_as_lists_of_one(shop: Shop, provider: Provider) -> None:
    """R21, R27: each call is recorded with its own message."""

    def handler(messages: list[Message], tx: Any) -> None:  # noqa: ARG001 - what a handler takes
        for message in messages:
            message.once("charge", provider._call(message, "charge"))

    async def async_handler(messages: list[Message], tx: Any) -> None:  # noqa: ARG001 - what a handler takes
        for message in messages:
            await message.once("charge", provider._call(message, "charge"))

    shop.inbox.on("charge", batch=True)(handler if shop.kind == "def" else async_handler)
    for number in range(4):
        shop.receive(f"m{number}", "charge")
    shop.drain()
    assert sorted(provider.calls) == [f"m{number} charge" for number in range(4)]
    assert all(len(shop.detail(f"m{number}").effects) == 1 for number in range(4))


def test_several_calls_of_one_message_are_recorded_by_name(shop: Shop, provider: Provider) -> None:
    """The second fails with an unknown outcome; only that one has to be settled, and the first is not made again."""
    errors: list[BaseException] = [TimeoutError("no answer")]

    def behaviour(message: Message) -> Steps:
        yield provider.charge(message, "first")
        provider.error = errors.pop if errors else None
        yield provider.charge(message, "second")
        again = yield provider.charge(message, "first")
        yield wrote(message, str(again))

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.finish()
    assert [effect.name for effect in shop.inbox.admin.effects()] == ["second"]
    shop.inbox.admin.settle_effect(shop.seqs["m1"], "second", happened=False)
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()
    assert provider.calls == ["m1 first", "m1 second", "m1 second"]
    assert shop.status("m1") == "done"


def test_each_consumer_calls_for_itself(shop: Shop, provider: Provider) -> None:
    """R02, R27: one message, two consumers, two calls under two keys."""

    def behaviour(message: Message) -> Steps:
        yield provider.charge(message)
        yield wrote(message)

    for consumer in ("one", "two"):
        shop.handle(behaviour=behaviour, consumer=consumer)
    shop.receive("m1")
    shop.drain()
    assert len(provider.calls) == len(set(provider.keys)) == 2


@pytest.mark.parametrize("kind", ["def", "async"])
def test_on_sqlite_it_must_come_before_the_first_use_of_tx(sqlite_url: str, kind: Any) -> None:
    """There is one writer: the handler is told so, and the call is not made."""
    with Shop(sqlite_url, kind) as shop:
        provider = Provider(shop)

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            yield provider.charge(message)

        shop.handle(behaviour=behaviour)
        shop.receive("m1")
        shop.drain()
        assert shop.status("m1") == "dead"
        assert "call once() before the first use of tx" in shop.error("m1")
        assert provider.calls == []


@pytest.mark.parametrize("kind", ["def", "async"])
def test_on_postgresql_it_may_come_after(postgres_url: str, kind: Any) -> None:
    """The record is committed on a connection of its own, whatever becomes of the handler's transaction."""
    with Shop(postgres_url, kind) as shop:
        provider = Provider(shop)

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            yield provider.charge(message)
            if message.attempt == 1:
                raise RuntimeError("not yet")

        shop.handle(behaviour=behaviour)
        shop.receive("m1")
        shop.finish()
        assert (shop.effects(), provider.calls) == (["m1"], ["m1 charge"])


@pytest.mark.parametrize("kind", ["def", "async"])
def test_inline_on_postgresql(postgres_url: str, kind: Any) -> None:
    """R03, R27: recorded; a failure is stored for retry, and the retry gets the record."""
    with Shop(postgres_url, kind) as shop:
        provider = Provider(shop)
        shop.handle(behaviour=charging(provider, failures=1))
        assert not shop.process("m1").finished
        shop.finish()
        assert shop.notes() == [("m1", str(provider.answer))]
        assert provider.calls == ["m1 charge"]
        assert [effect.name for effect in shop.detail("m1").effects] == ["charge"]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_inline_on_postgresql_an_unknown_outcome_can_be_settled(postgres_url: str, kind: Any) -> None:
    """R03, R27: the message that is stored in the end is the one whose effect a person finds and settles."""
    with Shop(postgres_url, kind) as shop:
        provider = Provider(shop)
        provider.error = lambda: TimeoutError("no answer")
        shop.handle(behaviour=charging(provider))
        shop.process("m1")
        provider.error = None
        shop.finish()
        assert shop.status("m1") == "dead"
        assert [effect.seq for effect in shop.inbox.admin.effects()] == [shop.seqs["m1"]]
        assert shop.inbox.admin.settle_effect(shop.seqs["m1"], "charge", happened=True, result="seen")
        shop.inbox.admin.redrive(shop.seqs["m1"])
        shop.drain()
        assert shop.notes() == [("m1", "seen")]
        assert provider.calls == ["m1 charge"]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_inline_on_sqlite_the_message_is_stored_first(sqlite_url: str, kind: Any) -> None:
    """D24: its record cannot be committed while the transaction that receives the message is open, with one writer.

    So the message is stored, and then handled at once, in order with others of its key; and the next ones too.
    """
    with Shop(sqlite_url, kind) as shop:
        provider = Provider(shop)
        shop.handle(behaviour=charging(provider), key="k", key_required=False)
        for number in (1, 2):
            receipt = shop.process(f"m{number}", data={"k": "a"})
            assert (receipt.status, receipt.finished) == ("accepted", True)
        assert shop.process("free").finished
        assert shop.effects() == ["free", "m1", "m2"]
        assert provider.calls == ["m1 charge", "m2 charge", "free charge"]
        provider.error = lambda: Retry("busy")
        assert not shop.process("m3", data={"k": "a"}).finished
        assert not shop.process("m4", data={"k": "a"}).finished
        provider.error = None
        shop.finish()
        assert provider.calls[3:] == ["m3 charge", "m3 charge", "m4 charge"]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_inline_on_sqlite_after_tx_it_is_refused_with_the_true_reason(sqlite_url: str, kind: Any) -> None:
    """D24: also where the message was stored first; the call is not made."""
    with Shop(sqlite_url, kind) as shop:
        provider = Provider(shop)

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            yield provider.charge(message)

        shop.handle(behaviour=behaviour)
        assert not shop.process("m1").finished
        assert "was called after the handler had used tx" in shop.error("m1")
        assert (provider.calls, shop.effects()) == ([], [])


def test_inline_after_a_crash_it_works_everywhere(shop: Shop, provider: Provider) -> None:
    """R16, R27: stored first, it is handled as by a worker."""
    shop.handle("plain")
    shop.handle(behaviour=charging(provider))
    shop.process("m0", "plain")
    shop.step(in_transaction(shop.inbox.context, Query("touch_catalog", {"crash": True})))
    assert shop.process("m1").finished
    assert provider.calls == ["m1 charge"]


def test_it_works_inside_a_handler_only(shop: Shop, provider: Provider) -> None:
    """HZ-84: a call that nobody waits for could not be recorded with its message."""
    kept: list[Message] = []

    def behaviour(message: Message) -> Steps:
        kept.append(message)
        yield provider.charge(message)
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    assert [effect.name for effect in shop.detail("m1").effects] == ["charge"]
    assert kept[0].idempotency_key("charge") == provider.keys[0]
