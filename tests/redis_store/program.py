"""A worker that dies where it is told to."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from onceward import Inbox, Message, Settings

inbox = Inbox(os.environ["REDIS_STORE"], settings=Settings(lease=timedelta(seconds=2), poll=timedelta(milliseconds=50)))
moment = os.environ.get("DIES", "")


def die() -> None:
    """Without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


@inbox.on("order.paid", key="key")
def effect(message: Message, tx: Any) -> None:
    tx.rpush("effects", message.id)
    if moment == "in the handler" and message.id == "m2":
        die()
    if moment == "after the commit" and message.id == "m2":
        message.after_commit(die)
