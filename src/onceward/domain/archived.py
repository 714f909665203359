"""A finished message as it stands in the archive: one JSON object, which every tool can read (R32)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

Record = dict[str, Any]


def blank(record: Record) -> Record:
    """A message without what says something about a person."""
    kept = {name: value for name, value in record.items() if name not in {"body", "body_base64", "result"}}
    return {**kept, "key": None, "headers": {}, "body": None, "erased": True}


def with_body(record: Record, body: bytes | None) -> Record:
    """A record with its body: as text where it is text, so that every tool can look into it."""
    if body is None:
        return {**record, "body": None}
    try:
        return {**record, "body": body.decode()}
    except UnicodeDecodeError:
        return {**record, "body_base64": base64.b64encode(body).decode()}


def body_of(record: Mapping[str, Any]) -> bytes | None:
    """The bytes that `with_body` was given."""
    if "body_base64" in record:
        return base64.b64decode(record["body_base64"])
    text = record["body"]
    return None if text is None else text.encode()
