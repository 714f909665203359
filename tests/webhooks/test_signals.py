"""What is said beside the answer: the log, the code that closes a websocket, why a signature is refused."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

import pytest

from onceward import Inbox
from onceward.webhooks import StandardWebhooks, Stripe
from onceward.webhooks.request import NotAuthentic, Refusal
from tests.webhooks.senders import NOW, SECRET, SHARED, event, sign_standard, sign_stripe


def test_only_a_mismatch_is_said_in_a_warning(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    verifier = Stripe(SECRET)
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        hooks = inbox.webhooks({"/stripe": verifier}).hooks

        def warnings(**more: Any) -> list[str]:
            caplog.clear()
            request = sign_stripe(event("evt_1", **more), "evt_1").request
            hooks.store(verifier, verifier.verify(request, NOW), request)
            return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

        assert warnings() == []
        assert warnings() == []
        (said,) = warnings(amount=10**6)
    assert "evt_1" in said
    assert "quarantine" in said


async def test_a_websocket_is_closed_for_a_violated_policy(sqlite_url: str) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError(json.dumps(sent))

    async def send(message: Any) -> None:
        sent.append(message)

    with Inbox(sqlite_url) as inbox:
        await inbox.webhooks({"/stripe": Stripe(SECRET)})({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("part", ["v1", "v1,", "!,AAAA", ",AAAA"])
def test_a_part_that_is_no_version_with_a_signature_spoils_the_header(part: str) -> None:
    signed = sign_standard(event("e"), "e")
    genuine = signed.headers["webhook-signature"]
    StandardWebhooks(SHARED).verify(signed.request, NOW)
    with pytest.raises(NotAuthentic, match="not a list"):
        StandardWebhooks(SHARED).verify(signed.changed(webhook_signature=f"{genuine} {part}").request, NOW)


@pytest.mark.parametrize(
    ("status", "level"),
    [
        (HTTPStatus.BAD_REQUEST, logging.INFO),
        (HTTPStatus.INTERNAL_SERVER_ERROR, logging.WARNING),
        (HTTPStatus.SERVICE_UNAVAILABLE, logging.WARNING),
    ],
)
def test_a_refusal_is_said_louder_where_it_is_our_fault(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, status: HTTPStatus, level: int
) -> None:
    caplog.set_level(logging.DEBUG, logger="onceward")
    with Inbox(sqlite_url) as inbox:
        hooks = inbox.webhooks({"/stripe": Stripe(SECRET)}).hooks
        caplog.clear()
        answer = hooks.refused(Refusal(status, "no", reason="why", headers={"x": "y"}), "stripe")
        hooks.refused(Refusal(status, "no"))
    assert (answer.status, json.loads(answer.body), answer.headers["x"]) == (status, {"error": "no"}, "y")
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (level, f"webhook of stripe refused with {status.value}: why"),
        (level, f"webhook refused with {status.value}: no"),
    ]
