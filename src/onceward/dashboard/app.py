"""The application: routes, who may use each, and the headers of every response.

Invariant: every route is in `ROUTES` with the role it needs; nothing else is reachable. A POST is refused before its
action runs unless it comes from our own page.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from onceward.dashboard import actions, asked, pages, shown, steering
from onceward.dashboard.access import COOKIE, SESSION_SECONDS, Access, Credential, Identify, Person, Role, same_origin
from onceward.dashboard.view import View
from onceward.dashboard.watch import Watch
from onceward.errors import ConfigurationError, OncewardError, StoreError
from onceward.inbox import Inbox
from onceward.runtime.runner import perform
from onceward.steps.sign_out import is_signed_out, sign_out

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("onceward")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

Page = Callable[[View], Awaitable[Response]]
Action = Callable[[View, Mapping[str, list[str]]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A page or an action, and the least role that may use it."""

    path: str
    role: Role
    page: Page | None = None
    action: Action | None = None


ROUTES = (
    Allowed("/", "viewer", page=pages.overview),
    Allowed("/types", "viewer", page=pages.types),
    Allowed("/messages", "viewer", page=pages.messages),
    Allowed("/messages/{seq}", "viewer", page=pages.message),
    Allowed("/messages/{seq}/payload", "reader", action=actions.payload),
    Allowed("/search", "viewer", page=pages.search),
    Allowed("/dead", "viewer", page=pages.dead),
    Allowed("/quarantine", "viewer", page=pages.quarantine),
    Allowed("/quarantine/{case}", "reader", page=pages.case),
    Allowed("/quarantine/{case}/payload", "reader", action=actions.case_payload),
    Allowed("/keys", "viewer", page=pages.keys),
    Allowed("/effects", "viewer", page=pages.effects),
    Allowed("/handlers", "viewer", page=pages.handlers),
    Allowed("/workers", "viewer", page=pages.workers),
    Allowed("/pauses", "viewer", page=pages.pauses),
    Allowed("/polls", "viewer", page=pages.polls),
    Allowed("/outbox", "viewer", page=pages.outbox),
    Allowed("/sources", "viewer", page=pages.sources),
    Allowed("/storage", "viewer", page=pages.storage),
    Allowed("/audit", "viewer", page=pages.audit),
    Allowed("/metrics", "viewer", page=pages.metrics),
    Allowed("/preview", "operator", page=actions.preview),
    Allowed("/act", "operator", action=actions.act),
    Allowed("/resolve", "operator", action=actions.resolve),
    Allowed("/settle", "operator", action=actions.settle),
    Allowed("/try", "operator", action=actions.dry_run),
    Allowed("/pause", "operator", action=steering.pause),
    Allowed("/resume", "operator", action=steering.resume),
    Allowed("/messages/{seq}/edit", "operator", action=steering.edit),
    Allowed("/unsubscribe", "operator", page=steering.unsubscription),
    Allowed("/unsubscribe", "operator", action=steering.unsubscribe),
)


