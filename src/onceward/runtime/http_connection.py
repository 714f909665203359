"""A connection of the web server: h11 reads and writes the bytes, an ASGI application answers request after request.

Invariant: a request whose end is not certain (`framing.py`) gets 400 and ends the connection before the application is
called; a head that is not complete in time ends it too. A sender that hangs up does not interrupt the application.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11

from onceward.runtime import framing
from onceward.runtime.asgi import Application, Event, Scope, respond

log = logging.getLogger("onceward")

HEAD_BYTES = 32 * 1024
PIECE = 64 * 1024
DISCARDED_BYTES = 1024 * 1024
DISCARD_SECONDS = 1.0
"""How much is read on after a response: closing with unread bytes would take the response from the sender."""
_TEXT = (b"content-type", b"text/plain; charset=us-ascii")
_CLOSE = (b"connection", b"close")


class Connection:
    """One connection; `finish` ends it with the response that is in hand."""

    def __init__(
        self, app: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head_seconds: float
    ) -> None:
        self._app, self._reader, self._writer, self._head_seconds = app, reader, writer, head_seconds
        self._http = h11.Connection(h11.SERVER, HEAD_BYTES)
        self._idle, self._last = True, False

    async def serve(self) -> None:
        """Answer requests until one of the two sides closes the connection."""
        try:
            while await self._answered():
                self._http.start_next_cycle()
            await self._linger()
        except OSError:  # the sender is gone, or took too long for a head (a TimeoutError)
            pass
        finally:
            self._writer.close()

    def finish(self) -> None:
        """Close an idle connection, or any other after its response."""
        self._last = True
        if self._idle:
            self._writer.close()

    async def _answered(self) -> bool:
        """Answer the next request; returns whether another may follow."""
        self._idle = True
        try:
            async with asyncio.timeout(self._head_seconds):
                request = await self._head()
        except h11.RemoteProtocolError as error:
            self.refuse(error, error.error_status_hint)
            return False
        if request is None:
            return False
        self._idle = False
        exchange = _Exchange(self, request)
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:
            if not (isinstance(error, OSError) and self._writer.is_closing()):  # else the sender is gone
                log.exception("the web application failed")
                await exchange.fail()
        else:
            if not exchange.over.is_set():
                log.error("the web application did not send a whole response")
                await exchange.fail()
        finally:
            exchange.over.set()
        return await self._may_go_on()

    async def _head(self) -> h11.Request | None:
        """Return the next request; None when the sender has closed the connection."""
        while True:
            problem = framing.problem(self._http.trailing_data[0])
            if problem:
                raise h11.RemoteProtocolError(problem)
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event if isinstance(event, h11.Request) else None
            await self.more()

    async def _may_go_on(self) -> bool:
        """Whether both sides are done with this request.

        The rest of an unread body is dropped for that: it may be on its way, and its sender, who was not told that the
        connection ends, would send the next request into a closed one.
        """
        with suppress(h11.RemoteProtocolError, TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                await self._drop_body()
        return not self._last and self._http.our_state is self._http.their_state is h11.DONE

    async def _drop_body(self) -> None:
        left = DISCARDED_BYTES
        while self._http.our_state is h11.DONE and self._http.their_state is h11.SEND_BODY and left > 0:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                left -= len(event.data)
            elif event is h11.NEED_DATA and (self._http.they_are_waiting_for_100_continue or not await self.more()):
                return

    async def _linger(self) -> None:
        if self._http.their_state in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED} or self._writer.is_closing():
            return
        self._writer.write_eof()
        left = DISCARDED_BYTES
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0 and (piece := await self._reader.read(PIECE)):
                left -= len(piece)

    # What an exchange uses

    @property
    def http(self) -> h11.Connection:
        """The state of the protocol."""
        return self._http

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the response in hand."""
        return self._last

    def names(self) -> tuple[Any, Any]:
        """Return the addresses of this side and of the other one."""
        return self._writer.get_extra_info("sockname"), self._writer.get_extra_info("peername")

    async def more(self) -> bool:
        """Wait for the next bytes; returns whether there were some before the sender's end."""
        data = await self._reader.read(PIECE)
        self._http.receive_data(data)
        return bool(data)

    async def write(self, *events: h11.Event) -> None:
        """Send these together."""
        self.put(*events)
        await self._writer.drain()

    def put(self, *events: h11.Event) -> None:
        """Have these sent."""
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))

    def refuse(self, error: h11.RemoteProtocolError, status: int) -> None:
        """Answer bytes that are not a request, where no response has begun."""
        log.debug("refused bytes that are not an HTTP request: %s", error)
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE} and not self._writer.is_closing():
            body = b"not a valid request"
            headers = [_TEXT, _CLOSE, (b"content-length", str(len(body)).encode())]
            self.put(_response(status, headers), h11.Data(data=body), h11.EndOfMessage())


class _Exchange:
    """One request and its response, as the application sees them."""

    def __init__(self, connection: Connection, request: h11.Request) -> None:
        self._connection, self._http = connection, connection.http
        self._is_head = request.method == b"HEAD"
        self._response: h11.Response | None = None
        self._complete = self._refused = False
        self.over = asyncio.Event()
        server, client = connection.names()
        path, _, query = request.target.partition(b"?")
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "server": server and server[:2],
            "client": client and client[:2],
            "scheme": "http",
            "method": request.method.decode(),
            "root_path": "",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": list(request.headers),
            "state": {},
        }

    async def receive(self) -> Event:
        """Return the next part of the body; after the last one, wait for the end of the response."""
        if self._complete:
            await self.over.wait()
            return {"type": "http.disconnect"}
        try:
            if self._http.they_are_waiting_for_100_continue:
                await self._connection.write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            body = await self._part()
        except (h11.RemoteProtocolError, OSError) as error:
            self._complete = self._refused = True
            self.over.set()
            if isinstance(error, h11.RemoteProtocolError):
                self._connection.refuse(error, HTTPStatus.BAD_REQUEST)
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    async def _part(self) -> bytes:
        part = b""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                part += event.data
            elif event is not h11.NEED_DATA:
                self._complete = True
                return part
            elif part:
                return part
            elif not await self._connection.more():
                raise ConnectionError("the sender has hung up")

    async def send(self, message: Event) -> None:
        """Send a response; its head leaves together with the first bytes of its body."""
        if self._refused:
            return
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            headers += [_CLOSE] if self._connection.is_last and _CLOSE not in headers else []
            self._response = _response(message["status"], headers)
            return
        events: list[h11.Event] = []
        if self._http.our_state is h11.SEND_RESPONSE:
            if self._response is None:
                raise RuntimeError("an application must send http.response.start first")
            events.append(self._response)
        body = b"" if self._is_head else bytes(message.get("body", b""))
        if body:
            events.append(h11.Data(data=body))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
            self.over.set()
        await self._connection.write(*events)

    async def fail(self) -> None:
        """Answer for an application that has not; a response that has begun is cut off."""
        if self._http.our_state is h11.SEND_RESPONSE and not self._refused:
            await respond(self.send, 500, [_TEXT, _CLOSE], b"internal server error")


def _response(status: int, headers: list[tuple[bytes, bytes]]) -> h11.Response:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    date = (b"date", formatdate(usegmt=True).encode())
    return h11.Response(status_code=int(status), headers=[date, *headers], reason=phrase)
