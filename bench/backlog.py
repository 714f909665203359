"""`python -m bench.backlog URL KIND COUNT`: tables and a backlog, made by the code that is to drain it."""

from __future__ import annotations

import sys

from bench.ground import prepare
from bench.inboxes import inbox_at
from bench.messages import messages


def received(url: str, kind: str, count: int) -> None:
    """A backlog of a kind, as receiving it leaves it."""
    with inbox_at(url) as inbox:
        inbox.receive_many(messages(count, kind))  # type: ignore[arg-type] # the shape of receive's arguments


if __name__ == "__main__":
    prepare(sys.argv[1])
    received(sys.argv[1], sys.argv[2], int(sys.argv[3]))
