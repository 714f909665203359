"""Hard cases: messages with keys, failing handlers, hot rows (the last two are contenders of `handle`)."""

from __future__ import annotations

from bench.drain import onceward
from bench.figures import Figures
from bench.ground import Ground
from bench.scale import Scale


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """A backlog of a thousand keys; exact as any other drain."""
    onceward(ground, scale, figures, "drain: onceward, 1000 keys", "keyed", guess=20_000)
