"""The way of a webhook, without a server: admit, authenticate, store, respond. ASGI, WSGI and Django drive it.

Invariant: nothing is written before the signature has been verified over the bytes that came, and no 2xx is answered
before the database has committed (or was found to have). Answers hold no secret, no payload, and for a bad signature
no reason.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from onceward.domain import checks, identity
from onceward.domain.rate_limit import RateLimit
from onceward.errors import ConfigurationError, OncewardError, StoreError
from onceward.message import Delivery, Receipt
from onceward.webhooks.naming import named
from onceward.webhooks.request import Ambiguous, Headers, Refusal, Request, TryLater

if TYPE_CHECKING:
    from onceward.webhooks.verifier import Event, Verifier

log = logging.getLogger("onceward")

UNSIGNED = "onceward-unsigned"
"""The stored header that says which parts of an event its signature does not cover."""
KEPT = ("content-type", "user-agent", "traceparent", "tracestate", "correlation-id")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_LENGTH = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an unauthenticated request may cost before the signature is verified."""

    body: int = 1024 * 1024
    """Bytes of a body."""
    headers: int = 100
    header_bytes: int = 16 * 1024
    read: timedelta = timedelta(seconds=10)
    """How long sending the body may take."""
    store: timedelta = timedelta(seconds=5)
    """How long storing may take before the sender gets 503 and sends again."""
    memory: int = 64 * 1024 * 1024
    """Bytes of all bodies in hand; beyond it, the next request gets 503."""
    rate: float | None = None
    """Requests a second that an endpoint looks at, in this process, authentic or not; the others get 429."""

    def __post_init__(self) -> None:
        for name in ("body", "headers", "header_bytes"):
            checks.whole("Limits", name, getattr(self, name))
        for name in ("read", "store"):
            checks.duration("Limits", name, getattr(self, name))
        checks.whole("Limits", "memory", self.memory, least=self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the sender gets."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: HTTPStatus, content: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """A JSON answer."""
        return cls(
            status, json.dumps(content).encode(), {**_SAFE, "content-type": "application/json", **(headers or {})}
        )

    @classmethod
    def text(cls, text: str) -> Answer:
        """A plain one."""
        return cls(HTTPStatus.OK, text.encode(), {**_SAFE, "content-type": "text/plain; charset=us-ascii"})


_SAFE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Receiver(Protocol):
    """What an inbox is to its webhooks."""

    def receive(self, delivery: Delivery) -> Receipt:
        """Store a delivery; returns when it is committed."""


class Hooks:
    """The endpoints of an inbox, by path."""

    def __init__(
        self,
        receiver: Receiver,
        endpoints: Mapping[str, Verifier],
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        example = "a mapping of paths to verifiers, for example {'/stripe': Stripe(secret)}"
        checks.instance("webhooks()", "endpoints", endpoints, Mapping, example)  # type: ignore[type-abstract] # only asked for
        if not endpoints:
            raise ConfigurationError("webhooks() needs at least one endpoint: {'/stripe': Stripe(secret)}")
        for path, verifier in endpoints.items():
            if not _PATH.fullmatch(path):
                raise ConfigurationError(f"webhook path {path!r} must be of the form /stripe or /hooks/stripe")
            if not hasattr(verifier, "verify"):
                kind = type(verifier).__name__  # not its value, which is likely to be a secret
                raise ConfigurationError(
                    f"webhooks(): the endpoint {path!r} must be a verifier, for example Stripe(secret), not {kind}"
                )
            identity.check_name("source", verifier.source)
        self._receiver, self._endpoints, self._clock = receiver, dict(endpoints), clock
        self.limits = limits or Limits()
        rate = self.limits.rate
        self._rate_limits = {} if rate is None else {path: RateLimit(rate) for path in endpoints}

    @property
    def endpoints(self) -> Mapping[str, Verifier]:
        """The verifiers by path."""
        return self._endpoints

    def admit(self, method: str, path: str, headers: Headers, *, count: int, size: int) -> Verifier:
        """Look at everything but the body; `count` and `size` are of the headers."""
        verifier = self._endpoints.get(path)
        if verifier is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no webhook here")
        if method != "POST":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "webhooks are sent with POST", headers={"allow": "POST"})
        rate_limit = self._rate_limits.get(path)
        if rate_limit is not None and not rate_limit.take():
            after = {"retry-after": str(math.ceil(rate_limit.seconds_left))}
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many requests; send this again later", headers=after)
        if count > self.limits.headers or size > self.limits.header_bytes:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "there are too many or too large headers")
        if "content-encoding" in headers:
            headers_back = {"accept-encoding": "identity"}
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body uncompressed", headers=headers_back)
        if not _is_json(headers.get("content-type")):
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json in UTF-8")
        self.announced(headers)
        return verifier

    def announced(self, headers: Headers) -> int | None:
        """The length that the headers announce; None where they do not."""
        if "content-length" not in headers:
            return None
        if "transfer-encoding" in headers:
            raise Ambiguous
        length = headers.get("content-length")
        if length is None or not _LENGTH.fullmatch(length):
            raise Refusal(HTTPStatus.BAD_REQUEST, "content-length is not a number")
        if int(length) > self.limits.body:
            raise self.too_large()
        return int(length)

    def too_large(self) -> Refusal:
        """The response to a body beyond the limit."""
        return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self.limits.body} bytes")

    def authenticate(self, verifier: Verifier, request: Request) -> Event:
        """Verify the signature; nothing of the body is read before."""
        return verifier.verify(request, self._clock())

    def store(self, verifier: Verifier, event: Event, request: Request) -> Answer:
        """Store an authentic event, and return the response when that is committed."""
        if event.challenge is not None:
            return Answer.text(event.challenge)
        names = named(event, request.body)
        if names.reason:
            log.warning("webhook of %s: stored as %s %s: %s", verifier.source, names.type, names.id, names.reason)
        try:
            delivery = Delivery.of(
                source=verifier.source,
                id=names.id,
                type=names.type,
                body=request.body,
                headers=_kept_headers(verifier, event, request, names.reason),
                echo_window=verifier.redelivery.total_seconds() if "id" in event.unsigned else None,
            )
            receipt = self._receiver.receive(delivery)
        except StoreError as error:
            raise TryLater("the database is away", reason=f"{type(error).__name__}: {error}") from error
        except OncewardError as error:  # set up wrongly, by us: nothing is wrong with the event
            raise TryLater("the receiver is not ready", reason=str(error), seconds=30) from error
        log.debug("webhook of %s, signed with %s: %s as %d", verifier.source, event.signer, receipt.status, receipt.seq)
        if receipt.status == "mismatch":
            log.warning(
                "webhook of %s: %s %s (message #%d) came again with other bytes or another type, and is in quarantine",
                verifier.source,
                names.type,
                names.id,
                receipt.seq,
            )
        return Answer.of(HTTPStatus.OK, {"status": receipt.status})

    def refused(self, refusal: Refusal, source: str = "") -> Answer:
        """The response to a request that was refused."""
        level = logging.WARNING if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR else logging.INFO
        log.log(level, "webhook%s refused with %d: %s", f" of {source}" if source else "", refusal.status, refusal)
        return Answer.of(refusal.status, {"error": refusal.text}, refusal.headers)

    def failed(self, error: Exception) -> Answer:
        """The response after an unexpected error. The log has where, and not the text, which may quote the request."""
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("a webhook could not be stored, unexpected error: %s\n%s", type(error).__name__, where)
        return Answer.of(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the receiver failed"}, {"retry-after": "60"})


def check_sources(endpoints: Iterable[tuple[str, Verifier]]) -> None:
    """Refuse two senders under one source: an event id of one would be taken for the other's."""
    known: dict[str, tuple[str, Verifier]] = {}
    for path, verifier in endpoints:
        other, first = known.setdefault(verifier.source, (path, verifier))
        if first.signers != verifier.signers:
            raise ConfigurationError(
                f"webhooks {other!r} and {path!r} have different secrets and the same source {verifier.source!r}: an "
                "event of one sender could be taken for a copy of the other's. Give one of them a source of its own, "
                f"for example source={verifier.source + '-2'!r}"
            )


def _kept_headers(verifier: Verifier, event: Event, request: Request, reason: str) -> dict[str, str]:
    """The headers that are stored: a short list, so that no credential ever is."""
    kept = {name: value for name in (*KEPT, *verifier.keeps) if (value := request.headers.get(name)) is not None}
    if event.unsigned:
        kept[UNSIGNED] = ",".join(event.unsigned)
    if reason:
        kept[identity.REASON] = reason
    return kept


def _is_json(content_type: str | None) -> bool:
    """Whether a content type is JSON in UTF-8: what every one of these senders sends."""
    if content_type is None:
        return False
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    charsets = [value.strip('"') for name, _, value in (one.partition("=") for one in parameters) if name == "charset"]
    return is_json and all(charset in ("utf-8", "utf8") for charset in charsets)
