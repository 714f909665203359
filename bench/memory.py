"""Memory: what a worker process has in use after a hundred thousand messages, and after a million."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from bench.figures import Figures, expect
from bench.ground import Ground, check_drained
from bench.growth import load
from bench.race import ours, take_part
from bench.scale import Scale
from onceward import Inbox, Message


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One worker drains it all; its resident memory is read inside."""
    few, many = scale.memory
    with ground.copy() as url:
        load(url, "waiting", 1, many, type="nothing", key="NULL", key_hash="NULL::bigint", state="'ready'")
        (sizes,) = ground.race(url, [ours("memory", url, few, many)], patience=1200).answers
        expect("memory: numbers of looks", len(sizes), 2)
        check_drained("memory", url, many)
    figures.add(f"memory: after {few} messages (MB)", sizes[0] / 1e6)
    figures.add(f"memory: after {many} messages (MB)", sizes[1] / 1e6)


def main(url: str, few: int, many: int) -> None:
    """The worker."""
    inbox = Inbox(url)
    sizes: list[float] = []
    seen = 0

    @inbox.on("nothing")
    def nothing(message: Message, _tx: Any) -> None:
        nonlocal seen
        seen += 1
        assert message.data["number"]
        if seen in {few, many}:
            sizes.append(_resident())

    def work() -> list[float]:
        inbox.drain()
        return sizes

    take_part(work)
    inbox.close()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
