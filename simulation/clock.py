"""Virtual time: it moves only when the scheduler says so.

Invariant: nothing in a simulated history reads a real clock, so a history depends on its seed alone.
"""

from __future__ import annotations

START = 1_800_000_000.0


class Clock:
    """Seconds that pass, and a wall clock that may be set wrongly."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0

    def monotonic(self) -> float:
        """What `Context.clock` reads."""
        return self.now

    def wall(self) -> int:
        """Microseconds since 1970, as the database sees them."""
        return round((START + self.now + self.offset) * 1_000_000)
