"""How values look: the filters and functions of the templates. Escaping itself is the template engine's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

from onceward.dashboard.charts import Line, brief
from onceward.domain import payload
from onceward.domain.fingerprint import kind_of
from onceward.domain.histogram import Histogram
from onceward.domain.text import ago, count, span

if TYPE_CHECKING:
    from jinja2.runtime import Context

HERE = Path(__file__).parent
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
    made.filters |= {"body": payload.readable, "json": compact, "key": key, "error": error}
    made.filters |= {"iso": datetime.isoformat, "clock": clock, "points": points, "percentile": percentile}
    made.filters |= {"types": types, "anchor": anchor, "verb": verb}
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


def clock(moment: datetime, form: str) -> str:
    """A moment below a plot, as it is where no script runs: in UTC."""
    return f"{moment:%m-%d}" if form == "day" else f"{moment:%m-%d %H:%M}" if form == "date" else f"{moment:%H:%M}"


def points(lines: Sequence[Line]) -> str:
    """The lines of a plot, as what reads them with a pointer takes them."""
    return compact([[line.label, line.values] for line in lines])


def percentile(durations: Histogram, percent: float) -> str:
    """The duration that so many percent did not exceed, for people."""
    seconds = durations.percentile(percent)
    return "" if seconds is None else brief(seconds)


def types(handles: str) -> list[str]:
    """The types that a worker handles."""
    return sorted({line.split("\t")[1] for line in handles.splitlines() if "\t" in line})


def anchor(key: str) -> str:
    """A name within a page, for a key that may contain anything."""
    return hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()[:12]


def verb(name: str) -> str:
    """An action as a button says it."""
    return {"hasten": "Run now", "retry-now": "Retry now"}.get(name, name.capitalize())


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


def compact(value: Any) -> str:
    """A value on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)
