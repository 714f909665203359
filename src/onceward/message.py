"""The values that travel: `Delivery` (what came in), `Message` (what a handler sees), `Receipt` (what became of it).

All are frozen. A `Message` carries no transport and no connection, so nothing a handler does to it can acknowledge,
lose or repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Required, TypedDict, TypeGuard

from onceward.domain import checks, identity, payload
from onceward.domain.reference import HEADER, Reference
from onceward.domain.schedule import AT_ONCE, Due, due_of
from onceward.errors import ContractViolation, InvalidMessage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Data = TypeVar("Data", covariant=True, default=Any)  # noqa: PLC0105 - it is the data
else:
    from typing import TypeVar

    Data = TypeVar("Data", covariant=True)  # noqa: PLC0105 - as above

DEFAULT = "default"
"""The destination of outgoing messages that name none; naming it is the same."""
_EPOCH = datetime.fromtimestamp(0, UTC)
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NOT_SHOWN = {"body", "headers", "outbox", "effects"}


class Arguments(TypedDict, total=False):
    """The arguments of `receive` and `process`. `data` is JSON-able, `body` is raw bytes: one of them."""

    source: Required[str]
    id: Required[str]
    type: Required[str]
    data: Any
    body: bytes | None
    headers: Mapping[str, str] | None
    key: Any
    version: int
    position: int | None
    at: datetime | None
    delay: timedelta | float | None


class SendArguments(TypedDict, total=False):
    """The arguments of `inbox.send` beside type and data."""

    body: bytes | None
    key: Any
    to: str | None
    headers: Mapping[str, str] | None
    version: int
    id: str
    at: datetime | None
    delay: timedelta | float | None


class Delivery(NamedTuple):
    """One arrival of a message, checked and ready to be stored."""

    source: str
    id: str
    type: str
    version: int
    key: str | None
    headers: Mapping[str, str]
    body: bytes
    hash: bytes
    position: int | None = None
    """Its place in the source (an offset): orders inside a key where given."""
    destination: str | None = None
    """Where an outgoing message goes: the name of a sink."""
    cause: int | None = None
    """The number of the message whose handler sent this one."""
    blob: Reference | None = None
    """Where the body was offloaded to, if it was too large for a row; the delivery has it all the same."""
    echo_window: float | None = None
    """Where its id is not signed: for how many seconds the first id of a body is remembered."""
    due: Due = AT_ONCE
    """When it may run, where that is not at once."""

    @property
    def type_hash(self) -> int:
        """What the ledger remembers of its type and version."""
        return identity.type_hash(self.type, self.version)

    @classmethod
    def of(  # noqa: PLR0913 - the fields of a message are what they are
        cls,
        *,
        source: str,
        id: str,  # noqa: A002 - the word every sender uses
        type: str,  # noqa: A002
        data: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: Any = None,
        version: int | None = None,
        position: int | None = None,
        destination: str | None = None,
        cause: int | None = None,
        echo_window: float | None = None,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> Delivery:
        """Check what a caller passed; everything wrong is an error here, before anything is stored."""
        if body is not None and data is not None:
            raise InvalidMessage("pass data= or body=, not both")
        if body is not None and not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidMessage(f"body must be bytes, not {body.__class__.__name__}; use data= for JSON")
        if version is None:
            version = getattr(data, "__message_version__", 1)
        if not _is_version(version):
            raise InvalidMessage(f"version must be a whole number from 0, not {version!r}")
        if position is not None and not _is_number(position):
            raise InvalidMessage(f"position must be a whole number, not {position!r}")
        due = AT_ONCE if at is None and delay is None else due_of(at, delay)
        if position is not None and due != AT_ONCE:
            raise InvalidMessage(
                "pass position= or a time (at=, delay=), not both: each sets the place of the message in its key"
            )
        checked = _checked_headers(headers)
        raw = payload.encode(data) if body is None else bytes(body)
        return cls(
            source=identity.check_name("source", source),
            id=identity.check_id(id),
            type=identity.check_name("type", type),
            version=version,
            key=identity.key_text(key),
            headers=checked,
            body=raw,
            hash=identity.body_hash(raw),
            position=position,
            destination=None if destination in (None, DEFAULT) else identity.check_name("to", destination),
            cause=cause,
            echo_window=echo_window,
            due=due,
        )


_NEEDED = {
    "source": "the name of the producer",
    "id": "the producer's message id",
    "type": "what kind of message it is, for example 'order.paid'",
}
_ARGUMENTS = (*Arguments.__annotations__, "tx")
_ACCEPTED = frozenset(Arguments.__annotations__)


def delivery_of(call: str, arguments: Mapping[str, Any]) -> Delivery:
    """What a caller of `receive` or `process` passed, as a delivery."""
    if arguments.keys() <= _ACCEPTED:  # a set's own comparison: every message comes along here
        try:
            return Delivery.of(**arguments)
        except TypeError:
            if arguments.keys() >= _NEEDED.keys():
                raise
    checks.message(f"{call}()", arguments, _NEEDED, _ARGUMENTS)
    raise AssertionError("unreachable")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_version(version: Any) -> TypeGuard[int]:
    return _is_number(version) and 0 <= version < 2**31


def _checked_headers(headers: Mapping[Any, Any] | None) -> Mapping[str, str]:
    if not headers:
        return NO_HEADERS
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of text to text, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"header {name!r:.80} must be text with a text value, not {type(value).__name__}")
        if name.lower() == HEADER:
            raise InvalidMessage(f"the header {name!r} is onceward's own: it would refer to another message's body")
    return MappingProxyType(dict(headers))


def check_destination(where: str, to: Any, outlets: Collection[str]) -> None:
    """Refuse a destination that this process does not have among its own; without any, another process relays."""
    if outlets and (to is None or isinstance(to, str)) and (to or DEFAULT) not in outlets:
        checks.refuse(where, "to", to, f"one of the sinks of this process: {', '.join(map(repr, sorted(outlets)))}")


class Outgoing:
    """What a handler leaves to its commit while it runs, messages and calls; forgotten when it fails."""

    __slots__ = ("_open", "_outlets", "_source", "calls", "deliveries")

    def __init__(self, source: str, outlets: Collection[str] = ()) -> None:
        self._source, self._outlets, self._open = source, outlets, False
        self.deliveries: list[Delivery] = []
        """Written in its transaction."""
        self.calls: list[Callable[[], Any]] = []
        """Made after its commit."""

    def begin(self) -> None:
        """An attempt starts, with nothing sent yet."""
        self.deliveries, self.calls, self._open = [], [], True

    def end(self) -> None:
        """The handler has ended; whatever calls `send` now is too late."""
        self._open = False

    def check_open(self, what: str) -> None:
        """Refuse what comes when the handler has ended."""
        if not self._open:
            raise ContractViolation(f"message.{what}() was called outside of its handler; its transaction is over")

    def add(self, **fields: Any) -> str:
        """Check an outgoing message and keep it for the commit; returns its id."""
        self.check_open("send")
        check_destination("message.send()", fields.get("destination"), self._outlets)
        self.deliveries.append(Delivery.of(source=self._source, **fields))
        return self.deliveries[-1].id


class Message(NamedTuple, Generic[Data]):
    """A message as a handler sees it. With `Message[OrderPaid]` as its annotation, `message.data` is an `OrderPaid`."""

    id: str
    source: str
    type: str
    version: int
    data: Data
    body: bytes
    headers: Mapping[str, str]
    key: str | None
    seq: int
    attempt: int
    received_at: datetime
    consumer: str
    to: str | None = None
    """Where it goes, for a message that a sink publishes."""
    outbox: Outgoing | None = None
    effects: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._asdict().items() if name not in _NOT_SHOWN)
        return f"Message({', '.join(shown)})"

    def send(  # noqa: PLR0913 - the fields of a message
        self,
        type: str,  # noqa: A002 - the word every sender uses
        data: Any = None,
        *,
        body: bytes | None = None,
        key: Any = None,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        version: int | None = None,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
    ) -> str:
        """Send a message in this handler's transaction: it goes out if, and only if, that is committed.

        The relay publishes it afterwards, at least once, in order per `key`, always with the id that this returns.
        With `at` or `delay` it is published then, and comes into the order of its key then. Correlation, causation and
        trace context of the incoming message go along.
        """
        if self.outbox is None:
            raise ContractViolation("message.send() works inside a handler; elsewhere use inbox.send()")
        return self.outbox.add(
            id=self.idempotency_key(f"send {len(self.outbox.deliveries)}"),
            type=type,
            data=data,
            body=body,
            key=key,
            version=version,
            destination=to,
            cause=self.seq,
            at=at,
            delay=delay,
            headers={**passed_on(self.id, self.headers), **(headers or {})},
        )

    def once(self, name: str, call: Callable[[], Any], *, idempotent: bool | timedelta = False) -> Any:
        """Make an external call once: its intent is recorded before, its result after, and a retry gets the record.

        Where an attempt died in between, whether the call happened is unknown. With `idempotent=True` (the other side
        honours `message.idempotency_key(name)`) it is made again, up to a day after it was begun, or for as long as
        a `timedelta` states that the other side remembers keys; else the message is dead until an operator records what
        happened. Raise `Retry` inside `call` to say that it did not happen. In an `async def` handler, await it.
        """
        if self.effects is None:
            raise ContractViolation("message.once() works inside a handler")
        if not callable(call):  # not tried again: the call was made where it was written, and would be each time
            raise ContractViolation(
                f"message.once({name!r}): call must be a function without arguments, not {type(call).__name__}; write "
                f"message.once({name!r}, lambda: charge(...)), or the call is made each time"
            )
        return self.effects(self, name, call, idempotent)

    def after_commit(self, call: Callable[[], Any]) -> None:
        """Make a call once this attempt is committed, at most once: for what may be lost, such as clearing a cache.

        It is not made when the attempt is rolled back, and not when the process dies right after the commit; what it
        raises is logged and changes nothing. It runs in the worker's thread (`async def` handlers: on the event loop,
        awaited), before the next message. What must happen goes through `message.send` or `message.once`.
        """
        if self.outbox is None:
            raise ContractViolation("message.after_commit() works inside a handler")
        if not callable(call):
            raise ContractViolation(
                f"message.after_commit(): call must be a function without arguments, not {type(call).__name__}; write "
                "message.after_commit(lambda: cache.delete(...)), or the call is made at once"
            )
        self.outbox.check_open("after_commit")
        self.outbox.calls.append(call)

    def idempotency_key(self, name: str) -> str:
        """A key for an external call, the same on every retry of this message: `message.idempotency_key("charge")`.

        Pass it to the other side (`Idempotency-Key: ...`), so that a repeated attempt does not repeat the call.
        """
        return identity.effect_key(self.consumer, self.source, self.id, name)


class Failure(NamedTuple):
    """Why a message is not done."""

    kind: str
    """The name of the exception's class."""
    text: str
    final: bool = False
    """The message is dead: it is not tried again by itself."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a delivery. Returned only after its commit (but `pending`), or its spool is on the disk."""

    status: Literal["accepted", "duplicate", "mismatch", "spooled"]
    """`accepted`: new. `duplicate`: known, nothing done.

    `mismatch`: a known id with other bytes, or under another type or version; it is in quarantine.

    `spooled`: the database is away; it is safe on this host's disk, and whether it is new will be seen later.
    """
    seq: int
    """The sequence number of the message (of the first copy, for a duplicate); 0 where there is none yet."""
    finished: bool = False
    """The handler's effects are committed."""
    result: Any = None
    """What the handler returned, for a message that is finished."""
    error: Failure | None = None
    """What the handler raised in this call of `process`; the message is stored all the same."""
    pending: bool = False
    """With `tx=`: all of this is so when, and if, your transaction is committed."""

    @property
    def outcome(self) -> Literal["done", "queued", "retrying", "dead", "duplicate", "mismatch", "spooled"]:
        """`status`, and for a message that was new what became of it.

        `done`: the handler's effects are committed. `queued`: a worker runs it. `retrying`: the handler raised, a
        worker tries again. `dead`: the handler raised and the message is not tried again by itself.
        """
        if self.status != "accepted":
            return self.status
        if self.finished:
            return "done"
        if self.error is None:
            return "queued"
        return "dead" if self.error.final else "retrying"


def passed_on(message_id: str, headers: Mapping[str, str]) -> dict[str, str]:
    """What an outgoing message inherits: who started it all, what caused it, and the trace."""
    known = {name.lower(): value for name, value in headers.items()}
    passed = {"correlation-id": known.get("correlation-id", message_id), "causation-id": message_id}
    for name in ("traceparent", "tracestate"):
        if name in known:
            passed[name] = known[name]
    return passed


def moment(stored: int) -> datetime:
    """A time as stored (microseconds since 1970, UTC) as a datetime."""
    return _EPOCH + timedelta(microseconds=stored)


def microseconds(time: datetime) -> int:
    """A datetime as it is stored; one without a zone is local time."""
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
