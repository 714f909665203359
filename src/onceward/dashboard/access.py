"""Who may do what: people, roles, sessions, and whether a request comes from our own pages.

Invariants: secrets are compared in constant time; a session is a signed cookie that expires, and that signing out or a
change of the credentials ends in every process; a state-changing request is a POST from the same origin with the token
of its session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from onceward.dashboard.throttle import Throttle
from onceward.errors import ConfigurationError

log = logging.getLogger("onceward")

Role = Literal["viewer", "reader", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "reader", "operator")
"""Each may do what the ones before it may: see what is going on; see payloads too, and what may quote them (keys, texts
of errors, tracebacks); change things too."""

COOKIE = "onceward_session"
SESSION_SECONDS = 12 * 3600
SHORTEST_SECRET = 16
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Person:
    """An operator who looks or acts; the name goes into the audit."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the role is theirs or below theirs."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Credential:
    """A person and the secret that proves who it is."""

    name: str
    role: Role
    secret: str

    def __repr__(self) -> str:
        return f"Credential(name={self.name!r}, role={self.role!r}, secret=...)"

    @classmethod
    def parse(cls, text: str) -> list[Credential]:
        """Credentials as lines of NAME ROLE SECRET; empty lines and those that begin with # are nothing."""
        found = []
        for line in text.splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 3:  # noqa: PLR2004 - as the message says
                raise ConfigurationError("a credential is a line of three words: NAME ROLE SECRET")
            name, role, secret = words
            found.append(cls(name, _role(role), secret))
        return found


def _role(word: str) -> Role:
    for role in ROLES:
        if word == role:
            return role
    raise ConfigurationError(f"there is no role {word!r}; roles are {', '.join(ROLES)}")


Identify = Callable[[Request], Person | Awaitable[Person | None] | None]
"""Who sends a request, as the application around knows; a plain function (called in a thread) or an `async def`."""
HasEnded = Callable[[str], bool]
"""Whether a session was signed out of."""


