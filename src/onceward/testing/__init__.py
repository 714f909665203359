"""The test kit: prove that a handler takes effect exactly once, whatever happens to it. See docs/testing.md.

Needs nothing but onceward itself; the fixtures for pytest are in `onceward.testing.plugin`. The suites that
define a store and a broker are `onceward.testing.store_suite` and `onceward.testing.broker_suite`, which need pytest.
"""

from onceward.testing.clock import FixedClock
from onceward.testing.day import RecordedDay
from onceward.testing.memory import MemoryStore
from onceward.testing.promises import PromiseBroken
from onceward.testing.proof import prove_exactly_once
from onceward.testing.report import Case, Cause, NotExactlyOnce, Report, Statement
from onceward.testing.sink_contract import sink_contract
from onceward.testing.unit import RecordedMessage, message

__all__ = [
    "Case",
    "Cause",
    "FixedClock",
    "MemoryStore",
    "NotExactlyOnce",
    "PromiseBroken",
    "RecordedDay",
    "RecordedMessage",
    "Report",
    "Statement",
    "message",
    "prove_exactly_once",
    "sink_contract",
]
