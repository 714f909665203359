"""Whatever a stranger sends gets a clear 4xx, leaves no trace, and the process stays up and small (W11, W12).

Raw bytes to a real server, so that nothing between the test and the code repairs them.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from onceward import ConfigurationError, Inbox
from onceward.runtime import http_server
from onceward.webhooks import Limits, Stripe
from tests.waiting import wait_until
from tests.webhooks.__main__ import main as fuzz_main
from tests.webhooks.conftest import Caller, endpoints, parse, read_answer, served, small, traces
from tests.webhooks.fuzz import JSON, head, strangers_requests
from tests.webhooks.senders import SECRET, SENDERS, Signed, event, sign_stripe

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inbox]:
    """An inbox that should stay empty."""
    inbox = Inbox(f"sqlite:///{tmp_path_factory.mktemp('strangers') / 'inbox.db'}")
    inbox.migrate()
    yield inbox
    inbox.close()


@pytest.fixture(scope="module")
def stranger(inbox: Inbox) -> Iterator[Caller]:
    """Somebody without a secret."""
    with served(inbox.webhooks(endpoints())) as caller:
        yield caller


@pytest.fixture(autouse=True)
def nothing_stored(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test here may leave a row, and the server must still serve after it."""
    yield
    if "stranger" in request.fixturenames:
        assert not any(traces(request.getfixturevalue("inbox")).values())
        assert request.getfixturevalue("stranger").post("/stripe", b"{}", {}).status == 401


def genuine(message_id: str = "evt_1", **more: Any) -> Signed:
    return sign_stripe(event(message_id, **more), message_id, now=time.time())


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "post"])
def test_other_methods(stranger: Caller, method: str) -> None:
    raw = stranger.send(head("connection: close", method=method))
    assert parse(raw).status == 405
    assert parse(raw).headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/", "/stripe/", "//stripe", "/STRIPE", "/stripe/../github", "/%2e%2e", "/hooks/stripe", "/stripe%00", "*"]
)
def test_other_paths(stranger: Caller, path: str) -> None:
    assert parse(stranger.send(head(JSON, "content-length: 2", path=path) + b"{}")).status in (400, 404)


@pytest.mark.parametrize(
    "line",
    [
        "content-type: text/plain",
        "content-type: application/x-www-form-urlencoded",
        "content-type: multipart/form-data; boundary=x",
        "content-type: application/json; charset=utf-16",
        "content-type: application/jsonp",
        "content-type: ",
        "x-none: of it",
        "content-type: application/json\r\ncontent-type: application/json",
        f"{JSON}\r\ncontent-encoding: gzip",
        f"{JSON}\r\ncontent-encoding: identity",
        f"{JSON}\r\ncontent-encoding: br, gzip",
    ],
)
def test_other_content(stranger: Caller, line: str) -> None:
    """Also with a right signature: nothing is decompressed, and nothing but JSON is taken."""
    signed = genuine()
    signature = f"stripe-signature: {signed.headers['stripe-signature']}"
    raw = head(line, signature, f"content-length: {len(signed.body)}") + signed.body
    assert parse(stranger.send(raw)).status == 415


@pytest.mark.parametrize(
    "good", ["application/json", "application/json; charset=UTF-8", "application/cloudevents+json"]
)
def test_content_that_is_taken(stranger: Caller, good: str) -> None:
    assert stranger.post("/stripe", b"{}", {"content-type": good}).status == 401


# Sizes


@pytest.mark.parametrize("length", [MIB + 1, 10**9, 10**14])
def test_a_body_that_is_said_to_be_too_large_is_refused_before_it_comes(stranger: Caller, length: int) -> None:
    answer = parse(stranger.send(head(JSON, f"content-length: {length}") + b"x" * 100))
    assert answer.status == 413


@pytest.mark.parametrize(
    "length", ["-1", "abc", "1.5", "0x10", "1 1", "+5", "", "1_0", "9" * 30, "٣".encode().decode("latin-1")]
)
def test_a_length_that_is_no_length(stranger: Caller, length: str) -> None:
    assert parse(stranger.send(head(JSON, f"content-length: {length}") + b"{}", finish=True)).status in (400, 413)


SECOND = b"POST /github HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


