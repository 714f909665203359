"""The suite that defines a store: one that passes it may not lose, double or disorder a message.

    from onceward.testing.store_suite import Note, StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def place(self) -> MyPlace:
            return MyPlace()  # an empty database, see `Place`

It needs pytest, and nothing of a store but what `Place` has: how to open it, and how a handler has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from onceward.testing.store_suite.crashes import Crashes
from onceward.testing.store_suite.delays import Delays
from onceward.testing.store_suite.direct import Direct
from onceward.testing.store_suite.effects import ExternalCalls
from onceward.testing.store_suite.fan_out import FanOut
from onceward.testing.store_suite.handling import Handling
from onceward.testing.store_suite.identity import Identity
from onceward.testing.store_suite.incidents import Incidents, Interrupting
from onceward.testing.store_suite.inline import Inline
from onceward.testing.store_suite.members import Members
from onceward.testing.store_suite.mismatches import Mismatches
from onceward.testing.store_suite.operators import Operators
from onceward.testing.store_suite.order import Order
from onceward.testing.store_suite.outbox import Outbox
from onceward.testing.store_suite.outcomes import Outcomes
from onceward.testing.store_suite.past import Past
from onceward.testing.store_suite.pauses import Pausing
from onceward.testing.store_suite.payloads import Payloads
from onceward.testing.store_suite.place import Note, Place
from onceward.testing.store_suite.receiving import Receiving
from onceward.testing.store_suite.sessions import Sessions
from onceward.testing.store_suite.shop import Kind, Shop
from onceward.testing.store_suite.tending import Tending
from onceward.testing.store_suite.timeouts import Timeouts

__all__ = ["Kind", "Note", "Place", "Shop", "StoreSuite"]


class StoreSuite(
    Sessions,
    Receiving,
    Identity,
    Mismatches,
    Payloads,
    Handling,
    Outcomes,
    Timeouts,
    Inline,
    Direct,
    Order,
    Delays,
    FanOut,
    Members,
    Operators,
    Incidents,
    Interrupting,
    Pausing,
    Outbox,
    ExternalCalls,
    Tending,
    Past,
    Crashes,
):
    """Every promise, with `def` and with `async def` handlers. Give it a fixture `place`."""

    @pytest.fixture
    def place(self) -> Place:
        """An empty database of this test's own."""
        raise NotImplementedError("give the suite a fixture `place`: see onceward.testing.store_suite.Place")

    @pytest.fixture(params=["def", "async"])
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        """Which kind of handler, and which half of the API."""
        return cast("Kind", request.param)

    @pytest.fixture
    def shop(self, place: Place, kind: Kind) -> Iterator[Shop]:
        """An inbox on it, with handlers of this kind; looked through at the end of the test."""
        with Shop(place, kind) as shop:
            yield shop
