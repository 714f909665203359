"""The program whose inbox the tests run from the command line: `tests.cli.shop:inbox`.

Where its database and its folder are comes from the environment, as for any service.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, Reject, Settings

STORE, FOLDER = "SHOP_STORE", "SHOP_FOLDER"
# A lease that no test waits for: whatever comes back sooner was taken over by somebody who saw the death.
SETTINGS = Settings(lease=timedelta(minutes=10), stop_timeout=timedelta(seconds=10))

inbox = Inbox(os.environ.get(STORE, "sqlite://"), service="shop", settings=SETTINGS)


@inbox.on("plain")
def plain(message: Message, tx: Any) -> None:
    """One effect per message; a doubled one would stand in the table twice."""
    sign = "?" if inbox.url.startswith("sqlite") else "%s"
    tx.execute(f"INSERT INTO effect (message) VALUES ({sign})", [message.id])


@inbox.on("ordered", key="order")
def ordered(message: Message, tx: Any) -> None:
    """As `plain`, in order per key."""
    plain(message, tx)


@inbox.on("held")
def held(message: Message, tx: Any) -> None:
    """Says that it runs, and goes on when it may."""
    folder = Path(os.environ[FOLDER])
    (folder / f"holds-{message.id}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    plain(message, tx)


@inbox.on("bad", key="order")
def bad(message: Message, tx: Any) -> None:
    """Can never succeed."""
    del tx
    raise Reject(message.data["why"])


@inbox.on("killer")
def killer(message: Message, tx: Any) -> None:
    """Kills its process, as the kernel does when memory runs out."""
    del message, tx
    os.kill(os.getpid(), signal.SIGKILL)


nothing = None
