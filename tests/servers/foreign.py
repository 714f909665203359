"""A server of the user's own, where a variable names it: `ONCEWARD_TEST_REDIS=redis://host:6379/0` (see docs/brokers).

Invariant: nothing is started, stopped or emptied there; a test makes queues of its own and deletes them.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

VARIABLE = "ONCEWARD_TEST_"


class ForeignServer:
    """A server that somebody else runs."""

    version = "of your own"

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        parts = urlsplit(address)
        self.host, self.port = parts.hostname or "localhost", parts.port or 0

    def restart(self) -> None:
        """It is not ours to kill."""
        raise RuntimeError(f"{self.name} is yours, and is not killed: mark the case with needs('restart')")


def foreign(name: str) -> ForeignServer | None:
    """The server that the user names for a broker, if any; its address has a port."""
    address = os.environ.get(f"{VARIABLE}{name.upper()}")
    return ForeignServer(name, address) if address else None
