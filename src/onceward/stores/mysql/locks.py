"""Locks that are tried and not waited for.

Invariant: what is answered is locked by this transaction, on every server; what others have locked is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from onceward.stores.mysql.failures import BUSY, is_of_driver, number
from onceward.stores.mysql.wire import Rows


def tried(
    locking: Callable[[Sequence[int]], bytes], wanted: Sequence[int], *behind: bytes
) -> Generator[Sequence[bytes], list[Rows], list[Rows]]:
    """Lock rows, but for those that others have locked; then ask for more.

    Where such a row is an error (TiDB) the others are found by halves. What was asked before has to be answered by
    then, for the error of a statement takes the answers of its packet along.
    """
    try:
        return (yield [locking(wanted), *behind])
    except Exception as error:
        if not (is_of_driver(error) and number(error) in BUSY):
            raise
    half, locked = len(wanted) // 2, []
    for some in (wanted[:half], wanted[half:]) if half else ():
        (rows,) = yield from tried(locking, some)
        locked += rows
    return [locked, *((yield behind) if behind else [])]
