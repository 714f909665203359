"""Large bodies: offloaded before the transaction that refers to them, fetched and checked when they are read (R10)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from onceward.domain import identity
from onceward.domain.reference import Reference, new_name
from onceward.errors import BlobsUnavailable, BodyLost
from onceward.message import Delivery

if TYPE_CHECKING:
    from onceward.blobs.protocol import BlobStore

log = logging.getLogger("onceward")

_SILENCE = 30.0
"""So many seconds between two lines of the log that say the same: many messages may want their bodies meanwhile."""


@dataclass(slots=True)
class LargeBodies:
    """The blob store of an inbox, if it has one."""

    store: BlobStore | None = None
    above: int = 0
    """Bodies with more bytes than this are offloaded."""
    folder: str = ""
    """The part of the blob store that belongs to these tables; empty until it was read from the database."""
    _said: float = field(default=float("-inf"), repr=False)

    @classmethod
    def at(cls, url: str | None, *, above: int) -> LargeBodies:
        """Those of an inbox that was given the URL of a blob store, or none."""
        if url is None:
            return cls(None, above)
        from onceward.blobs.protocol import open_blobs  # noqa: PLC0415 - most inboxes keep all bodies in rows

        return cls(open_blobs(url), above)

    def wants(self, delivery: Delivery) -> bool:
        """Whether a body is to be offloaded."""
        return self.store is not None and delivery.blob is None and len(delivery.body) > self.above

    def offload(self, delivery: Delivery) -> Delivery:
        """Keep the body in the store, under a name of its own."""
        reference = Reference(new_name(self.folder), len(delivery.body), delivery.hash.hex())
        self._opened(reference.name).put(reference.name, delivery.body)
        return delivery._replace(blob=reference)

    def fetch(self, reference: Reference) -> bytes:
        """The body, as it came; raises `BodyLost` when it is not there, or not what it was."""
        try:
            body = self._opened(reference.name).get(reference.name)
        except BlobsUnavailable as error:
            if time.monotonic() - self._said > _SILENCE:
                self._said = time.monotonic()
                log.warning("%s; messages with large bodies wait until it works again, uncharged", error)
            raise
        if body is None:
            raise BodyLost(
                f"the blob {reference.name} ({reference.size} bytes) is not in the blob store; restore it there from a "
                "backup and redrive the message, or have its sender send it again under a new id"
            )
        if identity.body_hash(body).hex() != reference.sha256:
            raise BodyLost(
                f"the blob {reference.name} is not what was stored ({len(body)} bytes, then {reference.size}; its "
                "hash differs); restore it from a backup and redrive the message, or discard it"
            )
        return body

    def delete(self, name: str) -> None:
        """Remove a blob that no row refers to."""
        self._opened(name).delete(name)

    def listed(self) -> Iterator[tuple[str, datetime]]:
        """What is kept for these tables, referred to or not."""
        return iter(()) if self.store is None else self.store.listed(self.folder)

    def _opened(self, name: str) -> BlobStore:
        if self.store is None:
            raise BlobsUnavailable(f"the body is in the blob {name}, and this program has no Inbox(blobs=...)")
        return self.store