ALL = Allowed("/", "viewer", page=pages.inboxes)
"""The page of all inboxes, where there are several."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
TAKEN = frozenset({"login", "logout", "static"})


class Dashboard:
    """An ASGI application about an inbox: `app.mount("/inbox", Dashboard(inbox, credentials=[...]))`.

    For several inboxes give a mapping of names, which are in its paths, to inboxes: `{"shop": shop, "billing": other}`;
    all people have their role in each of them, and sessions are the first one's.

    `credentials` are people with secrets; `identify` asks your own application who sent a request, and `sign_in_at` is
    its page where people sign in: people it does not know are sent there, and refused without it; `anonymous` is the
    role of all others who come to a local address: none, "viewer" (no payloads) or "reader". With `identify` in
    several processes, give all of them the same `secret`: it signs the forms. `behind_tls` says that browsers come
    through HTTPS, though we are spoken to in the clear; the proxy must pass on the name of the host they asked for, and
    add the address they come from to `X-Forwarded-For`.
    """

    def __init__(  # noqa: PLR0913 - who may use it, and how it is reached
        self,
        inbox: Inbox | Mapping[str, Inbox],
        *,
        credentials: Sequence[Credential] = (),
        anonymous: Role | None = None,
        identify: Identify | None = None,
        sign_in_at: str = "",
        secret: str = "",
        behind_tls: bool = False,
    ) -> None:
        if sign_in_at and identify is None:
            raise ConfigurationError(
                "sign_in_at= goes with identify=: with credentials= the dashboard has a page for it"
            )
        inboxes = {"": inbox} if isinstance(inbox, Inbox) else _named(inbox)
        self._watches = {name: Watch(one) for name, one in inboxes.items()}
        self._inbox = first = next(iter(inboxes.values()))
        self._behind_tls, self._sign_in_at = behind_tls, sign_in_at
        self._access = Access(
            credentials,
            anonymous=anonymous,
            has_ended=lambda session: perform(first.store, lambda: is_signed_out(first.context, session)),
            identify=identify,
            secret=secret,
            behind_proxy=behind_tls,
        )
        self._templates = shown.environment()
        routes: list[Route | Mount]
        if "" in inboxes:
            routes = [self._route(allowed, "") for allowed in ROUTES]
        else:
            routes = [self._route(ALL, next(iter(inboxes)))]
            routes += [Mount(f"/{name}", routes=[self._route(one, name) for one in ROUTES]) for name in inboxes]
        routes += [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=shown.HERE / "static")),
        ]
        errors: dict[Any, Any] = {
            HTTPException: self._refused,
            StoreError: self._away,
            OncewardError: self._misled,
        }
        self._app = Starlette(routes=routes, exception_handlers=errors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, with the headers that every response has."""

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in known)]
            await send(message)

        await self._app({**scope, "onceward.base": scope.get("root_path", "")}, receive, send_safely)

    def _route(self, allowed: Allowed, name: str) -> Route:
        async def answer(request: Request) -> Response:
            person = await self._access.person(request)
            if person is None:
                return self._stranger(request)
            if not person.may(allowed.role):
                raise asked.refuse(f"this needs the role {allowed.role}; {person.name} is {person.role}", 403)
            view = self._view(request, person, name)
            if allowed.page is not None:
                return await allowed.page(view)
            fields = await asked.form(request)
            if not self._access.is_ours(request, person, fields.get("token", [""])[0]):
                raise asked.refuse("this request did not come from a page of this dashboard; reload and try again", 403)
            assert allowed.action is not None  # noqa: S101 - a route has one of the two
            return await allowed.action(view, fields)

        return Route(allowed.path, answer, methods=["GET"] if allowed.page else ["POST"])

    def _view(self, request: Request, person: Person | None, name: str | None = None) -> View:
        """What a page knows; of the inbox that the path names, where it is not said of which."""
        token = "" if person is None else self._access.token(request, person)
        if name is None:
            below = request.scope["path"].removeprefix(request.scope["onceward.base"]).strip("/").partition("/")[0]
            name = below if below in self._watches else next(iter(self._watches))
        return View(
            request=request,
            person=person,
            token=token,
            watch=self._watches[name],
            templates=self._templates,
            can_sign_in=self._access.can_sign_in,
            name=name,
            watches=self._watches,
        )

    def _stranger(self, request: Request) -> Response:
        if self._sign_in_at and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            back = urlencode({"next": request.url.path})
            return RedirectResponse(f"{self._sign_in_at}?{back}", status_code=303)
        if not self._access.can_sign_in:
            raise asked.refuse("this dashboard is not open under this address", 403)
        if "text/html" not in request.headers.get("accept", ""):
            return Response(status_code=401, headers={"www-authenticate": 'Basic realm="onceward"'})
        return RedirectResponse(f"{request.scope['onceward.base']}/login", status_code=303)

    async def _login(self, request: Request) -> Response:
        if not self._access.can_sign_in:
            raise asked.refuse("there are no credentials to sign in with", 404)
        view = self._view(request, None)
        if request.method == "GET":
            return await view.page("login.html", title="Sign in", problem="")
        fields = await asked.form(request)
        if not same_origin(request):
            raise asked.refuse("this request did not come from a page of this dashboard", 403)
        name, secret = (fields.get(field, [""])[0] for field in ("name", "secret"))
        cookie = await run_in_threadpool(self._access.sign_in, request, name, secret)
        if cookie is None:
            log.warning("a sign-in to the dashboard failed")
            problem = "Wrong name or secret, or too many attempts. Wait a moment before the next one."
            return await view.page("login.html", title="Sign in", problem=problem, status=401)
        answer = RedirectResponse(f"{view.base}/", status_code=303)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=SESSION_SECONDS,
            path=view.base or "/",
            secure=self._behind_tls or request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        if not same_origin(request):
            raise asked.refuse("this request did not come from a page of this dashboard", 403)
        base = request.scope["onceward.base"]
        answer: Response = RedirectResponse(f"{base}/", status_code=303)
        try:
            await run_in_threadpool(self._end, self._access.session(request))
        except StoreError as error:
            log.warning("a session of the dashboard could not be ended: %s", error)
            what = "This browser is signed out, but the database could not record it: a copy of its cookie still works."
            answer = await self._problem(request, 503, what)
        answer.delete_cookie(COOKIE, path=base or "/", httponly=True, samesite="strict")
        return answer

    def _end(self, session: str | None) -> None:
        if session is not None:
            perform(self._inbox.store, lambda: sign_out(self._inbox.context, session, SESSION_SECONDS))

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - what this is registered for
        nowhere = error.detail == HTTPStatus.NOT_FOUND.phrase  # no route has this path
        return await self._problem(request, error.status_code, "There is no such page." if nowhere else error.detail)

    async def _away(self, request: Request, error: Exception) -> Response:
        log.warning("the dashboard cannot use the database: %s", error)
        return await self._problem(request, 503, "The database cannot be used just now; this page tries again.")

    async def _misled(self, request: Request, error: Exception) -> Response:
        status = 409 if isinstance(error, ConfigurationError) else 400
        return await self._problem(request, status, str(error))

    async def _problem(self, request: Request, status: int, what: str) -> HTMLResponse:
        try:
            person = await self._access.person(request)
        except OncewardError:  # the database is away: who it is cannot be asked
            person = None
        return await self._view(request, person).page("problem.html", title=str(status), what=what, status=status)


def _named(inboxes: Mapping[str, Inbox]) -> Mapping[str, Inbox]:
    """Several inboxes, by names that a path can have."""
    if not inboxes:
        raise ConfigurationError("Dashboard(): no inbox; give one, or a mapping of names to inboxes")
    for name in inboxes:
        if not NAME.fullmatch(name) or name in TAKEN:
            raise ConfigurationError(
                f"Dashboard(): {name!r} cannot be in a path; a name has small letters, digits and hyphens, and is not "
                f"{', '.join(sorted(TAKEN))}"
            )
    return inboxes
