"""Ports for private servers.

Invariant: a port handed out lies outside the range the kernel uses for outgoing connections. Inside it, a
client that retries while its server is down could be given that very port as its own, connect to itself, and
keep the restarted server from ever binding again.
"""

from __future__ import annotations

import random
import socket

LOWEST = 20_000
HIGHEST = 32_000

# Not `random` itself: pytest-randomly seeds it alike in every worker, and all would try the same ports.
_random = random.SystemRandom()


def free_port() -> int:
    """A port that was free a moment ago; the server that binds it must be ready to ask for another."""
    for _ in range(200):
        port = _random.randrange(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")
