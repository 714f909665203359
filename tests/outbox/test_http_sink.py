"""Signed webhooks, sent to a real server and verified by the reference library (R25, R42; hazards 3.4)."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from onceward import ConfigurationError
from onceward.sinks.http import HttpSink
from onceward.testing.broker_suite.sinks import number_of, outgoing, send
from tests.contract.harness import Shop
from tests.order.conftest import everywhere
from tests.outbox.post import LATER, sending
from tests.outbox.receiver import Answer, Receiver

SECRETS = ["whsec_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """The other side."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def connect(shop: Shop) -> Iterator[Callable[..., HttpSink]]:
    """Makes the shop's sinks; closes them."""
    sinks = []

    def make(url: str, *, name: str = "default", secrets: list[str] | None = None, **options: Any) -> HttpSink:
        sink = HttpSink(url, secrets=secrets or SECRETS[:1], **{"allow_private": True, **options})
        sinks.append(sink)
        shop.inbox.add_sink(name, sink, retry=LATER)
        return sink

    yield make
    for sink in sinks:
        sink.close()


@everywhere
def test_a_webhook_is_signed_and_carries_its_origin(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    """The body is the bytes that were stored; id, time, signature and type as Standard Webhooks has them."""
    connect(receiver.url(path="/hooks?tenant=7"))
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    shop.handle(behaviour=sending("grüße", headers={"x-secret": "not for others"}))
    shop.receive("m1", headers={"correlation-id": "c-1", "authorization": "Bearer of mine", **trace})
    shop.drain()
    (request,) = receiver.requests
    (sent,) = shop.detail("m1").sent
    assert (request.path, request.body) == ("/hooks?tenant=7", '{"name":"grüße"}'.encode())
    assert Webhook(SECRETS[0]).verify(request.body, dict(request.headers)) == {"name": "grüße"}
    headers = request.headers
    assert (headers["webhook-id"], headers["webhook-type"]) == (sent.id, "shipped")
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert {name: headers[name] for name in ("correlation-id", "causation-id", *trace)} == {
        "correlation-id": "c-1",
        "causation-id": "m1",
        **trace,
    }
    assert "x-secret" not in headers
    assert "authorization" not in headers
    assert outgoing(shop) == {"grüße": "done"}


def test_several_secrets_sign_while_one_is_replaced(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    """A receiver with the old secret and one with the new one both accept; one with another does not."""
    connect(receiver.url(), secrets=SECRETS[:2])
    send(shop, "a")
    shop.drain()
    (request,) = receiver.requests
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in SECRETS[:2]:
        assert Webhook(secret).verify(request.body, dict(request.headers)) == {"name": "a"}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[2]).verify(request.body, dict(request.headers))
    for changed in ({"webhook-id": "other"}, {"webhook-timestamp": "1"}):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRETS[0]).verify(request.body, {**request.headers, **changed})
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify(request.body + b" ", dict(request.headers))


def test_a_secret_without_its_prefix_is_the_same_secret(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    connect(receiver.url(), secrets=[SECRETS[0].removeprefix("whsec_")])
    send(shop, "a")
    shop.drain()
    (request,) = receiver.requests
    assert Webhook(SECRETS[0]).verify(request.body, dict(request.headers)) == {"name": "a"}


def test_every_attempt_has_the_same_id_and_a_fresh_signature(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    """The receiver can tell a repetition, and its tolerance for old timestamps does not refuse it."""
    connect(receiver.url())
    receiver.answer = Answer(500)
    send(shop, "a")
    shop.drain()
    receiver.answer = Answer()
    shop.finish()
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    for request in (first, second):
        assert Webhook(SECRETS[0]).verify(request.body, dict(request.headers))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success(shop: Shop, receiver: Receiver, connect: Callable[..., Any], status: int) -> None:
    """2xx, whatever else it says."""
    connect(receiver.url())
    receiver.answer = Answer(status)
    send(shop, "a")
    shop.drain()
    assert outgoing(shop) == {"a": "done"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 451])
def test_refused_for_good(shop: Shop, receiver: Receiver, connect: Callable[..., Any], status: int) -> None:
    """4xx: the same again would be refused again; dead, with the status; other keys go on."""
    connect(receiver.url())
    receiver.answer = Answer(status)
    send(shop, "a", key="a")
    shop.drain()
    assert outgoing(shop) == {"a": "dead"}
    assert f"status {status}" in shop.error(number_of(shop, "a"))
    receiver.answer = Answer()
    send(shop, "b", key="b")
    shop.drain()
    assert outgoing(shop)["b"] == "done"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 100 + 499, 301, 302, 303, 307, 308, 304])
