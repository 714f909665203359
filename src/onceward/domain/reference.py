"""A reference to a body that is kept elsewhere (the claim check, R10), as it stands among the headers of a row.

Invariant: the header is ours alone (`Delivery.of` refuses it from callers) and comes first in the stored text, so that
an index finds the rows that refer to a blob by its name; a name is never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from onceward.domain import payload
from onceward.domain.ids import time_ordered_id

HEADER = "onceward-blob"
_FIRST = f'{{"{HEADER}":"'


class Reference(NamedTuple):
    """Where a body is, and what it must be."""

    name: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.size} {self.sha256}"


def new_name(folder: str) -> str:
    """A name that was never used and never will be. Its length is known to `body_blob`, the index by name."""
    return f"{folder}/{datetime.now(UTC):%Y/%m/%d}/{time_ordered_id().replace('-', '')}"


def stored_headers(headers: Mapping[str, str], reference: Reference | None) -> str | None:
    """Headers as they are stored, the reference before all others."""
    if reference is not None:
        return payload.encode_text({HEADER: str(reference), **headers})
    return payload.encode_text(dict(headers)) if headers else None


def split(text: str | None) -> tuple[dict[str, str], Reference | None]:
    """Headers that were stored, without the reference; and the reference, if the body is elsewhere."""
    headers: dict[str, str] = payload.decode_text(text) if text else {}
    if text is None or not text.startswith(_FIRST):
        return headers, None
    name, size, sha256 = headers.pop(HEADER).split(" ")
    return headers, Reference(name, int(size), sha256)
