"""What a blob store must be, and how one is opened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from onceward.errors import ConfigurationError


class BlobStore(Protocol):
    """Keeps bytes under names; the names have folders, separated by slashes.

    Obligations: what `put`, `create` and `delete` returned for survives a crash of the machine, and so do the names
    that `listed` returns; a reader finds all of a body or nothing. Trouble with the store itself is raised as
    `BlobsUnavailable`.
    """

    def put(self, name: str, body: bytes) -> None:
        """Keep bytes under a new name; returns when they are safe."""

    def create(self, name: str, body: bytes) -> bool:
        """As `put`, under a name that has nothing yet; returns False, and changes nothing, where it has something."""

    def get(self, name: str) -> bytes | None:
        """The bytes under a name; None when the store works and does not have them."""

    def delete(self, name: str) -> None:
        """Remove what is under a name; fine when there is nothing."""

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """The names in a folder and below, each with the time when it was last written."""


def open_blobs(url: str) -> BlobStore:
    """The blob store behind a URL: `file:///var/blobs` or `s3://bucket/prefix?region=...&endpoint=...`."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc and not options:
        from onceward.blobs.files import Files  # noqa: PLC0415 - stores load on demand

        return Files(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc and options.keys() <= {"region", "endpoint"}:
        try:
            from onceward.blobs.s3 import S3  # noqa: PLC0415 - stores load on demand
        except ImportError as error:
            raise ConfigurationError("blobs in S3 need a client: pip install 'onceward[blob]'") from error
        return S3(parts.netloc, unquote(parts.path).strip("/"), **options)
    raise ConfigurationError(
        f"blobs={url!r}: use file:///path (absolute) or s3://bucket/prefix, with ?region=...&endpoint=... where needed"
    )
