"""Typed messages: handlers get the model, and what does not fit is dead at once, in words without values (R58)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from onceward import Message
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Shop
from tests.typed.orders import ID, KINDS, REFUSED, SECRET, WRONG, MsgspecOrder, order

NAMED = [kind for kind in KINDS if kind != "TypedDict"]


@pytest.mark.parametrize("model", NAMED)
@pytest.mark.parametrize("way", ["receive", "process"])
def test_a_handler_gets_the_model_that_was_sent(shop: Shop, model: str, way: str) -> None:
    """Also inside a message that a handler sends; the stored bytes are the same in whatever process."""
    got: list[Any] = []

    def behaviour(message: Message) -> Steps:
        got.append(message.data)
        message.send("order.seen", message.data)
        yield wrote(message)

    shop.handle(KINDS[model][0], behaviour, key="order_id")
    getattr(shop, way)("m1", "order.paid", data=order(model))
    shop.drain()
    assert got == [order(model)]
    assert (shop.status("m1"), shop.detail("m1").key) == ("done", str(ID))
    assert b'"note":"aGk="' in (shop.detail("m1").body or b"") or model == "pydantic"
    assert b'"tags":["a","b","c"]' in (shop.detail("m1").body or b"")
    (sent,) = shop.inbox.admin.messages(outgoing=True)
    assert shop.detail(sent.seq).body == shop.detail("m1").body


@pytest.mark.parametrize("model", NAMED)
def test_what_does_not_fit_is_dead_at_once_without_its_values(
    shop: Shop, model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages with the same mistake are one group; their neighbours are done, and no handler has run for them."""
    monkeypatch.setenv("ONCEWARD_ENV", "development")  # which logs texts
    shop.handle(KINDS[model][0])
    with caplog.at_level(logging.DEBUG, logger="onceward"):
        shop.receive("w1", "order.paid", data=WRONG)
        shop.receive("m1", "order.paid", data=order(model))
        shop.receive("w2", "order.paid", data={**WRONG, "lines": WRONG["lines"] * 2, "at": None} | {"order_id": "z"})
        shop.receive("w3", "order.paid", data=REFUSED if model != "dataclass" else WRONG)
        assert shop.drain() == 1
    assert [shop.status(one) for one in ("w1", "m1", "w2", "w3")] == ["dead", "done", "dead", "dead"]
    assert shop.runs == {"m1": 1}
    for one in ("w1", "w2", "w3"):
        (attempt,) = shop.detail(one).history
        assert attempt.error.startswith(f"DataInvalid: the data does not fit {KINDS[model][0].__name__}: ")
        assert SECRET not in attempt.error + str(attempt.traceback)
    assert ("lines[].price" if model == "msgspec" else "order_id") in shop.error("w1")  # which tells the first only
    told = [record.getMessage() for record in caplog.records if record.name == "onceward"]
    assert len(told) >= 3
    assert SECRET not in "".join(told)
    shop.call(shop.inbox.admin, "redrive", shop.seqs["w1"])
    assert shop.drain() == 0
    assert (shop.status("w1"), len(shop.detail("w1").history)) == ("dead", 2)


def test_the_same_mistake_has_one_fingerprint(shop: Shop) -> None:
    shop.handle(KINDS["dataclass"][0])
    for number in range(3):
        lines = [{"sku": number, "price": f"{SECRET} {number}"}] * (number + 1)
        shop.receive(f"w{number}", "order.paid", data={**WRONG, "order_id": f"{SECRET} {number}", "lines": lines})
    assert shop.drain() == 0
    (group,) = shop.inbox.admin.dead_groups()
    assert group.messages == 3


def test_process_says_what_does_not_fit(shop: Shop) -> None:
    shop.handle(KINDS["msgspec"][0])
    receipt = shop.process("w1", "order.paid", data=WRONG)
    assert (receipt.outcome, receipt.error and receipt.error.kind) == ("dead", "DataInvalid")
    assert SECRET not in str(receipt.error)
    assert shop.process("m1", "order.paid", data=order("msgspec")).outcome == "done"


