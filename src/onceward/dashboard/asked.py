"""Reading requests: bounded parameters, small forms. What is out of bounds is refused with a sentence."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from onceward.admin.history import RANGES
from onceward.admin.messages import STATUSES
from onceward.runtime.asgi import HungUp, TooLarge, read_body

if TYPE_CHECKING:
    from starlette.requests import Request

LARGEST = 2**63
LONGEST_TEXT = 500
LARGEST_FORM = 64 * 1024
FORM_SECONDS = 10.0
"""How long a form may take to come: a server has only so many connections, and strangers may open them."""
PAGE = 50
NAMES = ("status", "type", "source", "key", "error", "since", "outgoing", "before")
SPANS = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "6h": timedelta(hours=6), "1d": timedelta(days=1)}
SPANS |= {"7d": timedelta(days=7), "30d": timedelta(days=30)}


def refuse(sentence: str, status: int = 400) -> HTTPException:
    """An error response with what is wrong."""
    return HTTPException(status, sentence)


def number(text: str, what: str) -> int:
    """A number that a database can have."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < LARGEST and len(text) < len(str(LARGEST))):
        raise refuse(f"{what} must be a number")
    return int(text)


def text(request: Request, name: str) -> str | None:
    """A parameter; None where it is empty."""
    value = request.query_params.get(name, "").strip()
    if len(value) > LONGEST_TEXT:
        raise refuse(f"{name} is longer than {LONGEST_TEXT} characters")
    return value or None


def filters(request: Request) -> dict[str, Any]:
    """Which messages are asked for, as `inbox.admin.messages` has them."""
    found: dict[str, Any] = {name: text(request, name) for name in ("type", "key", "source")}
    found["fingerprint"] = text(request, "error")
    status = text(request, "status")
    if status is not None and status not in STATUSES:
        raise refuse(f"there is no status {status!r:.40}; there are {', '.join(STATUSES)}")
    found["status"] = status
    span = text(request, "since")
    if span is not None:
        if span not in SPANS:
            raise refuse(f"since must be one of {', '.join(SPANS)}")
        found["since"] = datetime.now(UTC) - SPANS[span]
    found["outgoing"] = text(request, "outgoing") == "1"
    return found


def reach(request: Request) -> str:
    """The range of a history."""
    wanted = text(request, "range") or "hour"
    if wanted not in RANGES:
        raise refuse(f"range must be one of {', '.join(RANGES)}")
    return wanted


def before(request: Request) -> int | None:
    """Where a page begins."""
    value = text(request, "before")
    return None if value is None else number(value, "before")


async def form(request: Request) -> dict[str, list[str]]:
    """The fields of a small form."""
    try:
        async with asyncio.timeout(FORM_SECONDS):
            body = await read_body(request.receive, LARGEST_FORM)
    except TooLarge:
        raise refuse("the form is too large", 413) from None
    except TimeoutError:
        raise refuse("the form did not come in time", 408) from None
    except HungUp:
        raise refuse("the form is not complete") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=5000)
    except ValueError:
        raise refuse("the form cannot be read") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields
