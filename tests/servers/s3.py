"""A private S3 server: moto's, over HTTP on a port of its own, in a thread of the test process."""

from __future__ import annotations

from importlib import metadata
from typing import Self
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer


class S3Server:
    """An S3 server of one's own; use as a context manager."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        self.port = 0

    def make_bucket(self, name: str) -> str:
        """A new bucket; answers its name."""
        with urlopen(Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")):
            return name

    @property
    def version(self) -> str:
        """The version of moto."""
        return metadata.version("moto")

    def __enter__(self) -> Self:
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
