"""A webhook endpoint under load: signed requests from many callers at the same time, through the ASGI application."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

from bench.figures import expect
from bench.inboxes import inbox_at
from bench.messages import messages
from onceward.standard_webhooks import secret_bytes, sign
from onceward.webhooks import StandardWebhooks

_SECRET = "whsec_" + base64.b64encode(b"a secret of the benchmark alone!").decode()


def measure(url: str, count: int, callers: int) -> float:
    """Requests a second, copies among them."""
    return asyncio.run(_measure(url, count, callers))


async def _measure(url: str, count: int, callers: int) -> float:
    inbox = inbox_at(url)
    application = inbox.webhooks({"/in": StandardWebhooks(_SECRET, source="bench")})
    requests = [_request(message) for message in messages(count, "nothing")]
    waiting = iter(requests)
    answers: list[int] = []

    async def call() -> None:
        for scope, body in waiting:
            await application(scope, _reader(body), _writer(answers))

    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    seconds = time.perf_counter() - started
    await inbox.aclose()
    expect("receive webhook: refused", [answer for answer in answers if answer >= 300][:1], [])
    expect("receive webhook: answers", len(answers), len(requests))
    return len(requests) / seconds


def _request(message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    body = json.dumps({"type": message["type"], **message["data"]}).encode()
    stamp = str(int(time.time()))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "webhook-id": message["id"],
        "webhook-timestamp": stamp,
        "webhook-signature": sign(secret_bytes(_SECRET), message["id"], stamp, body),
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/in",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return scope, body


def _reader(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _writer(answers: list[int]) -> Any:
    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            answers.append(event["status"])

    return send