@dataclass
class First:
    """Version 1."""

    __message_type__: ClassVar[str] = "moved"
    number: int
    account: str


@dataclass
class Second:
    """Version 2."""

    __message_type__: ClassVar[str] = "moved"
    __message_version__: ClassVar[int] = 2
    number: int
    holder: str


@dataclass
class Third:
    """Version 3."""

    __message_type__: ClassVar[str] = "moved"
    __message_version__: ClassVar[int] = 3
    sequence: int
    holder: str


def test_versions_are_models_with_upcasters_between_them(shop: Shop) -> None:
    """Keys and numbers are found where the newest version has them, also in messages of older ones."""
    got: list[Any] = []

    def behaviour(message: Message) -> Steps:
        got.append(message.data)
        yield wrote(message)

    shop.handle(Third, behaviour, key="holder", sequence="sequence")

    @shop.inbox.upcast(First)
    def second(data: First) -> Second:
        return Second(data.number, data.account.lower())

    @shop.inbox.upcast(Second)
    def third(data: Second) -> dict[str, Any]:
        return {"sequence": data.number, "holder": data.holder}

    shop.receive("m3", "moved", data=Third(3, "ann"))
    shop.receive("m2", "moved", data=Second(2, "ann"))
    shop.receive("m1", "moved", data=First(1, "ANN"))
    shop.receive("w1", "moved", data={"number": SECRET, "account": "Bob"}, version=1)
    shop.finish()
    assert got == [Third(1, "ann"), Third(2, "ann"), Third(3, "ann")]
    assert [shop.detail(one).version for one in ("m1", "m2", "m3")] == [1, 2, 3]
    assert shop.status("w1") == "dead"
    assert "First: number must be a whole number, not text" in shop.error("w1")


def test_a_receiver_without_handlers_leaves_the_key_to_the_worker(shop: Shop) -> None:
    """It knows the path, and not what older versions become: the worker moves the message to its place."""
    got: list[Any] = []

    def behaviour(message: Message) -> Steps:
        got.append(message.data)
        yield wrote(message)

    shop.handle(Second, behaviour, key="holder")
    shop.inbox.upcast("moved", 1)(lambda data: {"number": data["number"], "holder": data["account"]})
    shop.drain()
    with shop.visitor() as receiver:
        shop.seqs["m1"] = receiver.receive("m1", "moved", data=First(1, "ann")).seq
    shop.drain()
    assert (got, shop.detail("m1").key) == ([Second(1, "ann")], "ann")


def test_a_key_function_gets_the_model(shop: Shop) -> None:
    """A UUID is its text; where the data does not fit, that is what the message is dead of."""
    shop.handle(KINDS["pydantic"][0], key=lambda message: message.data.order_id)
    shop.receive("m1", "order.paid", data=order("pydantic"))
    shop.receive("w1", "order.paid", data=WRONG)
    shop.drain()
    assert (shop.status("m1"), shop.detail("m1").key) == ("done", str(ID))
    assert (shop.status("w1"), shop.error("w1").partition(":")[0]) == ("dead", "DataInvalid")


def test_a_batch_gets_models(shop: Shop) -> None:
    """One that does not fit is dead by itself, and the others are done together."""
    sizes: list[int] = []

    def take(messages: list[Message[MsgspecOrder]], _tx: Any) -> None:
        sizes.append(len([message.data.order_id for message in messages]))

    async def take_async(messages: list[Message[MsgspecOrder]], tx: Any) -> None:
        take(messages, tx)

    register = shop.inbox.on(MsgspecOrder, batch=True)
    if shop.kind == "def":
        register(take)
    else:
        register(take_async)
    for number in range(3):
        shop.receive(f"m{number}", "order.paid", data=WRONG if number == 1 else order("msgspec"))
    assert shop.drain() == 2
    assert [shop.status(f"m{number}") for number in range(3)] == ["done", "dead", "done"]
    assert sorted(sizes) in ([2], [1, 1])
