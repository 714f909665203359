"""`Idempotency-Key` for a service's own endpoints: the first response is stored in the ledger; repetitions get it.

Invariant: what the endpoint wrote through `request.state.tx`, the ledger row and the response are one commit, and the
response leaves after it. A response of 400 or above, or an exception, rolls all of it back and is not remembered: the
client may try again under the same key. A key belongs to a service and a tenant; no client gets another's response.
A request is handled while its client waits or not at all: it is never kept for later, in a queue or in a spool.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Protocol

from onceward.domain import checks
from onceward.errors import HandlerTimeout, StoreError
from onceward.message import Message
from onceward.registry import Handler
from onceward.retry import RetryPolicy
from onceward.runtime.asgi import (
    Application,
    Event,
    HungUp,
    Receive,
    Scope,
    Send,
    TooLarge,
    read_body,
    replaying,
    respond,
)
from onceward.runtime.inline import Inline
from onceward.settings import Settings
from onceward.steps.context import Context
from onceward.webhooks.request import Headers

HEADER = "idempotency-key"
MAX_KEY = 255
MAX_BYTES = 1024 * 1024
RETRY_AFTER = (b"retry-after", b"2")
NOT_STORED = {b"content-length", b"connection", b"date", b"set-cookie", b"transfer-encoding"}


class Inbox(Protocol):
    """What an inbox is to this."""

    settings: Settings
    inline: Inline

    @property
    def context(self) -> Context:
        """What its steps know."""


@dataclass(slots=True)
class Response:
    """An answer of the application, held back until it is committed."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def collect(self, message: Event) -> None:
        """Be what the application sends to."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    async def send(self, send: Send, *more: tuple[bytes, bytes]) -> None:
        """Send it."""
        await respond(send, self.status, [*self.headers, *more], self.body)

    def stored(self) -> dict[str, Any]:
        """As JSON-able data, without what belongs to one exchange alone."""
        kept = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers if name not in NOT_STORED
        ]
        return {"status": self.status, "headers": kept, "body": base64.b64encode(self.body).decode()}

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Response:
        """What `stored` made."""
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored["headers"]]
        return cls(stored["status"], headers, base64.b64decode(stored["body"]))


class _NotRemembered(Exception):
    """The application responded with an error: its work is rolled back, its response sent."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"the answer was {response.status}")
        self.response = response


@dataclass(frozen=True, slots=True)
class _Exchange:
    scope: Scope
    body: bytes
    answers: list[Response] = field(default_factory=list)


_exchange: ContextVar[_Exchange] = ContextVar("onceward_exchange")


