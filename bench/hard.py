"""Hard cases: messages with keys, many types; failing handlers and hot rows are contenders of `handle`."""

from __future__ import annotations

from bench.drain import onceward
from bench.figures import Figures
from bench.ground import Ground
from bench.inboxes import WIDE
from bench.scale import Scale


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """A backlog of a thousand keys; exact as any other drain."""
    onceward(ground, scale, figures, "drain: onceward, 1000 keys", "keyed", guess=20_000)
    name = "drain: onceward, 1000 types"
    onceward(ground, scale, figures, name, WIDE, guess=12_000, command="drain_wide")
