"""A private NATS server with JetStream, whose streams are on disk; a secure one speaks nothing but TLS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tests.servers import install
from tests.servers.private import PASSWORD, USER, PrivateServer


class NatsServer(PrivateServer):
    """A NATS server of one's own."""

    name = "NATS"
    form = "nats://127.0.0.1:{port}"
    ready = "Server is ready"

    def __init__(self) -> None:
        super().__init__(install.nats_program())

    def command(self, port: int) -> Sequence[str | Path]:
        return [self._program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", self.folder / "streams"]


class SecureNatsServer(NatsServer):
    """One that lets nobody in without TLS and a password."""

    form = f"tls://{USER}:{quote(PASSWORD)}@127.0.0.1:{{port}}"

    def command(self, port: int) -> Sequence[str | Path]:
        certificate, key = self.write_papers()
        secure: list[str | Path] = [
            "--tls",
            "--tlscert",
            certificate,
            "--tlskey",
            key,
            "--user",
            USER,
            "--pass",
            PASSWORD,
        ]
        return [*super().command(port), *secure]
