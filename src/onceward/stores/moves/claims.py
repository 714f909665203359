"""Claims: which messages a worker claims, and how it finds them.

A claim is (worker, token) on rows, committed before any handler runs. The token is fresh for every claim, so the pair
proves who owns a message now. With keys, a message is claimed only if every earlier one of its key is in that claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from onceward.domain.pauses import Rest, rested
from onceward.flow import Flow


@dataclass(slots=True)
class Claim:
    """Take due messages: their rows carry (worker, token) from the commit on."""

    worker: int
    token: int
    subscriptions: Sequence[int]
    limit: int
    cursor: int = 0
    """New messages are looked for from this number on."""
    retries: int = 0
    """How many of them may be messages that are tried again."""
    held: Sequence[int] = ()
    """Keys that are passed over: another worker was found to hold them a moment ago."""
    destination: str | None = None
    """Claim outgoing messages to this destination."""
    isolation: int = 0
    """Claim isolated messages of this level instead of ordinary ones."""
    gaps: Mapping[int, float] | None = None
    """For subscriptions whose messages are numbered within their key: how many seconds one waits for the number before
    it. None where no message of the claim is numbered, as far as the worker knows."""
    rests: Mapping[int, Sequence[Rest]] = field(default_factory=dict)
    """When subscriptions were paused, as ages: that does not count for the wait."""


class ClaimedRow(NamedTuple):
    """A message that was claimed."""

    seq: int
    subscription: int
    key_hash: int | None
    place: int
    sequence: int | None
    attempts: int
    source: int
    id: str
    type: str
    version: int
    key: str | None
    headers: str | None
    body: bytes | None
    """None where it is large: it is fetched by itself (`body_of`)."""
    destination: str | None
    key_from: str | None
    received_at: int
    age: float


class Verdict(NamedTuple):
    """What follows for a message from its number within its key."""

    stale: bool = False
    """A later number is applied already: it is skipped."""
    late: str = ""
    """Why it is given up: the number before it did not come in time."""


PASS = Verdict()
Kept = tuple[ClaimedRow, Verdict]

UNKNOWN_SECONDS = 1.0
"""For how long a number waits whose subscription is not known: a failover lost it, and others will tell it again."""


def in_sequence(
    rows: Sequence[ClaimedRow],
    applied: Mapping[int, int],
    gaps: Mapping[int, float],
    rests: Mapping[int, Sequence[Rest]] | None = None,
) -> tuple[list[Kept], dict[int, float | None]]:
    """Let a number pass when the one before it is applied or in this claim; else hold it until its deadline.

    `applied` is how far the key of each numbered row has come, `rests` when its subscription was paused. Returns what
    is kept, and for how many seconds the others are held (None: for as long as the one that they wait behind).
    """
    following: dict[tuple[int | None, str | None], int] = {}
    waiting: set[tuple[int | None, str | None]] = set()
    kept: list[Kept] = []
    held: dict[int, float | None] = {}
    for row in sorted(rows, key=lambda row: (row.place, row.seq)):
        key, number = (row.key_hash, row.key), row.sequence  # by hash and name: two keys may have one hash
        if key in waiting:  # behind one that is held, everything of its key waits
            held[row.seq] = None
            continue
        if number is None:
            kept.append((row, PASS))
            continue
        wanted = following.setdefault(key, applied[row.seq] + 1)
        if number <= wanted:
            following[key] = max(wanted, number + 1)
            kept.append((row, Verdict(stale=number < wanted)))
            continue
        gap = gaps.get(row.subscription)
        age = row.age - rested(row.age, rests.get(row.subscription, ())) if rests else row.age
        left = UNKNOWN_SECONDS if gap is None else gap - age
        if left <= 0:
            kept.append((row, Verdict(late=f"waited for number {wanted} of its key, which did not come in time")))
            following[key] = number + 1
            continue
        waiting.add(key)
        held[row.seq] = left
    return kept, held


class Claimed(NamedTuple):
    """What a claim has brought."""

    kept: Sequence[tuple[ClaimedRow, Verdict]]
    """The messages that are claimed now, each at the head of its key but for others of this claim."""
    found: int = 0
    """How many rows were found, whatever became of them."""
    subscriptions: frozenset[int] = frozenset()
    """Whose messages those were."""
    parked: bool = False
    """Some wait from now on behind earlier messages of their keys."""
    unplaced: bool = False
    """Some wait for a message that came before them and is not fanned out yet."""
    stepped_back: frozenset[int] = frozenset()
    """Keys of rows that stay due because a later message of the key is claimed elsewhere."""


class ClaimMoves(Protocol):
    """How workers find and take messages."""

    def first_due(self, subscriptions: Sequence[int], /) -> Flow[set[int]]:
        """The subscriptions, of these, of the first messages that may be claimed now."""

    def fair_share(self, claim: Claim, /) -> Flow[int]:
        """How many of the messages that a claim could take each lane of all processes would have."""

    def keys_in_front(self, claim: Claim, /) -> Flow[set[int]]:
        """The keys of rows that a claim looked at in vain because others hold them."""

    def isolation_level(self, subscriptions: Sequence[int], destination: str | None, /) -> Flow[int]:
        """The highest level of the isolated messages that may be claimed now; 0 where there are none."""

    def awaiting(self, destinations: Sequence[str], /) -> Flow[list[str]]:
        """Which destinations have a message that may be published now."""

    def handled_elsewhere(self, lines: Sequence[str], /) -> Flow[set[str]]:
        """Which handlers (lines of consumer, type and version) some live worker has."""

    def body_of(self, seq: int, seconds: float, /) -> Flow[bytes]:
        """The body of a message that was too large to come with its claim; empty where the message is gone."""

    def claim(self, claim: Claim, /) -> Flow[Claimed]:
        """Claim due messages that are at the head of their keys."""

    def still_claimed(self, worker: int, tokens: Collection[int], /) -> Flow[set[int]]:
        """The messages that still carry one of these claims."""

    def unclaim(self, worker: int, token: int, seqs: Sequence[int], /) -> Flow[None]:
        """Give messages of a claim back, uncharged."""

    def unclaim_tokens(self, worker: int, tokens: Sequence[int], /) -> Flow[None]:
        """Give back whatever carries one of these claims, uncharged."""
