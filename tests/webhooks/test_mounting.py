"""Where webhooks live: in Starlette, alone under any ASGI server, under WSGI, in Django."""

from __future__ import annotations

import io
import threading
import time
import wsgiref.validate
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from onceward import Inbox
from onceward.webhooks import Stripe
from tests.contract.harness import Shop
from tests.integrations.django.project import configured_django
from tests.webhooks.conftest import Caller, parse, served, small, traces
from tests.webhooks.senders import SECRET, Signed, event, sign_stripe


def genuine(message_id: str = "evt_1", **more: Any) -> Signed:
    return sign_stripe(event(message_id, **more), message_id, now=time.time())


def test_mounted_in_starlette(shop: Shop) -> None:
    """Under its prefix, beside the service's own routes."""

    async def home(_: Any) -> PlainTextResponse:
        return PlainTextResponse("home")

    inner = Mount("/hooks", shop.inbox.webhooks({"/stripe": Stripe(SECRET), "/hooks/b": Stripe(SECRET, source="b")}))
    app = Starlette(routes=[Route("/", home), inner])
    signed = genuine()
    with served(app) as caller:
        assert caller.post("/hooks/stripe", signed.body, signed.headers).json == {"status": "accepted"}
        assert caller.post("/hooks/stripe", signed.body, signed.headers).json == {"status": "duplicate"}
        assert caller.post("/hooks/hooks/b", signed.body, signed.headers).json == {"status": "accepted"}
        assert caller.post("/hooks/b", signed.body, signed.headers).status == 404
        assert caller.post("/stripe", signed.body, signed.headers).status == 404
        assert parse(caller.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")).body == b"home"


async def test_the_other_kinds_of_asgi_scope(sqlite_url: str) -> None:
    """Lifespan is agreed to, a websocket is closed."""
    inbox = Inbox(sqlite_url)
    app = inbox.webhooks({"/stripe": Stripe(SECRET)})
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
    inbox.close()


async def test_two_lengths_that_another_server_lets_through_end_the_connection(shop: Shop) -> None:
    """D56: nothing more of it is read."""
    hooks, signed, sent = shop.inbox.webhooks({"/stripe": Stripe(SECRET)}), genuine(), list[Any]()
    headers = {"content-type": "application/json", "content-length": str(len(signed.body)), **signed.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/stripe"}

    async def receive() -> Any:
        raise AssertionError("it was read on")

    async def send(message: Any) -> None:
        sent.append(message)

    await hooks({**scope, "headers": [*pairs, (b"transfer-encoding", b"chunked")]}, receive, send)
    assert (sent[0]["status"], (b"connection", b"close") in sent[0]["headers"]) == (400, True)
    assert shop.inbox.admin.find("stripe", "evt_1") == []


# WSGI


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """No word."""


class _Threading(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextmanager
def wsgi_served(app: Any) -> Iterator[Caller]:
    """The standard library's server, which checks the protocol too."""
    server = make_server("127.0.0.1", 0, wsgiref.validate.validator(app), _Threading, _Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Caller(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_under_wsgi(shop: Shop) -> None:
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=small())
    signed = genuine()
    with wsgi_served(hooks.wsgi) as caller:
        assert caller.post("/stripe", signed.body, signed.headers).json == {"status": "accepted"}
        assert caller.post("/stripe", signed.body, signed.headers).json == {"status": "duplicate"}
        before = traces(shop.inbox)
        assert caller.post("/stripe", b"{}", signed.headers).status == 401
        assert caller.post("/other", signed.body, signed.headers).status == 404
        assert caller.post("/stripe", signed.body, {**signed.headers, "content-type": "text/plain"}).status == 415
        assert caller.post("/stripe", b"x" * 1001, signed.headers).status == 413
        assert parse(caller.send(b"GET /stripe HTTP/1.1\r\nhost: x\r\n\r\n")).status == 405
        head = b"POST /stripe HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        assert parse(caller.send(head + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n")).status == 411
        assert parse(caller.send(head + b"content-length: 10\r\n\r\n{}", finish=True)).status == 400
        assert traces(shop.inbox) == before
    shop.drain()
    assert shop.effects() == ["evt_1"]


def test_a_wsgi_server_that_ends_the_input_needs_no_length(shop: Shop) -> None:
    """Servers that decode chunks say so; the limit still counts."""
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=small())

    def call(signed: Signed, **more: Any) -> str:
        environ = {
            **more,
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/stripe",
            "CONTENT_TYPE": "application/json",
            "HTTP_STRIPE_SIGNATURE": signed.headers["stripe-signature"],
            "wsgi.input": io.BytesIO(signed.body),
            "wsgi.input_terminated": True,
        }
        statuses: list[str] = []
        list(hooks.wsgi(environ, lambda status, _: statuses.append(status)))
        return statuses[0]

    assert call(genuine()) == "200 OK"
    assert call(genuine("evt_2", text="x" * 1000)).startswith("413 ")
    for length in ("-1", "x", "1e3", "9" * 20):  # what a careless server lets through
        assert call(genuine("evt_3"), CONTENT_LENGTH=length)[:3] in ("400", "413")
    both = genuine("evt_3")
    assert call(both, CONTENT_LENGTH=str(len(both.body)), HTTP_TRANSFER_ENCODING="chunked").startswith("400 ")
    assert shop.inbox.admin.find("stripe", "evt_3") == []


def test_as_a_django_view(shop: Shop) -> None:
    """Behind Django's own handler with its CSRF check on; the body is read once, within our limit."""
    configured_django()
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415 - where it is configured
    from django.urls import path  # noqa: PLC0415

    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=small())
    view = hooks.wsgi.django("/stripe")
    urlpatterns[:] = [path("hooks/stripe", view), path("own", _own)]
    _forget_urls()
    signed = genuine()
    with wsgi_served(get_wsgi_application()) as caller:
        assert caller.post("/own", b"{}", {}).status == 403  # the check is on
        assert caller.post("/hooks/stripe", signed.body, signed.headers).json == {"status": "accepted"}
        assert caller.post("/hooks/stripe", signed.body, signed.headers).json == {"status": "duplicate"}
        assert caller.post("/hooks/stripe", b"{}", signed.headers).status == 401
        assert caller.post("/hooks/stripe", b"x" * 1001, signed.headers).status == 413
    shop.drain()
    assert shop.effects() == ["evt_1"]


