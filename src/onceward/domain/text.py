"""Durations and counts in words, the same on the terminal and in the browser."""

from __future__ import annotations

from datetime import UTC, datetime

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


def ago(moment: datetime | None, *, units: int = 2) -> str:
    """How long ago something was, or in how long it will be."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"{span(seconds, units=units)} ago" if seconds >= 0 else f"in {span(-seconds, units=units)}"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 message, 2 messages."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