UNCERTAIN: list[tuple[str, ...]] = [
    ("content-length: 5", "transfer-encoding: chunked"),
    ("transfer-encoding: chunked", f"content-length: {5 + len(SECOND)}"),
    ("Transfer-Encoding: chunked, identity", "content-length: 2"),
    ("content-length: 5, 5",),
    ("content-length: 5", "content-length: 5"),
    ("content-length: 2", "content-length: 3"),
    ("content-length: 5,",),
    ("transfer-encoding: chunked", "transfer-encoding: chunked"),
    ("transfer-encoding: xchunked",),
    ("transfer-encoding : chunked",),
    ("transfer-encoding: gzip, chunked",),
    ("x: y\r\n transfer-encoding: chunked", "content-length: 5"),
    ("transfer-encoding:\r\n chunked",),
    ("content-length: 5\ntransfer-encoding: chunked",),
    ("x: y\rtransfer-encoding: chunked", "content-length: 5"),
    ("x: y\r\n z", "content-length: 5"),
]


@pytest.mark.parametrize("lines", UNCERTAIN)
def test_a_request_whose_end_is_not_certain_is_refused_and_the_connection_closed(
    stranger: Caller, lines: tuple[str, ...]
) -> None:
    """D56: else what one server takes for a body is a request to the next (W16)."""
    with stranger.connect() as connection:
        connection.sendall(head(JSON, *lines) + b"0\r\n\r\n" + SECOND)
        answers = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                answers += part
    assert (answers.count(b"HTTP/1.1 "), answers[:13]) == (1, b"HTTP/1.1 400 "), answers


def test_no_application_gets_a_request_whose_end_is_not_certain() -> None:
    """D56: whatever it is; the webhooks would refuse some of these by themselves."""
    called: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        called.append(scope["headers"])

    with served(app) as caller:
        for lines in UNCERTAIN:
            answer = caller.send(head(JSON, *lines) + b"0\r\n\r\n" + SECOND)
            assert answer.startswith(b"HTTP/1.1 400 "), lines
    assert called == []


def test_a_second_request_of_a_connection_is_looked_at_too(stranger: Caller) -> None:
    """D56: also when it came together with the first; and HTTP/1.0 knows no chunks."""
    good = head(JSON, "content-length: 2") + b"{}"
    with stranger.connect() as connection:
        connection.sendall(good + head("content-length: 0", "transfer-encoding: chunked") + b"0\r\n\r\n" + good)
        answers = b""
        while part := connection.recv(65_536):
            answers += part
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"401", b"400"]
    old = head(JSON, "transfer-encoding: chunked", version="1.0") + b"0\r\n\r\n"
    assert parse(stranger.send(old, finish=True)).status == 400


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_chunks_are_counted_as_they_come(stranger: Caller) -> None:
    """A body without a length that never ends: refused after the limit, whatever is still sent."""
    answer = parse(stranger.send(head(JSON, "transfer-encoding: chunked") + chunked(b"x" * (2 * MIB), 60_000)))
    assert answer.status == 413


def test_an_endless_body_is_cut_off(stranger: Caller) -> None:
    """The sender gets its answer after a moment of reading on, and then the connection ends."""
    with stranger.connect() as connection:
        connection.sendall(head(JSON, "transfer-encoding: chunked"))
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 200 * MIB:
                sent += connection.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    assert sent < 20 * MIB


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n{}\r\n", b"-2\r\n{}\r\n", b"2\r\n{}", b"2;" + b"x" * 40_000, b"ffffffffffffffffff\r\n"]
)
def test_broken_chunks(stranger: Caller, chunk: bytes) -> None:
    raw = stranger.send(head(JSON, "transfer-encoding: chunked") + chunk, finish=True)
    assert raw == b"" or parse(raw).status in (400, 401)


