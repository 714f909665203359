"""What stores without interactive transactions share: a `tx` that records, and the part of a session that keeps it.

Invariant: nothing that is recorded is visible before the move that finishes the message, which applies all of it
together with "done". Reads go past it, to what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from onceward.errors import ContractViolation, GuardFailed, HandlerTimeout, StoreConflict, StoreUnavailable
from onceward.flow import Outcome, StoreRequest
from onceward.stores.calls import Owned
from onceward.stores.dry_run import DryRunResult, Statement


class Recorder(Owned):
    """What a handler writes through; each store adds what can be written and read."""

    def __init__(self) -> None:
        self.writes: list[Any] = []
        self.marks: list[int] = []
        """How much was recorded at each savepoint."""

    def commit(self) -> None:
        """Refused: returning commits."""
        self._refuse("commit()")

    def rollback(self) -> None:
        """Refused: raising rolls back."""
        self._refuse("rollback()")

    def record(self, write: Any) -> None:
        """Keep a write for the end."""
        self.check()
        self.sends("")
        self.writes.append(write)

    def check(self) -> None:
        """Refuse who does not have it, or has it no more."""
        self.check_owner()
        if self.overrun:
            raise HandlerTimeout("the handler has run longer than its timeout; what it writes is not kept")

    def statements_shown(self) -> list[Statement]:
        """The writes, to be shown."""
        return [Statement(str(write), "") for write in self.writes]

    def _refuse(self, what: str) -> None:
        self.check()
        raise ContractViolation(
            f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back. "
            "Remove it"
        )


class Open(StoreRequest):
    """Begin a handler's transaction: from now on its writes are recorded."""


class Savepoint(StoreRequest):
    """What was recorded until here stays, whatever fails later."""


class Undo(StoreRequest):
    """Forget what was recorded since the last savepoint."""


Tx = TypeVar("Tx", bound=Recorder)


class Recording(Generic[Tx]):
    """The part of a session that has a recorder, from `Open` until it is finished or forgotten."""

    def __init__(self, recorder: Callable[[], Tx], name: str) -> None:
        self._recorder, self._name = recorder, name
        self.tx: Tx | None = None
        self.is_open, self.is_cut = True, False

    def check(self) -> None:
        """Refuse what is closed."""
        if self.is_cut or not self.is_open:
            raise StoreUnavailable(f"this session of {self._name} is closed")

    def open_tx(self) -> Tx:
        """The transaction; raises where there is none, for then it was not finished but lost."""
        if self.tx is None:
            raise GuardFailed("the transaction that is to be finished is not there any more")
        return self.tx

    @contextmanager
    def lent(self) -> Iterator[Tx]:
        """The transaction, while a handler has it."""
        tx = self.open_tx()
        tx.lend()
        try:
            yield tx
        finally:
            tx.reclaim()

    def keep(self, request: StoreRequest) -> None:
        """Perform what needs no answer of the database."""
        if isinstance(request, Open):
            self.tx = self._recorder()
            return
        tx = self.open_tx()
        if isinstance(request, Savepoint):
            tx.marks.append(len(tx.writes))
        else:
            del tx.writes[tx.marks[-1] :]

    def interrupt(self) -> None:
        """The handler has run for too long."""
        if self.tx is not None:
            self.tx.overrun = True


def examined(called: Outcome, tx: Recorder) -> Outcome:
    """What a handler did, with whether it has used its transaction."""
    called.touched = tx.statements > 0
    return called


def shown(called: Outcome, tx: Recorder, unseen: str) -> DryRunResult:
    """What a handler would have done; what the rows would be is not known before."""
    return DryRunResult(called, tx.statements_shown(), (), unseen)


def is_infrastructure(error: BaseException) -> bool:
    """Whether the store was at fault rather than the message."""
    return isinstance(error, StoreUnavailable | StoreConflict)
