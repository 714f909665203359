"""What a handler leaves behind in its transaction or on its connection, where the next message would meet it."""

from __future__ import annotations

from enum import IntEnum


class Left(IntEnum):
    """How far what was left reaches; anything but nothing ends the transaction before the next message."""

    NOTHING = 0
    TRANSACTION = 1
    """It goes with the transaction."""
    SESSION = 2
    """Settings of the connection, which can be reset."""
    CONNECTION = 3
    """More than settings: only a new connection is surely without it."""