class IdempotencyKeys:
    """ASGI middleware: `app.add_middleware(IdempotencyKeys, inbox=inbox, tenant=lambda scope: scope["user"].username)`.

    It goes inside of what authenticates: `tenant` returns whose key it is. Endpoints write through `request.state.tx`,
    an async connection to the inbox's database. Requests without a key pass through, unless `required`.
    """

    def __init__(  # noqa: PLR0913 - each is a decision of the service
        self,
        app: Application,
        *,
        inbox: Inbox,
        tenant: Callable[[Scope], str],
        source: str = "api",
        required: bool = False,
        methods: Collection[str] = ("POST", "PATCH"),
        timeout: timedelta | None = None,
    ) -> None:
        checks.function("IdempotencyKeys", "tenant", tenant)
        checks.flag("IdempotencyKeys", "required", required)
        if isinstance(methods, str):
            checks.refuse(
                "IdempotencyKeys", "methods", methods, "a collection of methods, for example ('POST', 'PATCH')"
            )
        if timeout is not None:
            checks.duration("IdempotencyKeys", "timeout", timeout)
        self._app, self._inbox, self._tenant = app, inbox, tenant
        self._source, self._required, self._methods = source, required, methods
        self._service = inbox.context.service
        # The service is part of it: others on the same tables have keys of their own.
        self._type = f"idempotency-key {self._service} {source}"
        inbox.context.registry.add(
            Handler(
                function=self._handle,
                type=self._type,
                consumer=self._service,
                version=1,
                key=None,
                retry=RetryPolicy(),
                timeout=timeout or inbox.settings.handler_timeout,
                group=1,
                raw=True,
                forgets_failures=True,
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        headers = Headers((bytes(name), bytes(value)) for name, value in scope["headers"])
        if HEADER not in headers and not self._required:
            await self._app(scope, receive, send)
            return
        key = headers.get(HEADER)
        if key is None or len(key) > MAX_KEY:
            await _refuse(send, HTTPStatus.BAD_REQUEST, f"send one idempotency-key of 1 to {MAX_KEY} plain characters")
            return
        try:
            body = await read_body(receive, MAX_BYTES)
        except HungUp:
            return
        except TooLarge:
            await _refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BYTES} bytes")
            return
        await self._answer(_Exchange(scope, body), key, send)

    async def _answer(self, exchange: _Exchange, key: str, send: Send) -> None:
        token = _exchange.set(exchange)
        try:
            receipt = await self._inbox.inline.answer(
                self._service,
                source=self._source,
                id=_joined(self._tenant(exchange.scope), key),
                type=self._type,
                body=_fingerprint(exchange),
            )
        except _NotRemembered as failed:
            await failed.response.send(send)
            return
        except (StoreError, HandlerTimeout):
            # Also where the first request under this key takes too long on a database with one writer.
            await _refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, "try again with the same key", RETRY_AFTER)
            return
        finally:
            _exchange.reset(token)
        if receipt.status == "mismatch":
            await _refuse(send, HTTPStatus.UNPROCESSABLE_ENTITY, "this idempotency-key was used for another request")
        elif not receipt.finished:
            await _refuse(send, HTTPStatus.CONFLICT, "a request with this idempotency-key is unfinished", RETRY_AFTER)
        elif receipt.status == "accepted":
            await exchange.answers[-1].send(send)
        elif receipt.result is None:
            await _refuse(send, HTTPStatus.CONFLICT, "the response for this idempotency-key is no longer stored")
        else:
            await Response.of(receipt.result).send(send, (b"idempotency-replayed", b"true"))

    async def _handle(self, message: Message, tx: Any) -> dict[str, Any]:
        """Run the application inside the transaction; called anew if the database asks for a repetition."""
        del message
        exchange, response = _exchange.get(), Response()
        scope = {**exchange.scope, "state": {**exchange.scope.get("state", {}), "tx": tx}}
        await self._app(scope, replaying(exchange.body), response.collect)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise _NotRemembered(response)
        if len(response.body) > MAX_BYTES:
            raise ValueError(
                f"a response of {len(response.body)} bytes cannot be kept for a repetition; at most {MAX_BYTES}"
            )
        exchange.answers.append(response)
        return response.stored()


def _joined(tenant: str, key: str) -> str:
    """Lengths keep ("ab", "c") and ("a", "bc") apart; a digest keeps keys, which may be secrets, out of lists."""
    parts = f"{len(tenant.encode())}:{tenant}{len(key)}:{key}"
    return hashlib.sha256(parts.encode()).hexdigest()


def _fingerprint(exchange: _Exchange) -> bytes:
    """What makes two requests the same; the body itself is not kept."""
    scope = exchange.scope
    request = {
        "method": scope["method"],
        "path": scope["path"],
        "query": bytes(scope.get("query_string", b"")).decode("latin-1"),
        "sha256": hashlib.sha256(exchange.body).hexdigest(),
    }
    return json.dumps(request).encode()


async def _refuse(send: Send, status: HTTPStatus, text: str, *more: tuple[bytes, bytes]) -> None:
    body = json.dumps({"error": text}).encode()
    await respond(send, status, [(b"content-type", b"application/json"), *more], body)
