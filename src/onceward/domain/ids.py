"""Ids for what we name and keep: UUIDs of version 7 (RFC 9562), which begin with the time.

Invariant: within a process each id is greater than the one before it, also within a millisecond and when the clock is
set back. What is stored under such ids is appended to its index instead of being scattered over it.
"""

from __future__ import annotations

import os
import threading
import time

_RANDOM_BITS = 74
_STEP_BYTES = 5
"""A random step: two processes that were one a moment ago go on in different ways."""
_lock = threading.Lock()
_last = 0


def time_ordered_id() -> str:
    """Return a new id, later than all that this process has made.

    >>> first, second = time_ordered_id(), time_ordered_id()
    >>> first < second, len(first), first[14]
    (True, 36, '7')
    """
    global _last  # noqa: PLW0603 - what makes them ordered
    chance = int.from_bytes(os.urandom(10), "big") >> (80 - _RANDOM_BITS)
    with _lock:
        fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | chance
        _last = number = max(fresh, _last + 1 + int.from_bytes(os.urandom(_STEP_BYTES), "big"))
    moment, rest = number >> _RANDOM_BITS, number & ((1 << _RANDOM_BITS) - 1)
    whole = moment << 80 | 7 << 76 | (rest >> 62) << 64 | 0b10 << 62 | rest & ((1 << 62) - 1)
    text = f"{whole:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
