"""When a message is due that is not to run at once: `at=` a moment, or after a `delay=`.

Times are compared with the clock of the database, which says when a message is due. Only whether a moment is past is
seen here, by the clock of the caller.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from onceward.errors import InvalidMessage

LAST_PLACE = 2**63 - 1
"""The place of a scheduled message in its key: behind all others. When it is due it gets the next one."""
LONGEST = timedelta(days=36_525)
"""A hundred years: further away is a mistake of units."""
_LATE = timedelta(minutes=1)
"""So much may the clocks of two programs differ."""
_EPOCH = datetime.fromtimestamp(0, UTC)


class Due(NamedTuple):
    """When a message is due, in microseconds: a moment, or a time from its receive on. Neither: at once."""

    at: int | None = None
    after: int | None = None

    def moment(self, now: float) -> int | None:
        """The moment, for one who has only a clock of his own; `now` is its time in seconds. None: at once."""
        return self.at if self.after is None else round(now * 1_000_000) + self.after


AT_ONCE = Due()


def due_of(at: Any, delay: Any) -> Due:
    """What a caller said, or why that cannot be."""
    if at is not None and delay is not None:
        raise InvalidMessage("pass at= or delay=, not both: at= is a moment, delay= a time from now on")
    return _after(delay) if at is None else _at(at)


def _at(at: Any) -> Due:
    if not isinstance(at, datetime):
        raise InvalidMessage(
            f"at must be a datetime with a time zone, not {at.__class__.__name__}; use delay= for a time from now on"
        )
    if at.utcoffset() is None:
        raise InvalidMessage(
            f"at={at.isoformat()} has no time zone, so it is no moment; for example datetime(..., tzinfo=UTC)"
        )
    left = at - datetime.now(UTC)
    if left > LONGEST:
        raise InvalidMessage(f"at={at.isoformat()} is more than {LONGEST.days:,} days away")
    if left < -_LATE:
        raise InvalidMessage(
            f"at={at.isoformat()} is past; leave it out, or write at=max(at, datetime.now(UTC)) where a message that "
            "comes too late is to run at once"
        )
    return AT_ONCE if left <= timedelta(0) else Due(at=(at - _EPOCH) // timedelta(microseconds=1))


def _after(delay: Any) -> Due:
    longest = LONGEST.total_seconds()
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= longest:
        raise InvalidMessage(
            f"delay={delay!r:.80} must be a timedelta, or a number of seconds, from 0 to {LONGEST.days:,} days"
        )
    return Due(after=round(seconds * 1_000_000)) if seconds else AT_ONCE
