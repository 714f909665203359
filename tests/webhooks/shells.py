"""The shells of the webhooks, each called as its server calls it, without a server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

from onceward.webhooks import Webhooks
from tests.integrations.django.project import configured_django
from tests.webhooks.conftest import Reply
from tests.webhooks.senders import Signed

Shell = Callable[[Webhooks, str, Signed], Reply]


def _asgi(hooks: Webhooks, path: str, signed: Signed) -> Reply:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": signed.body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"content-type": "application/json", "content-length": str(len(signed.body)), **signed.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(hooks({"type": "http", "method": "POST", "path": path, "headers": pairs}, receive, send))
    hooks.close()
    start, body = sent
    return Reply(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"])


def _environ(path: str, signed: Signed) -> dict[str, Any]:
    headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in signed.headers.items()}
    return {
        **headers,
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(signed.body)),
        "wsgi.input": io.BytesIO(signed.body),
    }


def _wsgi(hooks: Webhooks, path: str, signed: Signed) -> Reply:
    started: list[Any] = []
    parts = hooks.wsgi(_environ(path, signed), lambda *head: started.append(head))
    ((status, headers),) = started
    return Reply(int(status.split(" ")[0]), dict(headers), b"".join(parts))


def _django(hooks: Webhooks, path: str, signed: Signed) -> Reply:
    configured_django()
    from django.core.handlers.wsgi import WSGIRequest  # noqa: PLC0415 - where it is configured

    answer = hooks.wsgi.django(path)(WSGIRequest(_environ(path, signed)))
    return Reply(answer.status_code, {name.lower(): value for name, value in answer.items()}, answer.content)


SHELLS: dict[str, Shell] = {"asgi": _asgi, "wsgi": _wsgi, "django": _django}
