"""The bounded worlds that are searched. Each is exhaustive by itself; together they cover the page.

`EVERYTHING` has all kinds of trouble at once, with each transaction of a worker as one step. The others have
less trouble at a time, and most take transactions apart, statement by statement.
"""

from __future__ import annotations

from tests.model.bounds import Budget, Scenario

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
    "groups and isolation",
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

# Places: the order inside a key is given, and messages arrive in any order.
PLACES = Scenario(
    "places, in any order of arrival",
    messages=("A1", "A2", "A3"),
    deliveries=("A1", "A2", "A3"),
    budget=Budget(retries=1, rejects=1),
    receive_steps=1,
    fine=True,
    placed=True,
)
PLACED_GROUPS = Scenario(
    "places in groups",
    messages=("A1", "A2", "A3"),
    deliveries=("A1", "A2", "A3"),
    budget=Budget(retries=1, rejects=1),
    receive_steps=1,
    group=2,
    placed=True,
    gives_back=True,
)
ADOPTED = Scenario(
    "a number found out late",
    messages=("A1", "A2", "A3"),
    unhandled=("A3", "A2"),
    deliveries=("A1",),
    receive_steps=1,
    fine=True,
    counted=True,
)

# Numbers within a key. A number may be held, stale or too late; time may pass at any moment.
NUMBERS = Scenario(
    "numbers of a key",
    messages=("A1", "A2"),
    deliveries=("A1", "A2"),
    budget=Budget(redrives=1, retries=1, rejects=1),
    fine=True,
    counted=True,
    discard_any=True,
    unblocks=True,
)
TWO_NUMBERS = Scenario(
    "two numbers, the second first",
    messages=("A1", "A2"),
    deliveries=("A1",),
    received=("A2",),
    budget=Budget(rejects=1),
    receive_steps=1,
    fine=True,
    counted=True,
    discard_any=True,
    unblocks=True,
)
NUMBERS_IN_GROUPS = Scenario(
    "numbers in groups",
    messages=("A1", "A2", "A3"),
    deliveries=("A1", "A2", "A3"),
    budget=Budget(retries=1),
    receive_steps=1,
    group=2,
    counted=True,
)
SAME_NUMBER = Scenario(
    "two messages with one number",
    messages=("A1", "A2", "A2b"),
    deliveries=("A2", "A2b"),
    received=("A1",),
    budget=Budget(retries=1, rejects=1),
    receive_steps=1,
    group=2,
    counted=True,
    continues=True,
)
GAP = Scenario(
    "a number that never comes",
    messages=("A2", "A3", "A4"),
    deliveries=("A2", "A3", "A4"),
    receive_steps=1,
    group=2,
    counted=True,
    continues=True,
)
LATE_NUMBERS = Scenario(
    "a late number and operators",
    messages=("A1", "A2", "A3"),
    deliveries=("A2", "A3"),
    received=("A1",),
    budget=Budget(redrives=1, rejects=1),
    receive_steps=1,
    counted=True,
    unblocks=True,
)
TROUBLED_NUMBERS = Scenario(
    "numbers, a crash and a lease",
    messages=("A1", "A2"),
    deliveries=("A1", "A2"),
    budget=Budget(crashes=1, stops=1, redrives=1, rejects=1),
    receive_steps=1,
    counted=True,
    continues=True,
)

# Dead heads that leave their key: by the handler's rule, by an operator, by a crash too many.
CONTINUE = Scenario(
    "dead heads that leave their key",
    messages=("A1", "A2", "A3"),
    deliveries=("A3",),
    received=("A1", "A2"),
    budget=Budget(redrives=1, rejects=2),
    fine=True,
    continues=True,
)
UNBLOCK = Scenario(
    "keys unblocked of dead heads",
    messages=("A1", "A2"),
    deliveries=("A2",),
    received=("A1",),
    budget=Budget(redrives=2, rejects=2),
    fine=True,
    unblocks=True,
    clerks=True,
)
FATAL = Scenario(
    "crashes that kill, and the key goes on",
    messages=("A1", "A2"),
    received=("A1", "A2"),
    budget=Budget(crashes=2, stops=1, redrives=1),
    fine=True,
    continues=True,
)

# The relay: X is a key of outgoing messages.
RELAY = Scenario(
    "handlers that send",
    messages=("A1", "A2", "X1", "X2"),
    received=("A1", "A2"),
    sends=(("A1", "X1"), ("A2", "X2")),
    budget=Budget(crashes=1, stops=1, retries=1, rejects=1),
)
RELAY_BY_STATEMENT = Scenario(
    "a handler that sends, by statement",
    messages=("A1", "X1"),
    received=("A1",),
    sends=(("A1", "X1"),),
    budget=Budget(crashes=1, stops=1, retries=1, rejects=1),
    fine=True,
)
RELAY_GROUPS = Scenario(
    "the relay in groups",
    messages=("A1", "X1", "X2", "X3"),
    received=("A1",),
    sends=(("A1", "X1"), ("A1", "X2"), ("A1", "X3")),
    budget=Budget(retries=2),
    group=3,
)
TROUBLED_RELAY_GROUPS = Scenario(
    "the relay in groups, a crash and a lease",
    messages=("A1", "X1", "X2"),
    received=("A1",),
    sends=(("A1", "X1"), ("A1", "X2")),
    budget=Budget(crashes=1, stops=1, retries=1),
    group=2,
)

# Messages that are not due yet.
SCHEDULED = Scenario(
    "a scheduled message joins its key",
    messages=("A1", "A2", "A3"),
    deliveries=("A2", "A3"),
    scheduled=("A1",),
    budget=Budget(crashes=1, retries=1),
    fine=True,
    discard_any=True,
)
TWO_SCHEDULED = Scenario(
    "two scheduled messages, a crash and a lease",
    messages=("A1", "A2", "A3"),
    deliveries=("A3",),
    scheduled=("A1", "A2"),
    budget=Budget(crashes=1, stops=1, retries=1, rejects=1),
    group=2,
)

# Effects under `once`.
ONCE = Scenario(
    "a call made at most once",
    messages=("A1",),
    received=("A1",),
    effect="once",
    budget=Budget(crashes=1, stops=1, redrives=1, retries=1),
    fine=True,
)
IDEMPOTENT = Scenario(
    "a call made at least once",
    messages=("A1",),
    received=("A1",),
    effect="idempotent",
    budget=Budget(crashes=1, stops=1, redrives=1, retries=1),
    fine=True,
)

# Inline, with numbers; and, after a crash, stored and claimed first.
INLINE_NUMBERS = Scenario(
    "inline, with numbers",
    messages=("A1", "A2", "A2b"),
    deliveries=("A1", "A2", "A2b"),
    inline=(0, 1, 2),
    budget=Budget(retries=1, rejects=1),
    receive_steps=1,
    counted=True,
    continues=True,
)
TWO_INLINE_NUMBERS = Scenario(
    "inline, with two numbers",
    messages=("A1", "A2"),
    deliveries=("A1", "A2"),
    inline=(0, 1),
    budget=Budget(rejects=1),
    receive_steps=1,
    fine=True,
    counted=True,
    continues=True,
)
STORED_FIRST = Scenario(
    "inline, claimed first",
    messages=("A1", "B1"),
    deliveries=("A1", "B1", "A1"),
    stored_first=(0, 1, 2),
    budget=Budget(crashes=1, stops=1, retries=1),
)
