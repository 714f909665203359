"""A private SQS and S3: moto's server, which keeps everything in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.servers.private import PrivateServer


class MotoServer(PrivateServer):
    """Amazon's services, as moto knows them."""

    name = "Moto"
    ready = "Running on"
    as_oneself = True

    def __init__(self) -> None:
        super().__init__(Path(sys.executable))

    def command(self, port: int) -> Sequence[str | Path]:
        return [self._program, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    @property
    def version(self) -> str:
        return version("moto")
