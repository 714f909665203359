"""How values look: the filters and functions of the templates. Escaping itself is the template engine's."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

from onceward.domain import payload
from onceward.domain.fingerprint import kind_of
from onceward.domain.text import ago, count, span
from onceward.errors import InvalidMessage

if TYPE_CHECKING:
    from jinja2.runtime import Context

HERE = Path(__file__).parent
LONGEST_BODY = 200_000
MASKED = "•••••"


def environment() -> Environment:
    """The templates, with everything escaped."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"span": span, "ago": ago, "when": when, "size": size, "grouped": grouped, "count": count}
    made.filters |= {"body": body, "json": compact, "key": key, "error": error}
    return made


@pass_context
def key(page: Context, text: str) -> str:
    """A key, which comes out of a payload: for those who may see payloads."""
    return text if page["may_read"] or not text else MASKED


@pass_context
def error(page: Context, text: str) -> str:
    """The first line of an error, whose text may quote a payload: all of it, or its kind, as in the log."""
    return text.partition("\n")[0] if page["may_read"] else kind_of(text)


def when(moment: datetime | None) -> str:
    """A moment, exactly."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def size(number: int | None) -> str:
    """Bytes for people.

    >>> size(None), size(999), size(20_480)
    ('', '999 B', '20 KiB')
    """
    if number is None:
        return ""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - what a KiB is
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def grouped(number: int | None) -> str:
    """A number with its thousands apart; nothing where it is not known."""
    return "" if number is None else f"{number:,}"


def body(raw: bytes | None) -> str:
    """A body as text: JSON laid out, other text as it is, bytes as they are written in Python."""
    if raw is None:
        return "(not kept)"
    try:
        shown = json.dumps(payload.decode(raw), indent=2, ensure_ascii=False)
    except InvalidMessage:
        try:
            shown = raw.decode()
        except UnicodeDecodeError:
            shown = repr(raw[:LONGEST_BODY])
    return shown if len(shown) <= LONGEST_BODY else f"{shown[:LONGEST_BODY]}\n(cut; it has {len(raw):,} bytes)"


def compact(value: Any) -> str:
    """A value on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)
