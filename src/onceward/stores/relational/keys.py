"""Removing a row of a key, in the one order that loses no message: lock the keys, remove, then let the next one go on.

Invariant: what takes a row out of a key (or out of its place in it) holds the key lock from before the removal until
the commit, and promotes in a statement after the removal. So a row that was parked behind the removed one has either
committed its parking and is promoted here, or parks after this commit and finds nothing ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceward.flow import Flow, Query, Request


def removing(keys: Iterable[int], *removal: Request, applied: Sequence[int] = ()) -> list[Request]:
    """The statements that take rows out of keys; `applied` are numbered ones, which their keys have then come to."""
    hashes = sorted(set(keys))
    advance = [Query("advance", {"seqs": list(applied)})] if applied else []
    if not hashes:
        return [*advance, *removal]
    locked = {"key_hashes": hashes}
    return [Query("lock_keys", locked), *advance, *removal, Query("promote", locked)]


def leave_key(seq: int, key_hash: int | None) -> Flow[bool]:
    """Let a key go on without its dead message; its lock is held already. False where it is not dead, or not first."""
    rows = yield Query("detach", {"seq": seq})
    if rows:
        yield Query("advance", {"seqs": [seq]})
        yield Query("promote", {"key_hashes": [key_hash]})
    return bool(rows)
