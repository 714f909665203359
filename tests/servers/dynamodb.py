"""A private DynamoDB Local, on a JVM of its own.

It keeps its tables in memory, or in a file that outlives it. Neither proves durability: what it acknowledged may be
gone when it is killed, as its makers say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.private import PrivateServer

_JVM = "-Xms32m -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"


class DynamoServer(PrivateServer):
    """A DynamoDB of one's own."""

    name = "DynamoDB Local"
    form = "http://127.0.0.1:{port}"
    ready = "CorsParams"

    def __init__(self, *, in_memory: bool = False) -> None:
        super().__init__(install.java_program())
        self._libraries, self._in_memory = install.DYNAMODB.libraries(), in_memory
        data = self.folder / "data"
        data.mkdir()
        data.chmod(0o777)  # the server runs as another user
        for library in [*self._libraries.glob("libsqlite4java-*.so"), *self._libraries.glob("libsqlite4java-*.dylib")]:
            # Looked for under its name without a version.
            named = self.folder / f"{library.stem.rpartition('-')[0]}{library.suffix}"
            named.write_bytes(library.read_bytes())
            named.chmod(0o755)

    def command(self, port: int) -> Sequence[str | Path]:
        kept = ["-inMemory"] if self._in_memory else ["-dbPath", str(self.folder / "data")]
        jars = [f"-Djava.library.path={self.folder}", "-cp", f"{self._libraries}/*", _MAIN]
        return [self._program, *_JVM.split(), *jars, "-port", str(port), "-sharedDb", "-disableTelemetry", *kept]

    @property
    def version(self) -> str:
        return install.DYNAMODB.version
