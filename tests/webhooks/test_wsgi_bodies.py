"""How much of a body is read under WSGI: to the byte what was announced or may be, and never more."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Inbox
from onceward.webhooks import Limits, Stripe
from tests.webhooks.senders import SECRET, event, sign_stripe

BODY = event("evt_1")


class Input(io.BytesIO):
    """What a server hands over, a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size > 0, "a read without a size may never end"
        return super().read(min(size, 7))


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        yield inbox


def answered(inbox: Inbox, *, most: int, sent: bytes = BODY, **more: Any) -> tuple[int, dict[str, str], int]:
    """The status, the answer, and how much was read, where a body may have so many bytes."""
    hooks, given = inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=Limits(body=most)), Input(sent)
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/stripe",
        "CONTENT_TYPE": "application/json",
        "HTTP_STRIPE_SIGNATURE": sign_stripe(BODY, "evt_1", now=time.time()).headers["stripe-signature"],
        "wsgi.input": given,
        **more,
    }
    (body,) = hooks.wsgi(environ, lambda status, _: statuses.append(status))
    return int(statuses[0].split()[0]), json.loads(body), given.tell()


def test_without_a_length_a_body_may_be_as_long_as_the_limit(inbox: Inbox) -> None:
    size, ended = len(BODY), dict[str, Any]({"wsgi.input_terminated": True})
    assert answered(inbox, most=size, **ended) == (200, {"status": "accepted"}, size)
    status, _, read = answered(inbox, most=size - 1, **ended)
    assert (status, read) == (413, size)
    status, _, read = answered(inbox, most=size, sent=BODY + b" " * 100, **ended)
    assert (status, read) == (413, size + 1)


def test_with_a_length_that_much_is_read(inbox: Inbox) -> None:
    size = len(BODY)
    assert answered(inbox, most=size, CONTENT_LENGTH=str(size), sent=BODY + b"more")[::2] == (200, size)
    status, answer, read = answered(inbox, most=2 * size, CONTENT_LENGTH=str(size + 1))
    assert (status, answer, read) == (400, {"error": "the body is not as long as was said"}, size)
    status, _, read = answered(inbox, most=size - 1, CONTENT_LENGTH=str(size))
    assert (status, read) == (413, 0)


def test_without_a_length_or_an_end_nothing_is_read(inbox: Inbox) -> None:
    assert answered(inbox, most=1000) == (411, {"error": "send content-length"}, 0)
