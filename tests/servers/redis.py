"""A private Redis, with a second port for TLS and a user with a password beside the one that needs none.

Invariant: every write is on disk before it is answered, so that after a kill -9 and a restart nothing is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.private import PASSWORD, USER, PrivateServer

_OPTIONS = "--bind 127.0.0.1 --appendonly yes --appendfsync always --daemonize no"


class RedisServer(PrivateServer):
    """A Redis of one's own."""

    name = "Redis"
    form = "redis://127.0.0.1:{port}/0"
    ready = "Ready to accept"

    def __init__(self) -> None:
        super().__init__(install.redis_program())
        self.secure_port = free_port()

    def command(self, port: int) -> Sequence[str | Path]:
        certificate, key = self.write_papers()
        secure = (
            f"--tls-port {self.secure_port} --tls-cert-file {certificate} --tls-key-file {key} --tls-auth-clients no"
        )
        user = f"--user {USER} on >{PASSWORD} ~* &* +@all"
        options = f"{_OPTIONS} {secure} {user} --dir {self.folder} --port {port}"
        return [self._program, *options.split(), "--save", ""]
