"""The test kit: prove that a handler takes effect exactly once, whatever happens to it. See docs/testing.md.

Needs nothing but onceward itself; the fixtures for pytest are in `onceward.testing.plugin`.
"""

from onceward.testing.clock import FixedClock
from onceward.testing.promises import PromiseBroken
from onceward.testing.proof import prove_exactly_once
from onceward.testing.report import Case, NotExactlyOnce, Report, Statement
from onceward.testing.sink_contract import sink_contract
from onceward.testing.store_contract import store_contract

__all__ = [
    "Case",
    "FixedClock",
    "NotExactlyOnce",
    "PromiseBroken",
    "Report",
    "Statement",
    "prove_exactly_once",
    "sink_contract",
    "store_contract",
]
