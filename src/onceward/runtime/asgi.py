"""What every ASGI application of ours does: read a body that has a limit, answer, end a lifespan.

Invariant: a body is counted while it comes, whatever its length was said to be, and reading stops at the first byte too
many; a sender that hangs up before its body is complete has sent nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Pairs = Iterable[tuple[bytes, bytes]]

BODILESS = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


class HungUp(Exception):
    """The sender has closed the connection before its request was complete; there is no one to answer."""


class TooLarge(Exception):
    """The body has more bytes than the application accepts."""


class Body:
    """The body of a request, and how far it has come."""

    __slots__ = ("_receive", "complete")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def read(self, hold: Callable[[int], None]) -> bytes:
        """Return the whole body; `hold` is called with the size of each part before it is kept, and may raise."""
        parts: list[bytes] = []
        while not self.complete:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise HungUp
            part = bytes(event.get("body", b""))
            hold(len(part))
            parts.append(part)
            self.complete = not event.get("more_body", False)
        return b"".join(parts)

    async def discard(self, most: int) -> None:
        """Read on without keeping anything, up to `most` bytes."""
        while most > 0 and not self.complete:
            event = await self._receive()
            most -= len(event.get("body", b""))
            self.complete = event["type"] == "http.disconnect" or not event.get("more_body", False)


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body of a request; raises `TooLarge` beyond `limit` bytes."""
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        if read > limit:
            raise TooLarge

    return await Body(receive).read(count)


async def respond(send: Send, status: int, headers: Pairs, body: bytes) -> None:
    """Send a whole response; its length is added where `headers` do not have it."""
    pairs = list(headers)
    if status not in BODILESS and not any(name == b"content-length" for name, _ in pairs):
        pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": int(status), "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def lifespan(receive: Receive, send: Send) -> None:
    """Serve the lifespan of an application that has nothing to start or to stop."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path below the place where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def replaying(body: bytes) -> Receive:
    """Return a `receive` for an application behind one that has read the body already."""
    events = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Event:
        return next(events, {"type": "http.disconnect"})

    return receive
