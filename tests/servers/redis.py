"""A private Redis.

Invariant: every write is on disk before it is answered, so that after a kill -9 and a restart nothing is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.private import PrivateServer

_OPTIONS = "--bind 127.0.0.1 --appendonly yes --appendfsync always --daemonize no"


class RedisServer(PrivateServer):
    """A Redis of one's own."""

    name = "Redis"
    form = "redis://127.0.0.1:{port}/0"
    ready = "Ready to accept"

    def __init__(self) -> None:
        super().__init__(install.redis_program())

    def command(self, port: int) -> Sequence[str | Path]:
        return [self._program, *_OPTIONS.split(), "--port", str(port), "--save", "", "--dir", self.folder]