def test_a_body_in_many_chunks_is_the_same_body(tmp_path: Any) -> None:
    with Inbox(f"sqlite:///{tmp_path / 'inbox.db'}") as inbox:
        inbox.migrate()
        signed = genuine()
        lines = (JSON, "transfer-encoding: chunked", f"stripe-signature: {signed.headers['stripe-signature']}")
        with served(inbox.webhooks({"/stripe": Stripe(SECRET)})) as caller:
            for size in (1, 7, 10_000):
                assert parse(caller.send(head(*lines) + chunked(signed.body, size))).status == 200
            longest = genuine("evt_2", text="x" * (MIB - 300))
            assert caller.post("/stripe", longest.body, longest.headers).json == {"status": "accepted"}
            larger = genuine("evt_3", text="x" * MIB)
            assert caller.post("/stripe", larger.body, larger.headers).status == 413
        detail = inbox.admin.message(inbox.admin.find("stripe", "evt_1")[0])
        assert detail is not None
        assert detail.body == signed.body
        assert inbox.admin.find("stripe", "evt_3") == []


def test_a_body_that_ends_early_is_not_stored(stranger: Caller) -> None:
    """Also where what came is signed: the sender said there would be more, and hung up."""
    signed = genuine()
    lines = (JSON, f"stripe-signature: {signed.headers['stripe-signature']}", f"content-length: {len(signed.body) + 1}")
    stranger.send(head(*lines) + signed.body, finish=True)
    time.sleep(0.2)  # for what would be wrong: a row


def test_too_many_or_too_large_headers(stranger: Caller) -> None:
    many = [f"x-{number}: y" for number in range(101)]
    assert parse(stranger.send(head(JSON, "content-length: 2", *many) + b"{}")).status == 431
    large = f"x-large: {'y' * 17_000}"
    assert parse(stranger.send(head(JSON, "content-length: 2", large) + b"{}")).status == 431
    huge = f"x-huge: {'y' * 200_000}"
    assert parse(stranger.send(head(JSON, "content-length: 2", huge) + b"{}")).status in (400, 431)