class Access:
    """The people of one dashboard."""

    def __init__(  # noqa: PLR0913 - who they are, and how they come
        self,
        credentials: Sequence[Credential],
        *,
        anonymous: Role | None,
        has_ended: HasEnded,
        identify: Identify | None = None,
        secret: str = "",
        behind_proxy: bool = False,
    ) -> None:
        if not credentials and anonymous is None and identify is None:
            raise ConfigurationError(
                "no way to sign in: pass credentials=, or identify= for people your application knows, "
                'or anonymous="viewer" where all who reach it may look'
            )
        if anonymous == "operator":
            raise ConfigurationError("changing things needs a credential; anonymous= is viewer or reader")
        for one in credentials:
            if len(one.secret) < SHORTEST_SECRET:
                raise ConfigurationError(f"the secret of {one.name} has less than {SHORTEST_SECRET} characters")
        if len({one.name for one in credentials}) != len(credentials):
            raise ConfigurationError("two credentials have the same name")
        self._credentials = {one.name: one for one in credentials}
        self._anonymous, self._identify = anonymous, identify
        self._has_ended, self._behind_proxy = has_ended, behind_proxy
        # Made of the credentials: the same in every process, and another as soon as one of them changes.
        people = sorted((one.name, one.role, one.secret) for one in credentials)
        material = repr((secret, people)) if secret or people else secrets.token_hex()
        self._key = hashlib.sha256(f"onceward dashboard {material}".encode()).digest()
        self._throttle = Throttle()

    @property
    def can_sign_in(self) -> bool:
        """Whether there is a name to sign in with."""
        return bool(self._credentials)

    async def person(self, request: Request) -> Person | None:
        """Who sent a request; None where it may not be made. Asks the database whether a session has ended."""
        if self._identify is None:
            return await run_in_threadpool(self._known, request)
        if inspect.iscoroutinefunction(self._identify):
            found = await self._identify(request)
        else:
            found = await run_in_threadpool(self._identify, request)
        if found is not None and not (isinstance(found, Person) and found.role in ROLES):
            log.error("identify= returned %s instead of a Person or None: access to the dashboard is refused", found)
            return None
        return found

    def _known(self, request: Request) -> Person | None:
        known = self._in_session(request) or self._in_header(request)
        if known is not None:
            return known
        if self._anonymous is not None and _is_local_name(request):
            return Person("anonymous", self._anonymous)
        return None

    def sign_in(self, request: Request, name: str, secret: str) -> str | None:
        """The cookie of a new session; None where the secret is wrong or too many were. Says not which."""
        person = self._proven(request, name, secret)
        if person is None:
            return None
        content = f"{person.name}\n{int(time.time())}\n{secrets.token_hex(16)}".encode()
        return f"{_text(content)}.{self._signed('session', content)}"

    def session(self, request: Request) -> str | None:
        """The session that a request belongs to, by its own name; None where it has none that is valid."""
        found = self._session(request)
        return found[1] if found else None

    def token(self, request: Request, person: Person) -> str:
        """What a form of ours carries."""
        return self._signed("form", f"{person.name}\n{request.cookies.get(COOKIE, '')}".encode())

    def is_ours(self, request: Request, person: Person, token: str) -> bool:
        """Whether a request was made by a form of ours."""
        return same_origin(request) and hmac.compare_digest(token.encode(), self.token(request, person).encode())

    def _in_session(self, request: Request) -> Person | None:
        found = self._session(request)
        return None if found is None or self._has_ended(found[1]) else found[0]

    def _session(self, request: Request) -> tuple[Person, str] | None:
        """Whose session a cookie of ours is, and which, unless its time is over."""
        content, _, signature = request.cookies.get(COOKIE, "").partition(".")
        try:
            raw = base64.urlsafe_b64decode(content.encode())
        except ValueError:
            return None
        if not content or not hmac.compare_digest(signature.encode(), self._signed("session", raw).encode()):
            return None
        name, began, session = raw.decode().rsplit("\n", 2)
        known = self._credentials.get(name)
        if known is None or time.time() - int(began) > SESSION_SECONDS:
            return None
        return Person(known.name, known.role), session

    def _in_header(self, request: Request) -> Person | None:
        """For programs, such as Prometheus: HTTP basic authentication."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, _, secret = base64.b64decode(value.encode(), validate=True).decode().partition(":")
        except ValueError:
            return None
        return self._proven(request, name, secret)

    def _proven(self, request: Request, name: str, secret: str) -> Person | None:
        known, address = self._credentials.get(name), self._address(request)
        expected = known.secret if known else "no such person"
        is_right = hmac.compare_digest(_digest(secret), _digest(expected))
        # Unknown names are never right, so counting them would only fill the memory.
        if known is None or not self._throttle.may_try(address, name):
            return None
        if not is_right:
            self._throttle.failed(address, name)
            return None
        self._throttle.succeeded(address, name)
        return Person(known.name, known.role)

    def _address(self, request: Request) -> str:
        """Where a request comes from; a proxy of ours writes it behind what others have written."""
        forwarded = request.headers.getlist("x-forwarded-for") if self._behind_proxy else []
        if forwarded:
            return forwarded[-1].rpartition(",")[2].strip()
        return request.client.host if request.client else ""

    def _signed(self, purpose: str, content: bytes) -> str:
        return _text(hmac.digest(self._key, f"{purpose}:".encode() + content, "sha256"))


def same_origin(request: Request) -> bool:
    """Whether the browser says that a page of this very site sent the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    source = request.headers.get("origin") or request.headers.get("referer") or ""
    host = request.headers.get("host", "")
    return bool(host) and urlsplit(source).netloc == host


def _is_local_name(request: Request) -> bool:
    """Whether the address was written as this machine's own: a page elsewhere that points its name here is refused."""
    return (urlsplit(f"//{request.headers.get('host', '')}").hostname or "") in LOCAL_NAMES


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="backslashreplace")).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()
