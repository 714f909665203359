"""What is delivered: about 300 bytes of JSON each, and every tenth message a second time, a thousand messages later."""

from __future__ import annotations

import random
import time
import uuid
from typing import Any

ROWS = 1_000
"""Rows of the domain table."""
HOT = 10
KEYS = 1_000
DUPLICATES = 10
"""One message in so many comes twice."""
_CHUNK = 1_000
_PAD = "x" * 210


def body(number: int, sender: int = 0) -> dict[str, Any]:
    """The data of a message."""
    return {
        "number": number,
        "row": number % ROWS,
        "hot": number % HOT,
        "key": f"k{sender}-{number % KEYS}",
        "pad": _PAD,
    }


def ordered_id() -> str:
    """An id that begins with the time, as a UUID of version 7 does."""
    return f"{time.time_ns() // 1_000:016x}{random.getrandbits(64):016x}"


def random_id() -> str:
    """An id as a UUID of version 4."""
    return uuid.uuid4().hex


def messages(count: int, kind: str, *, ordered: bool = False) -> list[dict[str, Any]]:
    """So many different messages, and the copies of every tenth."""
    new_id = ordered_id if ordered else random_id
    deliveries: list[dict[str, Any]] = []
    for first in range(0, count, _CHUNK):
        fresh = [
            {"source": "bench", "id": new_id(), "type": kind, "data": body(number)}
            for number in range(first, min(first + _CHUNK, count))
        ]
        deliveries += fresh
        deliveries += fresh[::DUPLICATES]
    return deliveries
