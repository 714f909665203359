"""The server of `onceward run --http`: what it owes to any application, and to a request in hand when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Any

import pytest

from onceward.runtime import http_server
from onceward.runtime.asgi import read_body, respond
from tests.waiting import wait_until
from tests.webhooks.conftest import Caller, parse, read_answer, served
from tests.webhooks.fuzz import head


def get(*lines: str, method: str = "GET") -> bytes:
    return head(*lines, method=method)


def test_a_request_in_hand_is_answered_before_the_server_stops() -> None:
    """With the word that the connection ends; one without a request ends at once."""
    begun, go_on = threading.Event(), threading.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, 20)
        await respond(send, 200, [], b"done")

    with contextlib.ExitStack() as stack:
        serving = contextlib.ExitStack()
        caller = serving.enter_context(served(app))
        idle, busy = (stack.enter_context(caller.connect()) for _ in range(2))
        busy.sendall(get())
        assert begun.wait(10)
        stopping = threading.Thread(target=serving.close)
        stopping.start()
        assert idle.recv(10) == b""
        go_on.set()
        answer = parse(read_answer(busy))
        stopping.join(20)
        assert (answer.status, answer.headers["connection"], answer.body) == (200, "close", b"done")
        with pytest.raises(ConnectionRefusedError):
            caller.connect()


def test_an_application_that_hangs_does_not_keep_the_server() -> None:
    """After `patience`, 2 s here, its task is cancelled."""
    ended = threading.Event()

    async def app(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with served(app) as caller, caller.connect() as connection:
        connection.sendall(get())
        wait_until(lambda: any(thread.name == "onceward-http" for thread in threading.enumerate()))
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
    assert ended.wait(10)


@pytest.mark.parametrize("begun", [False, True])
def test_an_application_that_fails_is_answered_for(caplog: pytest.LogCaptureFixture, *, begun: bool) -> None:
    """500, or the end of a response that had begun; the next request is served."""

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["path"] == "/":
            return
        if scope["path"] == "/good":
            await respond(send, 200, [], b"")
            return
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("on purpose")

    with served(app) as caller:
        raw = caller.send(head(path="/bad"), finish=True)
        assert raw.startswith(b"HTTP/1.1 200" if begun else b"HTTP/1.1 500")
        assert not raw.endswith(b"0\r\n\r\n"), "it looks whole"
        assert parse(caller.send(head(path="/"))).status == 500
        assert parse(caller.send(head(path="/good"))).status == 200
    assert "on purpose" in caplog.text


def test_a_connection_serves_one_request_after_the_other() -> None:
    """Also where the application reads no body, streams, or is asked for a head alone."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/read":
            body = await read_body(receive, 1000)
            await respond(send, 200, [], body)
        elif scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"one ", b"two"):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})
        else:
            await respond(send, 200, [], b"unread")

    requests = (
        head("content-length: 4", path="/read") + b"body",
        head("content-length: 4", path="/") + b"body",
        get(method="HEAD"),
        head(path="/stream", method="GET"),
        head("content-length: 1", "connection: close", path="/read") + b"!",
    )
    with served(app) as caller, caller.connect() as connection:
        connection.sendall(b"".join(requests))
        found = b""
        while part := connection.recv(65_536):
            found += part
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200"] * 5
    assert [found.count(word) for word in (b"\r\n\r\nbody", b"unread", b"\r\none \r\n", b"\r\n\r\n!")] == [1, 1, 1, 1]


def test_a_body_that_comes_after_its_answer_does_not_end_the_connection() -> None:
    """The sender was not told that it ends, and may send its next request at the same moment."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await respond(send, 403, [], b"no")

    with served(app) as caller, caller.connect() as connection:
        for _ in range(3):
            connection.sendall(head("content-length: 4", path="/"))
            assert parse(read_answer(connection)).status == 403
            connection.sendall(b"body")


def test_too_many_connections_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        await respond(send, 200, [], b"")

    monkeypatch.setattr(http_server, "CONNECTIONS", 2)
    with served(app) as caller, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(caller.connect()) for _ in range(2))
        for connection in (first, second):
            connection.sendall(get())
            assert parse(read_answer(connection)).status == 200
        refused = parse(caller.send(get()))
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        first.close()

        def free(caller: Caller = caller) -> bool:
            return parse(caller.send(get())).status == 200

        wait_until(free)