def test_expect_continue(stranger: Caller) -> None:
    """A sender that asks first is told before it sends."""
    with stranger.connect() as connection:
        connection.sendall(head(JSON, "content-length: 999999999", "expect: 100-continue"))
        assert connection.recv(20).startswith(b"HTTP/1.1 413")
    with stranger.connect() as connection:
        connection.sendall(head(JSON, "content-length: 2", "expect: 100-continue"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(b"{}")
        assert parse(read_answer(connection)).status == 401


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /stripe\r\n\r\n",
        b"POST /stripe HTTP/9.9\r\nhost: x\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\n\r\n",
        b"POST /stripe HTTP/1.1\nhost: x\n\n",
        b"POST /str\x00ipe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\nhost: x\r\nx: \x00\x01\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff" * 100_000,
        b"POST /stripe HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"POST /stripe HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST http://evil.example/stripe HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_what_is_hardly_http(stranger: Caller, raw: bytes) -> None:
    answer = stranger.send(raw, finish=True)
    assert answer == b"" or 400 <= parse(answer).status < 500


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=strangers_requests())
def test_nothing_random_is_taken(stranger: Caller, raw: bytes) -> None:
    answer = stranger.send(raw, finish=True)
    assert answer == b"" or 400 <= parse(answer).status < 500, answer[:300]


def test_many_requests_are_counted_and_none_is_taken(tmp_path: Path) -> None:
    """`make fuzz`, in short."""
    file = tmp_path / "fuzz.json"
    assert fuzz_main(["--requests", "20", "--forgeries", "20", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert (figures["run"], figures["requests"] >= 20, figures["violations"]) == ("fuzz", True, 0)
    assert sum(figures["answers"].values()) == figures["requests"]
    assert figures["forgeries"] == dict.fromkeys((sender.name for sender in SENDERS), 20)


def test_the_process_stays_small(stranger: Caller) -> None:
    """Half a gigabyte of refused bodies costs no memory that stays."""
    body = b"x" * (MIB - 10)
    for _ in range(20):
        stranger.post("/stripe", body, {})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):
        assert stranger.post("/stripe", body, {}).status == 401
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


# Time and space shared by all


def test_a_slow_body_is_given_up(tmp_path: Any) -> None:
    with Inbox(f"sqlite:///{tmp_path / 'inbox.db'}") as inbox:
        hooks = inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=Limits(read=timedelta(seconds=0.5)))
        with served(hooks) as caller, caller.connect() as connection:
            connection.sendall(head(JSON, "content-length: 100") + b"{")
            assert parse(read_answer(connection)).status == 408
            assert connection.recv(10) == b""
        assert hooks._held == 0


def test_a_slow_head_is_given_up(stranger: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first request, and between two on one connection; who is waited for keeps the connection."""
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.5)
    for already in (False, True):
        with stranger.connect() as connection:
            if already:
                connection.sendall(head(JSON, "content-length: 2") + b"{}")
                assert parse(read_answer(connection)).status == 401
            connection.sendall(b"POST /stripe HTTP/1.1\r\nx")
            with contextlib.suppress(ConnectionError):
                while connection.recv(1000):
                    pass


def test_many_idle_connections_do_not_stop_others(stranger: Caller) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(stranger.connect()) for _ in range(200)]
        for connection in idle:
            connection.sendall(b"POST /stripe HTTP/1.1\r\nx: ")
        assert stranger.post("/stripe", b"{}", {}).status == 401


def test_bodies_in_hand_have_a_common_limit(tmp_path: Any) -> None:
    """Beyond it: come again. And what was held is given back when a sender goes, however it went."""
    with Inbox(f"sqlite:///{tmp_path / 'inbox.db'}") as inbox:
        inbox.migrate()
        hooks = inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=small())
        with served(hooks) as caller, contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(caller.connect()) for _ in range(4)]
            for connection in waiting:
                connection.sendall(head(JSON, "content-length: 1000") + b"x" * 990)
            wait_until(lambda: hooks._held == 4 * 990)
            refused = caller.post("/stripe", genuine().body, genuine().headers)
            assert (refused.status, "retry-after" in refused.headers) == (503, True)
            waiting[0].close()
            waiting[1].sendall(b"y" * 10)
            assert parse(read_answer(waiting[1])).status == 401
            wait_until(lambda: hooks._held == 2 * 990)
            assert caller.post("/stripe", genuine().body, genuine().headers).status == 200
        assert hooks._held == 0


def test_a_sender_that_hangs_up_after_sending_has_sent(tmp_path: Any) -> None:
    """The whole event is here: it is stored, though nobody waits for the answer."""
    with Inbox(f"sqlite:///{tmp_path / 'inbox.db'}") as inbox:
        inbox.migrate()
        signed = genuine()
        lines = (JSON, f"stripe-signature: {signed.headers['stripe-signature']}", f"content-length: {len(signed.body)}")
        with served(inbox.webhooks({"/stripe": Stripe(SECRET)})) as caller:
            with caller.connect() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(head(*lines) + signed.body)
                time.sleep(0.1)
            wait_until(lambda: len(inbox.admin.find("stripe", "evt_1")) == 1)


# Setting up


def test_limits_and_paths_are_checked(inbox: Inbox) -> None:
    for bad in ({"body": 0}, {"headers": 0}, {"read": timedelta(0)}, {"memory": 10}):
        with pytest.raises(ConfigurationError, match="Limits"):
            Limits(**bad)
    for path in ("stripe", "/", "/a b", "/a?b", "/a//b", "/é", ""):
        with pytest.raises(ConfigurationError, match="path"):
            inbox.webhooks({path: Stripe(SECRET)})
    with pytest.raises(ConfigurationError, match="at least one"):
        inbox.webhooks({})


def test_what_a_request_says_about_its_origin_is_not_believed() -> None:
    """Who guesses secrets is slowed down by address: whoever could name another one could go on."""
    seen: list[Any] = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    forged = ("x-forwarded-for: 192.0.2.1", "x-forwarded-proto: https", "forwarded: for=192.0.2.1;proto=https")
    with served(app) as caller, caller.connect() as connection:
        connection.sendall(head("content-length: 0", *forged, "connection: close"))
        while connection.recv(65_536):
            pass
    assert seen == [("127.0.0.1", "http")]


def test_addresses() -> None:
    async def answer(*_: Any) -> None: ...

    assert http_server.address(":80") == ("127.0.0.1", 80)
    assert http_server.address("localhost:80") == ("localhost", 80)
    for bad in ("", "x", "1.2.3.4", "1.2.3.4:", "::1:80", "65536", "http://x:80", "-1"):
        with pytest.raises(ConfigurationError, match="address"):
            http_server.address(bad)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match="cannot listen"),
            http_server.serving(answer, str(port), stop=lambda: None, patience=timedelta(seconds=1)),
        ):
            pass
