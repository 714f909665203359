"""`python -m bench.backlog URL KIND COUNT`: tables and a backlog, made by the code that is to drain it."""

from __future__ import annotations

import sys
from typing import Any

from bench.ground import prepare
from bench.inboxes import KEYS, SOURCES, TYPES, WIDE, inbox_at, wide_inbox_at
from bench.messages import messages


def received(url: str, kind: str, count: int) -> None:
    """A backlog of a kind, as receiving it leaves it."""
    with wide_inbox_at(url) if kind == WIDE else inbox_at(url) as inbox:
        deliveries = messages(count, kind)
        if kind == WIDE:
            _spread(deliveries)
        inbox.receive_many(deliveries)  # type: ignore[arg-type] # the shape of receive's arguments


def _spread(deliveries: list[dict[str, Any]]) -> None:
    """Give each its type, its source and its key; a copy is the same message twice in the list."""
    for delivery in deliveries:
        number = delivery["data"]["number"]
        named = {"type": f"{WIDE}-{number % TYPES}", "source": f"source-{number % SOURCES}"}
        delivery.update(named | {"data": delivery["data"] | {"key": f"k{number % KEYS}"}})


if __name__ == "__main__":
    prepare(sys.argv[1])
    received(sys.argv[1], sys.argv[2], int(sys.argv[3]))
