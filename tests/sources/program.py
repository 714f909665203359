"""The program that these tests start and kill: `tests.sources.program:inbox`."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, Settings

inbox = Inbox(os.environ["SOURCE_STORE"], settings=Settings(lease=timedelta(seconds=1), poll=timedelta(seconds=0.05)))
inbox.add_source(os.environ["SOURCE_URL"], source="broker", batch=10)


@inbox.on("order.paid")
def handle(message: Message, tx: Any) -> None:
    """One row per effect."""
    mark = "?" if inbox.url.startswith("sqlite") else "%s"
    tx.execute(f"INSERT INTO effects (message_id, note) VALUES ({mark}, '')", [message.id])


def die_instead_of_accepting(marker: Path) -> None:
    """The first batch is committed, and then the process is gone before the broker hears of it."""
    source: Any = inbox.ingress.intakes[0].source
    accepted = source.accept

    def accept(arrivals: Any) -> Any:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return accepted(arrivals)

    source.accept = accept


if os.environ.get("SOURCE_MARKER"):
    die_instead_of_accepting(Path(os.environ["SOURCE_MARKER"]))