def test_tried_again_later(shop: Shop, receiver: Receiver, connect: Callable[..., Any], status: int) -> None:
    """Busy, broken, or moved: a redirect is an answer like any other, and is not followed."""
    connect(receiver.url())
    receiver.answer = Answer(status, {"location": receiver.url(path="/elsewhere")})
    send(shop, "a")
    shop.drain()
    assert outgoing(shop) == {"a": "retrying"}
    assert str(status) in shop.error(number_of(shop, "a"))
    assert [request.path for request in receiver.requests] == ["/hooks"]
    receiver.answer = Answer()
    shop.finish()
    assert outgoing(shop) == {"a": "done"}


def due_in(shop: Shop, name: str) -> timedelta:
    """How long after its arrival an outgoing message is tried again."""
    detail = shop.detail(number_of(shop, name))
    assert detail.due_at is not None
    return detail.due_at - detail.received_at


@pytest.mark.parametrize("status", [429, 503])
def test_a_time_that_the_receiver_names_is_kept(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any], status: int
) -> None:
    """Retry-After in seconds; the sink's own policy would have come after an hour."""
    connect(receiver.url())
    receiver.answer = Answer(status, {"retry-after": "7200"})
    send(shop, "a")
    shop.drain()
    assert timedelta(hours=2) <= due_in(shop, "a") < timedelta(hours=3)
    assert len(receiver.requests) == 1


def test_a_time_that_the_receiver_names_is_kept_in_company(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    """Asked to come back later, the relay does, also when the message was published together with others."""
    connect(receiver.url(), name="busy")
    receiver.answer = Answer(429, {"retry-after": "7200"})
    with Receiver() as other:
        connect(other.url())
        send(shop, "a")
        send(shop, "b", to="busy")
        send(shop, "c")
        shop.drain()
        assert len(other.requests) == 2
    assert len(receiver.requests) == 1


def test_a_date_that_the_receiver_names_is_kept(shop: Shop, receiver: Receiver, connect: Callable[..., Any]) -> None:
    """RFC 9110: Retry-After may be a date."""
    connect(receiver.url())
    when = datetime.now(UTC) + timedelta(hours=5)
    receiver.answer = Answer(503, {"retry-after": format_datetime(when, usegmt=True)})
    send(shop, "a")
    shop.drain()
    assert timedelta(hours=4) <= due_in(shop, "a") < timedelta(hours=6)


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "١٢", "9" * 400, "Wed, 99 Foo 2030"])
def test_nonsense_as_a_time_harms_nobody(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any], value: str
) -> None:
    """It is retried within a day, whatever the other side writes."""
    connect(receiver.url())
    receiver.answer = Answer(503, {"retry-after": value.encode("utf-8").decode("latin-1")})
    send(shop, "a")
    shop.drain()
    assert outgoing(shop) == {"a": "retrying"}
    assert due_in(shop, "a") < timedelta(days=1, minutes=10)


def test_a_connection_that_is_refused_is_tried_again(shop: Shop, connect: Callable[..., Any]) -> None:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    connect(f"http://127.0.0.1:{port}/hooks")
    send(shop, "a")
    shop.drain()
    assert outgoing(shop) == {"a": "retrying"}
    assert "Connect" in shop.error(number_of(shop, "a"))


def test_a_receiver_that_does_not_answer_in_time_is_tried_again(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any]
) -> None:
    """The sink gives up waiting; the other side may have got it, and gets it again under the same id."""
    release = threading.Event()
    connect(receiver.url(), timeout=timedelta(seconds=0.2))
    receiver.answer = Answer(hold=release)
    send(shop, "a")
    shop.drain()
    release.set()
    assert outgoing(shop) == {"a": "retrying"}
    assert "Timeout" in shop.error(number_of(shop, "a"))
    receiver.answer = Answer()
    shop.finish()
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert outgoing(shop) == {"a": "done"}


