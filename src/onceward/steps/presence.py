"""Presence: a process registers, renews its lease, says goodbye; the notes of one that died are taken over.

Invariant: notes come off and the worker row goes in one transaction, so a process that was declared dead can
neither finish what it held nor claim anything new. A worker number is random and never used twice, not even when the
database has gone back to an earlier state, and a heartbeat also says whose it is. A message is charged for a crash
only if it was the only one its process held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceward.domain import identity
from onceward.domain.fingerprint import fingerprint
from onceward.flow import COMMIT, Flow, Query
from onceward.steps.context import Context, once
from onceward.steps.suspects import ALONE, APART


def register(  # noqa: PLR0913 - who it is
    context: Context,
    *,
    process: str,
    host: str,
    pid: int,
    inline: bool,
    lanes: int = 0,
    draw: Callable[[], int] = identity.new_number,
) -> Flow[int]:
    """Make this process known, and take over whoever had its name before; answers its worker number."""
    row = {
        "process": process,
        "host": host,
        "pid": pid,
        "code_version": context.code_version,
        "handles": context.registry.handles,
        "lanes": lanes,
        "inline": inline,
        "lease": context.settings.lease.total_seconds(),
    }
    while True:
        yield context.short()
        before = yield Query("worker_of_process", {"process": process})
        replaced = f"was replaced by a new one of the same name, {process}"
        yield from _take_over(
            context, [(number, was, f"process {old} on {at} {replaced}") for number, was, old, at in before]
        )
        rows, _ = yield (Query("add_worker", {"worker": draw(), **row}), COMMIT)
        if rows:  # else somebody of this name has registered in between
            return int(rows[0][0])


def beat(context: Context, worker: int, process: str, *, inline: bool) -> Flow[bool]:
    """Renew the lease; False when this process was declared dead and must register anew."""
    params = {"worker": worker, "process": process, "lease": context.settings.lease.total_seconds(), "inline": inline}
    (rows,) = yield from once(context, Query("beat", params))
    return bool(rows)


def namesakes(context: Context, process: str) -> Flow[list[tuple[Any, ...]]]:
    """Who is registered under a name: number, inline, process id and host."""
    (rows,) = yield from once(context, Query("worker_of_process", {"process": process}))
    return rows


def take_over_lapsed(context: Context, worker: int) -> Flow[int]:
    """Take over whoever let its lease run out; answers how many workers that were."""
    yield context.short()
    dead = yield Query("lapsed_workers", {"worker": worker})
    yield from _take_over(
        context,
        [(number, inline, f"process {pid} on {host} stopped renewing its lease") for number, inline, pid, host in dead],
    )
    yield COMMIT
    return len(dead)


def take_over_process(context: Context, process: str, cause: str) -> Flow[int]:
    """Take over a process that is known to be dead, by whoever saw it die; answers how many workers that were."""
    yield context.short()
    dead = yield Query("worker_of_process", {"process": process})
    yield from _take_over(context, [(number, inline, cause) for number, inline, _, _ in dead])
    yield COMMIT
    return len(dead)


def say_goodbye(context: Context, worker: int) -> Flow[None]:
    """Leave: whatever is still noted comes off uncharged."""
    params = {"worker": worker}
    yield from once(context, Query("lock_worker", params), Query("let_go", params), Query("forget_worker", params))


def release_strays(context: Context, worker: int, held: Callable[[], set[int]]) -> Flow[int]:
    """Let go, uncharged, of notes in our name that no lane holds; answers of how many claims they were.

    Their lane is gone, or the database went back to a moment before it finished them.
    """
    (rows,) = yield from once(context, Query("tokens_of", {"worker": worker}))
    # Asked only now: a lane holds a token before it is written, and until its rows are known to be gone.
    strays = {token for (token,) in rows} - held()
    if strays:
        yield from once(context, Query("release", {"worker": worker, "tokens": sorted(strays)}))
    return len(strays)


def _take_over(context: Context, dead: list[tuple[int, bool, str]]) -> Flow[None]:
    """Notes off, crashes charged, worker rows gone; the keys that lose a message are locked together, in order."""
    left_behind = []
    for worker, _, _ in dead:
        left_behind.append((yield Query("noted_by", {"worker": worker})))
    leaving = [_leaving(context, held) for held in left_behind]
    keys = sorted({key_hash for _, key_hash in filter(None, leaving)})
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
    for (worker, inline, cause), held, leaver in zip(dead, left_behind, leaving, strict=True):
        charge = 1 if len(held) == 1 else 0
        limit = context.settings.crash_limit
        level = _first_level([suspect for *_, suspect in held])
        rows = yield Query("take_over", {"worker": worker, "charge": charge, "crash_limit": limit, "level": level})
        levels = dict(rows)
        for seq, attempts, crashes, *_ in held:
            crash = {"attempts": attempts, "crashes": crashes, "worker": worker, "cause": cause, "held": len(held)}
            yield Query("add_attempt", _crash_row(context, seq, **crash, level=levels[seq]))
        if leaver is not None:
            yield from leave_key(*leaver)
        yield Query("forget_worker", {"worker": worker})
        if inline:  # perhaps a message without a note was the cause: store first for a while
            yield Query("touch_catalog", {"crash": True})


def _first_level(levels: list[int]) -> int:
    """The level of those that were no suspects yet: they run in groups of half as many, beside other messages."""
    return max(1, levels.count(0) // 2) + 1


def _leaving(context: Context, held: list[tuple[Any, ...]]) -> tuple[int, int] | None:
    """The message of a dead worker whose last crash this was and whose key goes on without it: its number and key."""
    if len(held) != 1:
        return None
    seq, _, crashes, key_hash, on_dead, _ = held[0]
    spent = crashes + 1 >= context.settings.crash_limit
    return (seq, key_hash) if spent and key_hash is not None and on_dead == "continue" else None


def leave_key(seq: int, key_hash: int) -> Flow[bool]:
    """Let a key go on without its dead message, under the key lock."""
    rows = yield Query("detach", {"seq": seq})
    if rows:
        yield Query("advance", {"seqs": [seq]})
        yield Query("promote", {"key_hashes": [key_hash]})
    return bool(rows)


def _runs_next(level: int) -> str:
    if level == ALONE:
        return "it runs alone in its process next"
    if level == APART:
        return "it runs without another suspect next"
    others = level - 2
    return f"it runs with at most {others} other suspect{'s' if others > 1 else ''} next"


def _crash_row(  # noqa: PLR0913 - the columns of the row
    context: Context, seq: int, *, attempts: int, crashes: int, worker: int, cause: str, held: int, level: int
) -> dict[str, Any]:
    limit = context.settings.crash_limit
    if held == 1:
        text = f"crash {crashes + 1} of {limit}: {cause} while it handled this message alone"
    else:
        text = f"{cause} while it held {held} messages; not charged, {_runs_next(level)}"
    return {
        "seq": seq,
        "attempt": attempts,
        "kind": "crash",
        "charged": held == 1,
        "error": text,
        "traceback": None,
        "worker": worker,
        "code_version": context.code_version,
        "fingerprint": fingerprint(text),
    }