urlpatterns: list[Any] = []


def _own(request: Any) -> Any:
    raise AssertionError(request)


def _forget_urls() -> None:
    from django.urls import clear_url_caches  # noqa: PLC0415

    clear_url_caches()


@pytest.mark.parametrize("root", ["", "/api"])
async def test_paths_below_a_root(sqlite_url: str, root: str) -> None:
    inbox = Inbox(sqlite_url)
    app = inbox.webhooks({"/stripe": Stripe(SECRET)})
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    for path in (f"{root}/stripe", f"{root}/stripe/more", f"{root}x/stripe"):
        await app({"type": "http", "method": "GET", "path": path, "root_path": root, "headers": []}, receive, send)
    assert statuses == [405, 404, 404]
    inbox.close()


async def test_a_server_that_lets_a_short_body_through_is_not_believed(sqlite_url: str) -> None:
    """Signed or not: what is shorter than was said may be half an event."""
    inbox = Inbox(sqlite_url)
    inbox.migrate()
    app, signed = inbox.webhooks({"/stripe": Stripe(SECRET)}), genuine()
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": signed.body, "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    for length in (len(signed.body) + 1, len(signed.body)):
        headers = {**signed.headers, "content-type": "application/json", "content-length": str(length)}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await app({"type": "http", "method": "POST", "path": "/stripe", "headers": pairs}, receive, send)
    assert statuses == [400, 200]
    inbox.close()
