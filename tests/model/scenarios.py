"""The bounded worlds that are searched. Each is exhaustive by itself; together they cover the page.

`EVERYTHING` has all kinds of trouble at once, with each transaction of a worker as one step. The others have
less trouble at a time, and most take transactions apart, statement by statement.
"""

from __future__ import annotations

from tests.model.world import Budget, Scenario

EVERYTHING = Scenario(
    "everything",
    messages=("A1", "A2", "B1"),
    deliveries=("A1", "A2", "A1"),
    received=("B1",),
    budget=Budget(crashes=2, stops=1, redrives=1, rejects=1),
)
DUPLICATES = Scenario(
    "duplicates and late commits",
    messages=("A1", "A2"),
    deliveries=("A1", "A2", "A1"),
    budget=Budget(crashes=2),
    fine=True,
    receive_steps=3,
    receivers_crash=True,
)
TWICE = Scenario(
    "one message, delivered twice",
    messages=("A1",),
    deliveries=("A1", "A1"),
    budget=Budget(crashes=1),
    fine=True,
    receive_steps=3,
    receivers_crash=True,
)
ORDER = Scenario(
    "order and dead heads",
    messages=("A1", "A2"),
    deliveries=("A1", "A2"),
    budget=Budget(redrives=1, retries=1, rejects=1),
    fine=True,
    discard_any=True,
)
TROUBLED_ORDER = Scenario(
    "order, a crash and a lease",
    messages=("A1", "A2"),
    deliveries=("A1", "A2"),
    budget=Budget(crashes=1, stops=1, redrives=1, retries=1, rejects=1),
    fine=True,
)
CHAIN = Scenario(
    "three of one key",
    messages=("A1", "A2", "A3"),
    deliveries=("A1", "A2", "A3"),
    budget=Budget(retries=1, rejects=1),
    fine=True,
)
SHORT_CHAIN = Scenario(
    "three of one key, already there",
    messages=("A1", "A2", "A3"),
    received=("A1", "A2", "A3"),
    fine=True,
)
LEASES = Scenario(
    "crashes and leases",
    messages=("A1", "A2", "B1"),
    received=("A1", "A2", "B1"),
    budget=Budget(crashes=2, stops=1),
    fine=True,
)
PAIR = Scenario(
    "a pair, a crash and a lease",
    messages=("A1", "A2"),
    received=("A1", "A2"),
    budget=Budget(crashes=1, stops=1),
    fine=True,
)
GROUPS = Scenario(
    "groups and solo",
    messages=("A1", "A2", "B1"),
    received=("A1", "A2", "B1"),
    budget=Budget(crashes=1, stops=1, retries=1),
    group=2,
    fine=True,
)
LATE_GROUPS = Scenario(
    "groups and late commits",
    messages=("A1", "A2", "B1"),
    deliveries=("A1", "A2"),
    received=("B1",),
    budget=Budget(crashes=2, retries=2, rejects=1),
    group=2,
)
GROUPS_OF_THREE = Scenario(
    "groups of three",
    messages=("A1", "A2", "A3", "B1"),
    received=("A1", "A2", "A3", "B1"),
    budget=Budget(crashes=1, retries=3, rejects=1),
    group=3,
)
POISON = Scenario(
    "a poisonous message",
    messages=("A1", "A2", "B1"),
    deliveries=("A1", "A2"),
    received=("B1",),
    budget=Budget(redrives=1, retries=2),
    group=2,
    poison="A1",
)
WATCHDOG = Scenario(
    "an attempt given up",
    messages=("A1", "A2"),
    received=("A1", "A2"),
    budget=Budget(stops=1, abandons=1),
    fine=True,
)
INLINE = Scenario(
    "inline and store-first",
    messages=("A1", "A2"),
    deliveries=("A1", "A2", "A2"),
    inline=(0, 1),
    budget=Budget(crashes=1, retries=1),
    fine=True,
    receivers_crash=True,
)
