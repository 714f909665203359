"""What operators do to messages: guarded, repeatable, and written into the audit in the same commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from onceward.flow import Flow
from onceward.stores.moves.ledger import Mismatch, NewRow

Resolution = Literal["keep-first", "accept-as-new", "discard"]


class Order(NamedTuple):
    """What an operator wants done to a message."""

    seq: int
    actor: str
    reason: str


class KeyOf(NamedTuple):
    """Where an unfinished message stands in the order."""

    key_hash: int | None
    """None where it has left its key, or has none."""
    key: str | None
    aggregate: str | None
    consumer: str
    outgoing: bool
    destination: str | None
    sequence: int | None


class Redrive(NamedTuple):
    """Give a dead message a new budget of attempts."""

    order: Order
    key_hash: int | None
    """The key that it is to stand in,"""
    seen_key: int | None
    """and the one it was seen in."""
    counted: bool
    """It returns to its key with a number, which then counts as not applied."""


class Revise(NamedTuple):
    """Give a dead or retrying message a corrected body, and a new budget of attempts."""

    redrive: Redrive
    seen_body: bytes
    """What its row had when it was looked at,"""
    seen_headers: str | None
    body: bytes
    """and what it is to have."""
    headers: str | None
    kept: Sequence[Mismatch]
    """Its bodies, to be remembered as revisions: a copy of each is a duplicate."""


class EffectDecision(NamedTuple):
    """What became of an external call whose outcome was unknown."""

    key: str
    order: Order
    result: str | None
    """What it returned, as text; None where it did not happen."""
    patience: float
    """For so many seconds a worker that has left no other trace is taken to be running it."""


class Case(NamedTuple):
    """A mismatch that waits for a decision, beside the message whose id it has."""

    case: int
    seq: int
    """The first message."""
    hash: bytes
    type: str
    version: int
    headers: str | None
    body: bytes
    copies: int
    first_at: int
    last_at: int
    source: str
    stored_id: bytes
    first_hash: bytes
    first_body: bytes | None
    consumer: str
    first_id: str | None
    """The id as the sender of the first message wrote it; None when its body is gone."""
    key: str | None
    first_headers: str | None
    first_type: str | None
    first_version: int | None
    position: int | None
    due_at: int | None
    """When it was to run, where that was not at once."""


class Resolve(NamedTuple):
    """Decide about a mismatch."""

    case: int
    resolution: Resolution
    order: Order
    row: NewRow | None = None
    """The message that it becomes, for `accept-as-new`."""
    catalog: int = 0


class Resolved(NamedTuple):
    """What a decision led to."""

    state: Literal["resolved", "closed", "outdated"]
    """`closed`: the case was not open any more. `outdated`: the catalog has changed, and nothing was decided."""
    accepted: int | None = None


class OperationMoves(Protocol):
    """What operators do."""

    def key_of(self, seq: int, /) -> Flow[KeyOf | None]:
        """Where an unfinished message stands; None where there is no such message."""

    def redrive(self, redrive: Redrive, /) -> Flow[Literal["done", "not dead", "passed"]]:
        """Make a dead message ready; `passed` where a later number of its key is running, applied or given up."""

    def revise(self, revise: Revise, /) -> Flow[Literal["done", "not dead", "passed", "changed"]]:
        """As `redrive`, also of one that waits for another try; `changed` where its body is not what was seen."""

    def discard(self, order: Order, /, *, scheduled: bool) -> Flow[bool]:
        """Take an unfinished message out for good; False where it is running or finished, or not first by number.

        With `scheduled` only one that no worker has taken up since it was due.
        """

    def make_due(self, order: Order, /) -> Flow[bool]:
        """Make a message due that was to run, or to be tried again, later; False where it is none of these."""

    def unblock(self, order: Order, /) -> Flow[bool]:
        """Let a key go on without its dead message; False where it holds none, or is not first by number."""

    def settle_effect(self, decision: EffectDecision, /) -> Flow[bool]:
        """Decide about an external call; False where its outcome is known, or its message is running."""

    def case(self, case: int, /) -> Flow[Case | None]:
        """A mismatch that waits for a decision; None where it does not (any more)."""

    def resolve(self, resolve: Resolve, /) -> Flow[Resolved]:
        """Decide about a mismatch."""

    def keep_first(self, source: str, type: str, actor: str, reason: str, limit: int, /) -> Flow[int]:  # noqa: A002
        """Decide some of the cases in which only the type differs for the first message; returns how many."""

    def record_reading(self, order: Order, /) -> Flow[bool]:
        """Write into the audit that an operator sees a payload; False where there is no such message."""

    def sign_out(self, session: str, seconds: float, /) -> Flow[None]:
        """End a session of the dashboard whose cookie is good for so long."""

    def is_signed_out(self, session: str, /) -> Flow[bool]:
        """Whether a session has ended."""
