"""Durations and counts in words, the same on the terminal and in the browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float, *, units: int = 2) -> str:
    """A duration for people: two units at most.

    >>> span(0.25), span(59), span(3725), span(200_000)
    ('0.2 s', '59 s', '1 h 2 min', '2 d 7 h')
    """
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth matters
        return f"{seconds:.1f} s"
    parts = []
    rest = int(seconds)
    for size, name in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:units])


def long(duration: timedelta) -> str:
    """A duration of a retention, in days where it is whole days.

    >>> long(timedelta(days=30)), long(timedelta(hours=36))
    ('30 days', '1 d 12 h')
    """
    whole = duration and not duration % timedelta(days=1)
    return count(duration.days, "day") if whole else span(duration.total_seconds())


def ago(moment: datetime | None, *, units: int = 2) -> str:
    """How long ago something was, or in how long it will be."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"{span(seconds, units=units)} ago" if seconds >= 0 else f"in {span(-seconds, units=units)}"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "message"), count(2, "key"), count(0, "body"), count(3, "mismatch")
    ('1 message', '2 keys', '0 bodies', '3 mismatches')
    """
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(("s", "ch")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
