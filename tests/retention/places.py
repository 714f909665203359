"""Places for large bodies: a folder and a bucket, each of which can go away, lose something, or change it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from onceward.blobs.protocol import BlobStore, open_blobs
from tests.servers import FaultProxy, MotoServer

_buckets = itertools.count(1)


@dataclass
class Place:
    """A blob store and what is in it."""

    url: str
    store: BlobStore
    """The same, past whatever keeps the inbox from it."""
    folder: Path | None = None
    proxy: FaultProxy | None = None

    def names(self) -> list[str]:
        """What is kept."""
        return sorted(name for name, _ in self.store.listed(""))

    @contextmanager
    def away(self) -> Iterator[None]:
        """It cannot be reached while the block runs."""
        if self.folder is not None:
            mounted = self.folder.readlink()
            nothing = self.folder.with_name("nothing")
            nothing.write_text("a file where the folder was: nobody can write here")
            _point(self.folder, nothing)
            yield
            _point(self.folder, mounted)
        if self.proxy is not None:
            self.proxy.cut()
            yield
            self.proxy.heal()

    def replace(self, name: str, body: bytes) -> None:
        """Somebody has changed a blob."""
        self.store.delete(name)
        self.store.put(name, body)


def _point(folder: Path, target: Path) -> None:
    """In one step: whoever writes in the background finds one or the other."""
    fresh = folder.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(folder)


def files(folder: Path) -> Place:
    """A folder of its own."""
    mounted = folder.with_name("mounted")
    mounted.mkdir()
    folder.symlink_to(mounted)
    return Place(f"file://{folder}", open_blobs(f"file://{folder}"), folder=folder)


def bucket(server: MotoServer, proxy: FaultProxy) -> Place:
    """A bucket of its own, reached through a proxy."""
    name = f"bodies-{next(_buckets)}"
    with urlopen(Request(f"http://127.0.0.1:{server.port}/{name}", method="PUT")):
        pass
    direct, through = (
        f"s3://{name}/in/box?region=eu-west-1&endpoint=http://127.0.0.1:{port}" for port in (server.port, proxy.port)
    )
    return Place(through, open_blobs(direct), proxy=proxy)
