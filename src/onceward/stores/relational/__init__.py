"""The moves of every store with SQL, each written once as its statements.

Invariant: a dialect differs in the text of statements (`stores/*/sql`), never in which of them a move sends, nor in
their order. Rows get their names here: nothing outside this package knows a column by its position.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from onceward.stores.protocol import TimeLimits
from onceward.stores.relational.catalog import Catalog
from onceward.stores.relational.claims import Claims
from onceward.stores.relational.effects import Effects
from onceward.stores.relational.fan_out import FanOuts
from onceward.stores.relational.history import History
from onceward.stores.relational.inline import Inline
from onceward.stores.relational.ledger import Ledger
from onceward.stores.relational.membership import Membership
from onceward.stores.relational.operations import Operations
from onceward.stores.relational.polls import Polls
from onceward.stores.relational.queue import Queue
from onceward.stores.relational.retention import Retention
from onceward.stores.relational.transaction import Transactions

if TYPE_CHECKING:
    from onceward.stores.relational.reports import Reports


class RelationalMoves:
    """The moves of a database with SQL."""

    def __init__(self, limits: TimeLimits) -> None:
        self._transactions = transactions = Transactions(limits)
        self.catalog = Catalog(transactions)
        self.ledger = Ledger(transactions)
        self.claims = Claims(transactions)
        self.queue = Queue(transactions, self.claims)
        self.inline = Inline(transactions)
        self.fan_out = FanOuts(transactions)
        self.membership = Membership(transactions)
        self.operations = Operations(transactions)
        self.effects = Effects(transactions)
        self.polls = Polls(transactions)
        self.retention = Retention(transactions)
        self.history = History(transactions)

    @cached_property
    def reports(self) -> Reports:
        """What operators see; for people, so most programs start without."""
        from onceward.stores.relational.reports import Reports  # noqa: PLC0415 - see above

        return Reports(self._transactions)
