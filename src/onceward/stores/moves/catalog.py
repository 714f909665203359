"""The catalog: names, subscriptions and sources, and the version by which receivers notice that it has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypedDict

from onceward.domain.pauses import PauseKind, PauseRow
from onceward.flow import Flow
from onceward.registry import Subscription


class CatalogRows(NamedTuple):
    """The catalog as it was read."""

    version: int
    since_crash: float
    """Seconds since a process that works inline has died."""
    names: Mapping[int, str]
    subscriptions: Sequence[Subscription]
    unhandled: Sequence[Unhandled]
    pauses: Sequence[PauseRow] = ()
    """Those of now, and those of before that are remembered."""
    now: int = 0
    """When it was read, in microseconds by the clock of the store; only needed where there are pauses."""


class Unhandled(NamedTuple):
    """A type of which messages wait to be fanned out."""

    type: str
    subscription: int | None
    """Whose key function is wanted; None where no consumer had subscribed."""


class NewSubscription(TypedDict):
    """A type that a consumer wants, and how its keys are found."""

    consumer: int
    type: str
    key_path: str | None
    key_function: bool
    sequence: str | None
    on_dead: str
    aggregate: str | None


class Holder(NamedTuple):
    """A transaction of a caller's that keeps the catalog as it is."""

    pid: int
    name: str
    age: float


class Subscribed(NamedTuple):
    """A type that a consumer is subscribed to, or was."""

    type: str
    unfinished: int
    """Its messages that are not finished, whatever their state."""
    retired: bool
    id: int


class CatalogMoves(Protocol):
    """Who wants what."""

    def load_catalog(self) -> Flow[CatalogRows]:
        """Read names, subscriptions, and which types wait to be fanned out."""

    def catalog_version(self) -> Flow[int]:
        """Read the version alone."""

    def names(self) -> Flow[Mapping[int, str]]:
        """Read the names alone."""

    def add_names(self, names: Sequence[str], /) -> Flow[None]:
        """Give consumers and sources their numbers; a name that has one keeps it."""

    def hold_catalog(self) -> Flow[bool]:
        """In a caller's transaction: who wants what stays as it is until that ends.

        Returns whether the transaction keeps to a view of its own, which may be older than the catalog.
        """

    def subscribe(self, subscriptions: Sequence[NewSubscription], wait: float, /) -> Flow[bool]:
        """Write subscriptions, and a new version; False where callers' transactions held the catalog for so long."""

    def holders(self) -> Flow[list[Holder]]:
        """The transactions that hold the catalog."""

    def subscribed(self, consumer: str, type: str | None, /) -> Flow[list[Subscribed]]:  # noqa: A002 - the usual word
        """What a consumer is or was subscribed to."""

    def retire(self, retire: Retire, /) -> Flow[Retired | None]:
        """End subscriptions of a consumer; None where callers' transactions hold the catalog."""

    def unfinished_of(self, subscriptions: Sequence[int], after: int, limit: int, /) -> Flow[list[int]]:
        """The next messages of subscriptions that are not finished, in order."""

    def declare_sources(self, windows: Mapping[str, float], /) -> Flow[dict[str, float]]:
        """Write for how many seconds sources may redeliver; returns the sources that may do so longest."""

    def pause(self, order: PauseOrder, /) -> Flow[bool]:
        """Write that something is paused, and a new version; False where it is paused already."""

    def resume(self, order: PauseOrder, /) -> Flow[bool]:
        """End a pause, with a new version; False where there is none. Those that ended long ago are forgotten."""

    def record_use(self, consumer: str, type: str, /, *, apart: bool) -> Flow[None]:  # noqa: A002
        """Write whether a handler has its effects elsewhere than in its transaction."""


class PauseOrder(NamedTuple):
    """What an operator wants paused, or to go on."""

    kind: PauseKind
    name: str
    """Empty for everything."""
    actor: str
    reason: str

    @property
    def line(self) -> str:
        """What the audit says."""
        what = self.kind if self.kind == "everything" else f"{self.kind} {self.name}"
        return f"{what}. {self.reason}".strip()


class Retire(NamedTuple):
    """End the subscriptions of a consumer."""

    consumer: str
    type: str | None
    """One of them; None for all."""
    discard_unfinished: bool
    wait: float
    actor: str
    reason: str


class Retired(NamedTuple):
    """What was ended."""

    subscriptions: Sequence[int]
    unfinished: int
    """Their unfinished messages. Where those were not to be discarded, nothing was ended."""