@pytest.mark.parametrize("name", ["bestellung-ü", "注文-7", "order 7", 'quote"7', "7;a=b, c"])
def test_ids_that_are_not_plain_text_can_be_published(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any], name: str
) -> None:
    """R06, R28: whatever id came in becomes correlation and causation of what goes out."""
    connect(receiver.url())
    shop.handle(behaviour=sending("a"))
    shop.receive(name)
    shop.drain()
    assert outgoing(shop) == {"a": "done"}
    (request,) = receiver.requests
    assert Webhook(SECRETS[0]).verify(request.body, dict(request.headers)) == {"name": "a"}


@pytest.mark.parametrize("value", ["a\r\nx-injected: yes", "a\nb", "\x00", "tab\tis fine"])
def test_headers_cannot_be_injected(shop: Shop, receiver: Receiver, connect: Callable[..., Any], value: str) -> None:
    """A correlation id from a stranger is data; and it does not keep the message from going out."""
    connect(receiver.url())
    shop.handle(behaviour=sending("a"))
    shop.receive("m1", headers={"correlation-id": value})
    shop.drain()
    assert all("x-injected" not in request.headers for request in receiver.requests)
    assert outgoing(shop) == {"a": "done"}


def test_an_ipv6_receiver(shop: Shop, connect: Callable[..., Any]) -> None:
    """By its literal address."""
    with Receiver("::1") as receiver:
        connect(receiver.url("[::1]"))
        send(shop, "a")
        shop.drain()
        (request,) = receiver.requests
        assert request.headers["host"] == f"[::1]:{receiver.port}"
        assert outgoing(shop) == {"a": "done"}


def test_no_proxy_is_taken_from_the_environment(
    shop: Shop, receiver: Receiver, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3.4: it would connect to an address that nobody checked."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    connect(receiver.url())
    send(shop, "a")
    shop.drain()
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("https://shop.example/hooks", {"secrets": []}, "secrets is empty"),
        ("https://shop.example/hooks", {"secrets": [""]}, "at least 24 bytes"),
        ("https://shop.example/hooks", {"secrets": ["whsec_"]}, "at least 24 bytes"),
        ("https://shop.example/hooks", {"secrets": [SECRETS[0], ""]}, "at least 24 bytes"),
        ("https://shop.example/hooks", {"secrets": ["whsec_" + base64.b64encode(b"x" * 23).decode()]}, "24 bytes"),
        ("https://shop.example/hooks", {"secrets": ["whsec_not base64!"]}, "base64"),
        ("https://shop.example/hooks", {"secrets": ["whsec_ünicode"]}, "base64"),
        ("http://shop.example/hooks", {}, "not https"),
        ("https://user:pass@shop.example/hooks", {}, "without credentials"),
        ("https://user@shop.example/hooks", {}, "without credentials"),
        ("ftp://shop.example/hooks", {}, r"http\(s\) URL"),
        ("file:///etc/passwd", {}, r"http\(s\) URL"),
        ("gopher://shop.example/", {"allow_private": True}, r"http\(s\) URL"),
        ("/hooks", {}, r"http\(s\) URL"),
        ("", {}, r"http\(s\) URL"),
        ("https://", {}, r"http\(s\) URL"),
        ("https://[::1/hooks", {}, r"http\(s\) URL"),
        ("https://shop.example:99999/hooks", {}, r"http\(s\) URL"),
        ("https://shop.example:port/hooks", {}, r"http\(s\) URL"),
        ("https://shop\x00.example/hooks", {}, r"http\(s\) URL"),
    ],
)
def test_a_wrong_set_up_is_refused_at_once(url: str, options: dict[str, Any], message: str) -> None:
    """W01: when the sink is made, not when the first message goes out; and no secret is in the text."""
    with pytest.raises(ConfigurationError, match=message) as raised:
        HttpSink(url, **{"secrets": SECRETS[:1], **options})
    assert all(secret.removeprefix("whsec_") not in str(raised.value) for secret in SECRETS)


def test_a_secret_is_not_in_errors_or_reprs(shop: Shop, receiver: Receiver, connect: Callable[..., HttpSink]) -> None:
    """I14: neither in the row of a failed attempt, nor in the sink itself."""
    sink = connect(receiver.url())
    receiver.answer = Answer(500)
    send(shop, "a")
    shop.drain()
    (attempt,) = shop.detail(number_of(shop, "a")).history
    text = json.dumps([attempt.error, attempt.traceback, repr(sink)])
    assert SECRETS[0].removeprefix("whsec_") not in text
    assert receiver.requests[0].headers["webhook-signature"] not in text
