"""The moves: everything a step may ask of a store, as typed requests with named answers.

A move is one row of docs/protocol.md. It is a generator, entered with `yield from`: what it yields is the store's own
business (statements, for a database with SQL), and a test can stop it at each of those. Unless its docstring says that
it works inside the handler's transaction, a move is one transaction: when it returns, it is committed; when it raises,
nothing of it has happened, or the answer was lost and the move may be made again.

A store is a set of moves and the sessions that perform what they yield. `onceward.testing.MemoryStore` is the shortest
one; `stores/relational` has them once for all databases with SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from onceward.stores.moves.catalog import CatalogMoves
from onceward.stores.moves.claims import ClaimMoves
from onceward.stores.moves.effects import EffectMoves
from onceward.stores.moves.fan_out import FanOutMoves
from onceward.stores.moves.history import HistoryMoves
from onceward.stores.moves.inline import InlineMoves
from onceward.stores.moves.ledger import LedgerMoves
from onceward.stores.moves.membership import MembershipMoves
from onceward.stores.moves.operations import OperationMoves
from onceward.stores.moves.polls import PollMoves
from onceward.stores.moves.queue import QueueMoves
from onceward.stores.moves.retention import RetentionMoves

if TYPE_CHECKING:
    from onceward.stores.moves.reports import ReportMoves  # for people: most programs start without


class Moves(Protocol):
    """What a store can do, by subject."""

    @property
    def catalog(self) -> CatalogMoves:
        """Who wants what."""

    @property
    def ledger(self) -> LedgerMoves:
        """Receiving."""

    @property
    def claims(self) -> ClaimMoves:
        """Finding and taking messages."""

    @property
    def queue(self) -> QueueMoves:
        """Finishing and settling what was taken."""

    @property
    def inline(self) -> InlineMoves:
        """Receiving and handling in one transaction."""

    @property
    def fan_out(self) -> FanOutMoves:
        """Placing messages that came before their consumers."""

    @property
    def membership(self) -> MembershipMoves:
        """Processes and their leases."""

    @property
    def operations(self) -> OperationMoves:
        """What operators do."""

    @property
    def effects(self) -> EffectMoves:
        """External calls: their intents and their results."""

    @property
    def polls(self) -> PollMoves:
        """Polled APIs and their cursors."""

    @property
    def retention(self) -> RetentionMoves:
        """What keeps the tables small, and what erases."""

    @property
    def history(self) -> HistoryMoves:
        """What happened, by time; of no use where the store lacks that capability."""

    @property
    def reports(self) -> ReportMoves:
        """What operators see."""
