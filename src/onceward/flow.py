"""How steps run: a step is a generator that yields requests and never touches a driver.

A request is a named statement, the begin or end of a transaction, or a call of a handler; a tuple of requests
may travel together (one round trip where the database can). `run_sync` and `run_async` hand each request to a
session and send the answer back. So every step exists once, works in both worlds, and can be stopped at every
statement by a test.

Invariant: whatever a session raises is raised inside the step, at the `yield` that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from onceward.registry import Handler

T = TypeVar("T")

# Requests are not frozen: a frozen one takes five times as long to make, and its class twice as long to define.


@dataclass(slots=True)
class Query:
    """Run a named statement; the answer is its rows, as tuples."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Each:
    """Run a named statement once per record, in one go where the database can; the answer is all rows."""

    name: str
    records: Sequence[Mapping[str, Any]]
    shared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Begin:
    """Start a transaction at the next statement, with limits in seconds."""

    statement_limit: float
    lock_limit: float
    idle_limit: float
    fence: str = ""
    """Set inside the transaction and gone with it, so that a guard can tell whether it is still the same one."""
    durable: bool = True
    """Not where a crash of the database may undo it without harm: then the commit need not wait for the disk."""
    savepoint: bool = False
    """With one right at its beginning, for a group that goes on when one of its messages fails."""
    writer_limit: float | None = None
    """How long to wait where a database has one writer and another holds it; None leaves it to the store."""
    by_index: bool = False
    """Its statements find their rows by indexes, whatever the database believes of its tables. Not where handlers or
    reports follow: those are planned as the database likes."""
    reads: bool = False
    """It reads and writes nothing: where a database has one writer, it need not wait for that."""


class StoreRequest:
    """What the moves of a store without statements yield: its own sessions know what to do with it."""


class Commit:
    """Commit; raises unless the database says that it did."""


class Rollback:
    """Undo everything since `Begin`; fine when there is nothing to undo."""


class Reconnect:
    """Replace a broken connection; returns whether the database is back."""


@dataclass(slots=True)
class Call:
    """Call a handler inside the current transaction; the answer is an `Outcome`, never an exception."""

    handler: Handler
    message: Any
    """A message, or a list of them for a handler that takes a batch."""
    interrupt: Callable[[], object] | None = None
    """Ends the wait for an `async def` handler, from any thread; set while it runs."""


@dataclass(slots=True)
class DryRun:
    """As `Call`, and record what it does: the answer is a `DryRunResult` (stores). Who asks rolls back afterwards."""

    call: Call
    prefix: str
    """Of our own tables, which are not the handler's business."""


@dataclass(slots=True)
class Do:
    """Make a call outside of any transaction; the answer is an `Outcome`, never an exception."""

    call: Callable[[], Any]


@dataclass(slots=True)
class Around:
    """Enter or leave middleware where handlers run, outside of their transaction; the answer is an `Outcome`.

    Awaited where the handlers are.
    """

    call: Callable[[], Any]


@dataclass(slots=True)
class AfterCommit:
    """Make the calls that handlers have left for after their commit; what one raises is logged, and never raised."""

    calls: Sequence[Callable[[], Any]]


@dataclass(slots=True)
class Wait:
    """Wait until there may be work, or the seconds are over; the answer is False where only they are."""

    seconds: float


Request = (
    Query
    | Each
    | StoreRequest
    | Begin
    | Commit
    | Rollback
    | Reconnect
    | Call
    | DryRun
    | Do
    | Around
    | AfterCommit
    | Wait
)
Flow = Generator[Request | tuple[Request, ...], Any, T]

COMMIT = Commit()
ROLLBACK = Rollback()
RECONNECT = Reconnect()


@dataclass(slots=True)
class Outcome:
    """What a handler did: returned a value or raised an error."""

    value: Any = None
    error: BaseException | None = None
    infrastructure: bool = False
    """The database was at fault (lost connection, deadlock), not the message."""
    leaves: bool = False
    """It set or made something that the next message must not meet: the transaction ends here."""
    touched: bool = False
    """It has used its transaction: going back to before it undoes something."""
    lost: bool = False
    """Its transaction cannot go on: the handler has ended it, or the connection is gone or left in use."""
    savepoints: int = 0
    """How many it has made of its own."""
    inside: float = 0.0
    """How many seconds of its time the database took for its statements."""
    computed: float = 0.0
    """How many seconds of processor time it took, those of its statements among them, where it gets more than a
    connection."""


def done(request: Do | Around) -> Outcome:
    """Make a call that a step has asked for."""
    try:
        return Outcome(value=request.call())
    except Exception as error:  # noqa: BLE001 - handed back to the step
        return Outcome(error=error)


Performer = Callable[[Any], Any]
Outside = Mapping[type, Performer]
"""What performs the kinds of requests that are not for a session, by their types."""
_ALL_INSIDE: Outside = MappingProxyType({})


def run_sync(flow: Flow[T], perform: Performer, outside: Outside = _ALL_INSIDE) -> T:
    """Drive a step to its end with blocking calls."""
    try:
        request = next(flow)
        while True:
            try:
                answer = outside.get(type(request), perform)(request)
            except BaseException as error:  # noqa: BLE001 - also an interruption belongs to the step
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # StopIteration cannot carry the type


async def run_async(flow: Flow[T], perform: Performer, outside: Outside = _ALL_INSIDE) -> T:
    """Drive a step to its end with awaited calls."""
    try:
        request = next(flow)
        while True:
            try:
                answer = await outside.get(type(request), perform)(request)
            except BaseException as error:  # noqa: BLE001 - also cancellation belongs to the step
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # StopIteration cannot carry the type
