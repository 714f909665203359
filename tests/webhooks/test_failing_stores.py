"""A store that fails at once, behind every shell: never 2xx, and the delivery that comes again is taken (W14)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from onceward import Inbox
from onceward.errors import ConfigurationError, HandlerTimeout, InvalidMessage, SchemaMissing, StoreError
from onceward.integrations.idempotency import IdempotencyKeys
from onceward.message import Delivery, Receipt
from onceward.webhooks import Stripe, Webhooks
from onceward.webhooks.hooks import Hooks
from tests.outage import away
from tests.webhooks.senders import SECRET, Signed, event, sign_stripe
from tests.webhooks.shells import SHELLS, Shell

each_shell = pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)


def kinds_of(kind: type[StoreError]) -> list[type[StoreError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in kinds_of(child))]


def fresh() -> Signed:
    return sign_stripe(event("evt_1"), "evt_1", now=time.time())


class Failing:
    """An inbox that fails at once, until it is told not to."""

    error: Exception | None = None

    def receive(self, _: Delivery) -> Receipt:
        if self.error is not None:
            raise self.error
        return Receipt("accepted", 1)


@each_shell
def test_whatever_the_store_raises_the_sender_is_told_to_come_again(shell: Shell) -> None:
    inbox = Failing()
    hooks = Webhooks(Hooks(inbox, {"/stripe": Stripe(SECRET)}))
    for kind in (*kinds_of(StoreError), ConfigurationError, SchemaMissing, InvalidMessage):
        inbox.error = kind("canary")
        answer = shell(hooks, "/stripe", fresh())
        assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True), kind
        assert set(answer.json) == {"error"}
        assert b"canary" not in answer.body
    for bug in (RuntimeError("canary"), OSError("canary")):
        inbox.error = bug
        answer = shell(hooks, "/stripe", fresh())
        assert (answer.status, answer.json) == (500, {"error": "the receiver failed"}), bug
        assert int(answer.headers["retry-after"]) > 0
    inbox.error = None
    answer = shell(hooks, "/stripe", fresh())
    assert (answer.status, answer.json) == (200, {"status": "accepted"})


@each_shell
def test_a_store_that_is_away_is_a_503_at_once(store_url: str, shell: Shell) -> None:
    """Through the whole inbox, with the database's error as it comes; nothing is stored, and then it is."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        hooks = inbox.webhooks({"/stripe": Stripe(SECRET)})
        signed = fresh()
        with away(inbox):
            assert shell(hooks, "/stripe", signed).status == 503
        assert inbox.admin.find("stripe", "evt_1") == []
        answers = [shell(hooks, "/stripe", signed) for _ in range(2)]
        assert [(one.status, one.json["status"]) for one in answers] == [(200, "accepted"), (200, "duplicate")]


def test_an_idempotency_key_is_told_to_come_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the endpoint, which has not run, has sent nothing."""

    async def endpoint(*_: Any) -> None:
        raise AssertionError("it ran")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    with Inbox(sqlite_url) as inbox:
        keys = IdempotencyKeys(endpoint, inbox=inbox, tenant=lambda _: "ann")
        for kind in (*kinds_of(StoreError), HandlerTimeout):
            sent: list[Any] = []

            async def fail(*_: Any, kind: type[Exception] = kind, **__: Any) -> Any:
                raise kind("canary")

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            monkeypatch.setattr(inbox.inline, "answer", fail)
            asyncio.run(keys(scope, receive, send))
            assert sent[0]["status"] == 503, kind
            assert dict(sent[0]["headers"])[b"retry-after"] == b"2"
            assert b"canary" not in sent[1]["body"]
