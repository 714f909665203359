"""A private Pub/Sub: Google's emulator where it is installed, else `pstest`, which Google's Go client is tested with.

Both keep everything in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.private import PrivateServer

_JVM = "-Xms32m -Xmx128m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


class PubsubServer(PrivateServer):
    """A Pub/Sub of one's own."""

    name = "Pubsub"
    ready = "Server started, listening on"

    def __init__(self) -> None:
        self._emulator = install.pubsub_emulator()
        super().__init__(install.java_program() if self._emulator else install.pstest_program())

    def command(self, port: int) -> Sequence[str | Path]:
        if self._emulator is None:
            return [self._program, "-port", str(port)]
        return [self._program, *_JVM.split(), "-jar", self._emulator, "--host=127.0.0.1", f"--port={port}"]

    @property
    def version(self) -> str:
        return f"pstest {install.PSTEST}" if self._emulator is None else self._emulator.stem.removesuffix("-all")
