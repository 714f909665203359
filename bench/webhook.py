"""`python -m bench.webhook URL COUNT CALLERS`: a webhook endpoint under load: signed requests from many callers at the same time, through the ASGI application."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections import Counter
from typing import Any

from bench.inboxes import inbox_at
from bench.messages import messages
from bench.race import ready, tell
from onceward.domain.standard_webhooks import secret_bytes, sign
from onceward.webhooks import StandardWebhooks

_SECRET = "whsec_" + base64.b64encode(b"a secret of the benchmark alone!").decode()


def main(url: str, count: str, callers: str) -> None:
    """A process of a race: requests, copies among them, whose answers say which was which."""
    asyncio.run(_called(url, int(count), int(callers)))


async def _called(url: str, count: int, callers: int) -> None:
    inbox = inbox_at(url)
    application = inbox.webhooks({"/in": StandardWebhooks(_SECRET, source="bench")})
    waiting = iter([_request(message) for message in messages(count, "nothing")])
    answers: list[bytes] = []

    async def call() -> None:
        for scope, body in waiting:
            await application(scope, _reader(body), _writer(answers))

    ready()
    await asyncio.gather(*(call() for _ in range(callers)))
    tell(Counter(json.loads(answer)["status"] for answer in answers))
    await inbox.aclose()


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


def _writer(answers: list[bytes]) -> Any:
    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.body":
            answers.append(event["body"])

    return send


if __name__ == "__main__":
    main(*sys.argv[1:])
