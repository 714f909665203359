"""One handler per (consumer, type, version), one way to find the key, and errors that say what to change."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.errors import ConfigurationError, HandlerNotFound, OncewardError
from onceward.message import Message
from onceward.registry import ANY_TYPE, OUTBOX, Handler, Registry, key_at
from onceward.retry import RetryPolicy
from tests.unit.builders import do_nothing, do_nothing_async, handler, relay


def registry(*handlers: Handler) -> Registry:
    one = Registry()
    for each in handlers:
        one.add(each)
    return one


def by_order(message: Message, tx: Any = None) -> Any:
    del tx
    return message.data["order"]


def test_a_handler_is_found_by_consumer_type_and_version() -> None:
    """Each combination has its own handler."""
    handlers = [
        handler("paid"),
        handler("paid", version=2),
        handler("paid", consumer="mail"),
        handler("sent"),
    ]
    known = registry(*handlers)
    assert len(known) == 4
    assert list(known) == handlers
    for each in handlers:
        assert known.find(each.consumer, each.type, each.version) == (each, [])
        found = known.of_type(each.consumer, each.type)
        assert found is not None
        assert (found.consumer, found.type) == (each.consumer, each.type)
    assert known.of_type("nobody", "paid") is None
    assert known.of_type("service", "lost") is None


def test_a_missing_handler_says_what_there_is() -> None:
    """The error lists the versions that are handled."""
    known = registry(handler(version=3), handler(version=1), handler("sent", version=9))
    with pytest.raises(HandlerNotFound, match="version 2 of 'paid' for consumer 'service'; handled versions: 1, 3;"):
        known.find("service", "paid", 2)
    with pytest.raises(HandlerNotFound, match="handled versions: none"):
        known.find("mail", "paid", 1)


def test_two_handlers_of_one_version_collide() -> None:
    """The error names both functions and the way out."""
    known = registry(handler(function=do_nothing))
    with pytest.raises(ConfigurationError, match=r"by_order and do_nothing both handle version 1.*its own consumer="):
        known.add(handler(function=by_order))
    known.add(handler(function=by_order, consumer="mail"))
    assert len(known) == 2


def add_total(data: Any) -> Any:
    return {**data, "total": 1}


def add_tax(data: Any) -> Any:
    return {**data, "tax": data["total"] * 2}


def test_old_versions_are_brought_up_to_date() -> None:
    """Step by step from the version that came to the nearest one that is handled; a handled version needs no step."""
    known = registry(handler(version=3), handler(version=5))
    known.add_upcaster("paid", 1, add_total)
    known.add_upcaster("paid", 2, add_tax)
    known.add_upcaster("paid", 3, add_tax)
    assert known.find("service", "paid", 1) == (known.find("service", "paid", 3)[0], [add_total, add_tax])
    assert known.find("service", "paid", 2)[1] == [add_tax]
    assert known.find("service", "paid", 3)[1] == []
    with pytest.raises(HandlerNotFound, match=r"version 4 .*handled versions: 3, 5; upcasters: 1, 2, 3"):
        known.find("service", "paid", 4)
    with pytest.raises(HandlerNotFound):
        known.find("service", "paid", 6)
    with pytest.raises(ConfigurationError, match="has an upcaster already"):
        known.add_upcaster("paid", 2, add_total)


def test_the_relay_handles_whatever_goes_to_a_destination() -> None:
    """One handler for every version of what goes there; others are not found; its names are reserved for it."""
    known, first, second = registry(handler()), relay(), relay("billing", group=5)
    known.add_relay(first)
    known.add_relay(second)
    assert known.find(OUTBOX, "billing", 17) == (second, [])
    assert known.of_type(OUTBOX, "default") is first
    assert known.destinations(is_async=False) == ["default", "billing"]
    assert known.destinations(is_async=True) == []
    with pytest.raises(HandlerNotFound):
        known.find(OUTBOX, "elsewhere", 1)
    for taken in (handler(ANY_TYPE), handler(consumer=OUTBOX)):
        with pytest.raises(ConfigurationError, match="reserved"):
            known.add(taken)


def test_versions_share_their_key() -> None:
    """Messages of one type are ordered in one way, whatever their version."""
    known = registry(handler(key="order"))
    with pytest.raises(ConfigurationError, match="must therefore have the same key="):
        known.add(handler(version=2, key="customer"))
    known.add(handler(version=2, key="order"))
    known.add(handler(version=2, key="customer", consumer="mail"))


def test_versions_share_how_they_are_ordered() -> None:
    """Numbers and the treatment of dead ones belong to the key, so they are the same for every version."""
    known = registry(handler(key="order", sequence="number", on_dead="continue"))
    with pytest.raises(ConfigurationError, match="the same sequence="):
        known.add(handler(version=2, key="order", on_dead="continue"))
    with pytest.raises(ConfigurationError, match="the same on_dead="):
        known.add(handler(version=2, key="order", sequence="number"))
    known.add(handler(version=2, key="order", sequence="number", on_dead="continue"))


def test_versions_share_their_kind() -> None:
    """Versions of a type are all `def` or all `async def`: they live in the same lanes."""
    known = registry(handler())
    with pytest.raises(ConfigurationError, match="both be def or both be async def"):
        known.add(handler(version=2, function=do_nothing_async))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type": ""}, "type is empty"),
        ({"type": "a\nb"}, "type"),
        ({"consumer": ""}, "consumer is empty"),
        ({"consumer": "x" * 256}, "consumer"),
        ({"group": 0}, "group=0 must be a whole number, at least 1"),
        ({"on_dead": "skip"}, "on_dead='skip' must be"),
        ({"sequence": "number"}, "needs key="),
    ],
)
def test_a_handler_that_makes_no_sense_is_refused(changes: dict[str, Any], reason: str) -> None:
    """A wrong registration fails when the program starts."""
    with pytest.raises(OncewardError, match=reason):
        registry(handler(**changes))


def test_a_refused_handler_is_not_registered() -> None:
    """After an error the registry is as it was."""
    known = registry(handler())
    with pytest.raises(ConfigurationError):
        known.add(handler(function=by_order))
    assert [each.function for each in known] == [do_nothing]


def test_handlers_know_their_kind_and_name() -> None:
    """Async functions are recognised, also behind `partial`; every callable has a name for people."""
    assert not handler().is_async
    assert handler(function=do_nothing_async).is_async
    assert handler(function=functools.partial(do_nothing_async)).is_async
    assert handler().name == "do_nothing"
    assert "partial" in handler(function=functools.partial(do_nothing)).name


def test_a_handler_is_frozen() -> None:
    """Rules cannot change while messages run under them."""
    one = handler()
    with pytest.raises(AttributeError):
        one.timeout = timedelta(0)  # type: ignore[misc] # that is the point
    assert one.retry == RetryPolicy()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("order", 7),
        ("customer.id", "c1"),
        ("customer.address.city", "Bonn"),
        ("customer", {"id": "c1", "address": {"city": "Bonn"}}),
        ("missing", None),
        ("order.id", None),
        ("customer.missing.city", None),
        ("items.0", None),
        ("nothing", None),
        ("nothing.more", None),
        ("", None),
        ("customer.", None),
        ("header:tenant", "t1"),
        ("header:x:y", "colon"),
        ("header:missing", None),
        ("header:", None),
    ],
)
def test_a_key_is_found_by_its_path(path: str, expected: Any) -> None:
    """A field, a dotted path or a header; None where there is nothing."""
    data = {"order": 7, "customer": {"id": "c1", "address": {"city": "Bonn"}}, "items": [1], "nothing": None}
    assert key_at(path, data, {"tenant": "t1", "x:y": "colon"}) == expected


@pytest.mark.parametrize("path", ["header:Kafka-Key", "header:kafka-key", "header:KAFKA-KEY"])
@pytest.mark.parametrize("name", ["kafka-key", "Kafka-Key"])
def test_headers_are_found_in_any_case(path: str, name: str) -> None:
    """D15: brokers and webhooks lower them; the spelling decides only where there are two."""
    assert key_at(path, None, {name: "7"}) == "7"
    assert key_at("header:A", None, {"a": "1", "A": "2"}) == "2"


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.:", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.text("ab.:", max_size=8) | st.text("ab.:", max_size=4).map("header:".__add__), JSON)
@example("a.b", {"a": {"b": 1}})
def test_any_path_into_any_data_is_an_answer(path: str, data: Any) -> None:
    """Looking for a key never fails, whatever was sent."""
    key_at(path, data, {"a": "1"})


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4), st.integers())
def test_a_path_leads_to_what_lies_at_its_end(parts: list[str], value: int) -> None:
    """A dotted path walks one field at a time."""
    data: Any = value
    for part in reversed(parts):
        data = {part: data}
    assert key_at(".".join(parts), data, {}) == value
    assert key_at(".".join([*parts, "x"]), data, {}) is None


def test_whether_a_type_is_paused_is_asked_of_its_own_handlers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim asks it of every type: with all handlers looked at each time, 1,000 types cost forty times more."""
    asked: list[str] = []

    def is_paused(one: Handler) -> bool:
        asked.append(one.type)
        return True

    monkeypatch.setattr(Handler, "is_paused", property(is_paused))
    known = registry(handler("paid"), handler("paid", version=2), *(handler(f"other-{n}") for n in range(20)))
    consumer = handler("paid").consumer
    assert known.all_paused(consumer, "paid")
    assert asked == ["paid", "paid"]
    assert not known.all_paused(consumer, "nothing like it")
