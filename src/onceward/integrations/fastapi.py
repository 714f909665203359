"""Webhooks as routes of FastAPI, documented in its schema: `app.include_router(webhook_router(hooks))`.

Invariant: a route is the ASGI application itself under another path. It reads the body, verifies, stores and responds;
FastAPI reads nothing of the request and adds nothing but the description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from onceward.domain import checks
from onceward.errors import ConfigurationError
from onceward.runtime.asgi import Receive, Scope, Send
from onceward.webhooks import Webhooks

try:
    from fastapi import APIRouter
    from starlette.responses import Response
except ImportError as error:
    raise ConfigurationError("webhook_router() needs FastAPI: pip install 'onceward[fastapi]'") from error

OTHERS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""The application responds to these, too, with what is allowed."""
STATUSES = ["accepted", "duplicate", "mismatch"]

_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "enum": STATUSES}}}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}


def _answer(description: str, schema: dict[str, Any] = _ERROR) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _answer("The event is committed, or was before. The sender need not send it again.", _STATUS),
    400: _answer("The request is incomplete or ambiguous."),
    401: _answer("The signature is not right, or too old. Nothing was stored."),
    413: _answer("The body is too large."),
    415: _answer("Only uncompressed application/json in UTF-8 is accepted."),
    429: _answer("Too many requests; the sender should send the event again later."),
    503: _answer("The event could not be stored now; the sender should send it again."),
}
"""The responses of a webhook. 422, which FastAPI adds by itself, is not: no part of the request is a parameter."""


class _Delegated(Response):
    """What FastAPI sends for a route: the application's own response."""

    def __init__(self, hooks: Webhooks, path: str) -> None:
        super().__init__()
        self._hooks, self._path = hooks, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hooks({**scope, "path": self._path, "root_path": ""}, receive, send)


def webhook_router(hooks: Webhooks, *, tags: Sequence[str | Enum] = ("webhooks",)) -> APIRouter:
    """Routes for the endpoints of `inbox.webhooks({...})`, each with its entry in the schema."""
    checks.instance("webhook_router()", "hooks", hooks, Webhooks, "what inbox.webhooks({...}) returns")
    router = APIRouter(tags=list(tags))
    for path, verifier in hooks.hooks.endpoints.items():
        endpoint = _endpoint(hooks, path)
        kind = type(verifier).__name__
        router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            name=f"webhook {verifier.source}",
            operation_id="webhook" + path.replace("/", "_").replace("-", "_").replace(".", "_").replace("~", "_"),
            summary=f"Webhooks of {verifier.source}",
            description=(
                f"Events of {verifier.source}, signed as {kind} verifies. Each is stored once, however often it comes."
            ),
            responses=RESPONSES,
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}},
            response_class=Response,
        )
        router.add_api_route(path, endpoint, methods=OTHERS, include_in_schema=False)
    return router


def _endpoint(hooks: Webhooks, path: str) -> Callable[[], Any]:
    async def webhook() -> Response:
        return _Delegated(hooks, path)

    return webhook
