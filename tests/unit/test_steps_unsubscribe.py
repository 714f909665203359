"""A consumer that retires loses no message in silence."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.registry import OUTBOX
from onceward.steps.unsubscribe import subscribed, unsubscribe
from tests.unit.builders import SERVICE, catalog_answers, context, handler
from tests.unit.script import Script, Turns

FREE = (None, None, None, SERVICE, 0, None, None)
HERE = context(handler())


def row(number: int, *, unfinished: int = 0, retired: int = 0) -> tuple[Any, ...]:
    return ("paid", unfinished, retired, number)


def run(answers: dict[str, Any], consumer: str = SERVICE, *, discard: bool = False) -> tuple[Script, int]:
    script = Script({**catalog_answers(HERE.cache.catalog), **answers})
    flow = unsubscribe(HERE, consumer, "paid", discard_unfinished=discard, actor="ann", reason="gone")
    return script, script.run(flow)


def test_nothing_is_left_of_it() -> None:
    """The change, its line in the audit and the news for all receivers are one commit."""
    script, discarded = run({"subscribed": [row(3)], "retire": [(3,)]})
    assert discarded == 0
    assert script.transactions[0] == "begin lock_catalog subscribed retire add_audit touch_catalog commit"
    assert script.params("retire") == [{"subscriptions": [3]}]
    assert script.params("add_audit") == [
        {"action": "unsubscribe", "seq": 0, "actor": "ann", "reason": f"{SERVICE}: paid. gone"}
    ]


def test_again_changes_nothing() -> None:
    script, _ = run({"subscribed": [row(3, retired=1)], "retire": []})
    assert script.transactions[0] == "begin lock_catalog subscribed retire commit"


def test_unfinished_messages_keep_it_subscribed() -> None:
    """With the command that discards them with it."""
    with pytest.raises(ConfigurationError, match=r"2 unfinished messages.*--discard --reason"):
        run({"subscribed": [row(3, unfinished=2)]})


def test_what_is_unfinished_is_discarded_on_request() -> None:
    """One by one, each with its line; what runs is left."""
    script, discarded = run(
        {
            "subscribed": [row(3, unfinished=3)],
            "retire": [(3,)],
            "unfinished_of": Turns([(5,), (6,)], [(9,)], []),
            "key_of": [FREE],
            "discard": Turns([(5,)], [], [(9,)]),
        },
        discard=True,
    )
    assert discarded == 2
    assert [one["after"] for one in script.params("unfinished_of")] == [0, 6, 9]
    assert [(one["action"], one["seq"]) for one in script.params("add_audit")] == [
        ("unsubscribe", 0),
        ("discard", 5),
        ("discard", 9),
    ]


def test_open_transactions_of_callers_are_named() -> None:
    """They may store messages for it; nothing has changed."""
    held = {"lock_catalog": StoreUnavailable("locked"), "catalog_holders": [(12, "web", 3.0)]}
    with pytest.raises(StoreUnavailable, match=r"pid 12 \(web, open for 3 s\)"):
        run(held)


def test_the_relay_stays() -> None:
    with pytest.raises(ConfigurationError, match="remove its sinks"):
        run({}, OUTBOX)


def test_what_was_retired_is_shown_while_messages_are_left() -> None:
    script = Script({"subscribed": [row(1), row(2, retired=1), row(3, retired=1, unfinished=1)]})
    assert [one.id for one in script.run(subscribed(HERE, SERVICE, None))] == [1, 3]
