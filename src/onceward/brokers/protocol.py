"""What a broker must do: a source delivers messages and settles each of them once, a sink publishes messages.

`open_source` and `open_sink` find a broker by the scheme of a URL. Brokers are entry points of the group
`onceward.brokers`, ours and those of other packages alike: the name is a scheme, the object a `Broker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from onceward.domain.plugins import found, package, scheme
from onceward.errors import ConfigurationError
from onceward.message import Message

GROUP = "onceward.brokers"


class BrokerUnavailable(Exception):
    """The broker cannot be reached or has forgotten us: close, wait, open again."""


@contextmanager
def unavailable(*troubles: type[Exception]) -> Iterator[None]:
    """Raise `BrokerUnavailable` for errors of a source's client; those of the network are always included."""
    caught: tuple[type[Exception], ...] = (*troubles, OSError)
    try:
        yield
    except caught as trouble:
        raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble


@contextmanager
def unconfirmed(where: str, *troubles: type[Exception]) -> Iterator[None]:
    """Raise `ConnectionError` for errors of a sink's client; those of the network are always included."""
    caught: tuple[type[Exception], ...] = (*troubles, OSError)
    try:
        yield
    except caught as trouble:
        raise ConnectionError(f"{where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery of a broker, not yet interpreted."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    handle: Any
    """What the broker wants back when the delivery is settled. Never an identity: it may change with each delivery."""
    position: str
    """Its place in the broker, the same for every delivery of it: an identity only where the user says so. In a broker
    without places, a digest of everything it carries."""
    id: str | None = None
    """What the producer called it, where the transport has a place for that."""
    type: str | None = None
    place: int | None = None
    """Where it comes inside its key; None where that is the order of arrival."""
    part: str | None = None
    """Which part of the source it was read from, where that is read in order by one reader at a time;"""
    behind: str | None = None
    """then the position behind it, from where on the part would be read next."""


class Source(Protocol):
    """A queue, stream or topic of a broker that is read.

    Obligations: after `open`, everything that was delivered before and not acknowledged comes again, at the latest
    after `redelivery`. `ack` is called only when a delivery is committed, `nack` when it is not; each delivery gets one
    of them, unless the connection is lost. Every error of the broker is raised as `BrokerUnavailable`.
    """

    name: str
    """For the log: where it reads, without credentials."""
    redelivery: timedelta
    """How late the broker may deliver again what it has delivered."""
    positions: bool
    """Whether each message has a place in the broker that no other message has."""

    async def open(self) -> None:
        """Connect, and make what is needed for reading."""

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        """Return at most `limit` deliveries in the broker's order; an empty list when none came for this long."""

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        """They are committed: the broker may forget them."""

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        """They are not committed: the broker shall deliver them again."""

    async def close(self) -> None:
        """Disconnect; does nothing when not connected."""


class Shares(NamedTuple):
    """In how many parts a source is, and how many readers share them now."""

    parts: int
    readers: int


@runtime_checkable
class Positioned(Protocol):
    """A source whose parts are read in order, each by one reader at a time: it can be read again from a position on."""

    def follow(self, positions: Callable[[], Mapping[str, str]]) -> None:
        """Ask these before a part is read: where the database is. The lower of the database and the broker counts.

        Called before `open`; blocks, and raises `BrokerUnavailable` while the database is away.
        """

    async def rewind(self, positions: Mapping[str, str | None]) -> None:
        """The database is here with these parts: go back to there (None: to the beginning) where we are further."""

    def reaches_back(self) -> timedelta | None:
        """For how long the broker keeps what was read; None: for ever. Blocks; raises `BrokerUnavailable`."""


@runtime_checkable
class Shared(Protocol):
    """A source in parts, each of which has one reader at a time: more readers than parts are idle."""

    def shares(self) -> Shares:
        """Asked without reading, beside the readers; blocks, and raises `BrokerUnavailable`."""


class Sink(Protocol):
    """A destination of outgoing messages.

    Obligations: return only when the other side has confirmed; publish under `message.id`, which is the same on every
    attempt; raise `Reject` for what can never be published, `Retry(after=...)` where the other side named a time, and
    anything else for what may work later. May be called from several threads. May be `async def`.
    """

    def publish(self, message: Message) -> Awaitable[None] | None:
        """Publish one message."""


class Closable(Sink, Protocol):
    """A sink that holds connections."""

    def close(self) -> None:
        """Disconnect; does nothing when not connected."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Both directions of a broker, each made from a URL; None where it has only one."""

    source: Callable[[str], Source] | None = None
    sink: Callable[[str], Closable] | None = None


def open_source(url: str) -> Source:
    """Return the source behind a URL."""
    made = _broker(url).source
    if made is None:
        raise ConfigurationError(f"{scheme(url)!r} URLs cannot be read from, only published to: use add_sink()")
    return made(url)


def open_sink(url: str) -> Closable:
    """Return the sink behind a broker's URL."""
    made = _broker(url).sink
    if made is None:
        raise ConfigurationError(f"{scheme(url)!r} URLs cannot be published to, only read from: use add_source()")
    return made(url)


def _broker(url: str) -> Broker:
    """The broker behind a URL; its client is loaded now."""
    entry = found(GROUP, "broker", url)
    broker = entry.load()
    if not isinstance(broker, Broker):
        raise ConfigurationError(f"{entry.value} of {package(entry)} must be an onceward.brokers.protocol.Broker")
    return broker
