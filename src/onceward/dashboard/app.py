"""The application: routes, who may use each, and the headers of every answer.

Invariant: every route is in `ROUTES` with the role it needs; nothing else is reachable. A POST is refused before its
action runs unless it comes from our own page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from onceward.dashboard import actions, asked, pages, shown
from onceward.dashboard.access import COOKIE, SESSION_SECONDS, Access, Credential, Identify, Person, Role, same_origin
from onceward.dashboard.samples import Samples
from onceward.dashboard.view import View
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

Page = Callable[[View], Response]
Action = Callable[[View, Mapping[str, list[str]]], Response]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A page or an action, and the least role that may use it."""

    path: str
    role: Role
    page: Page | None = None
    action: Action | None = None


ROUTES = (
    Allowed("/", "viewer", page=pages.overview),
    Allowed("/live.json", "viewer", page=pages.live),
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
    Allowed("/workers", "viewer", page=pages.workers),
    Allowed("/outbox", "viewer", page=pages.outbox),
    Allowed("/sources", "viewer", page=pages.sources),
    Allowed("/storage", "viewer", page=pages.storage),
    Allowed("/audit", "viewer", page=pages.audit),
    Allowed("/metrics", "viewer", page=pages.metrics),
    Allowed("/preview", "operator", page=actions.preview),
    Allowed("/act", "operator", action=actions.act),
    Allowed("/resolve", "operator", action=actions.resolve),
    Allowed("/settle", "operator", action=actions.settle),
    Allowed("/try", "operator", action=actions.try_message),
)


class Dashboard:
    """An ASGI application about one inbox: `app.mount("/inbox", Dashboard(inbox, credentials=[...]))`.

    `credentials` are people with secrets; `identify` asks your own application who sent a request; `anonymous` is the
    role of everybody else who comes to a local address: none, "viewer" (no payloads) or "reader". With `identify` in
    several processes, give all of them the same `secret`: it signs the forms. `behind_tls` says that browsers come
    through HTTPS, though we are spoken to in the clear; the proxy must pass on the name of the host they asked for, and
    add the address they come from to `X-Forwarded-For`.
    """

    def __init__(  # noqa: PLR0913 - who may use it, and how it is reached
        self,
        inbox: Inbox,
        *,
        credentials: Sequence[Credential] = (),
        anonymous: Role | None = None,
        identify: Identify | None = None,
        secret: str = "",
        behind_tls: bool = False,
    ) -> None:
        self._inbox, self._behind_tls = inbox, behind_tls
        self._access = Access(
            credentials,
            anonymous=anonymous,
            has_ended=lambda session: perform(inbox.store, lambda: is_signed_out(inbox.context, session)),
            identify=identify,
            secret=secret,
            behind_proxy=behind_tls,
        )
        self._samples = Samples(inbox)
        self._templates = shown.environment()
        routes: list[Route | Mount] = [self._route(allowed) for allowed in ROUTES]
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
        """Answer a request, with the headers that every answer has."""

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in known)]
            await send(message)

        await self._app(scope, receive, send_safely)

    def _route(self, allowed: Allowed) -> Route:
        async def answer(request: Request) -> Response:
            person = await run_in_threadpool(self._access.person, request)
            if person is None:
                return self._stranger(request)
            if not person.may(allowed.role):
                raise asked.refuse(f"this needs the role {allowed.role}; {person.name} is {person.role}", 403)
            view = self._view(request, person)
            if allowed.page is not None:
                return await run_in_threadpool(allowed.page, view)
            fields = await asked.form(request)
            if not self._access.is_ours(request, person, fields.get("token", [""])[0]):
                raise asked.refuse("this request did not come from a page of this dashboard; reload and try again", 403)
            assert allowed.action is not None  # noqa: S101 - a route has one of the two
            return await run_in_threadpool(allowed.action, view, fields)

        return Route(allowed.path, answer, methods=["GET"] if allowed.page else ["POST"])

    def _view(self, request: Request, person: Person | None) -> View:
        token = "" if person is None else self._access.token(request, person)
        return View(
            request, person, token, self._inbox, self._samples, self._templates, can_sign_in=self._access.can_sign_in
        )

    def _stranger(self, request: Request) -> Response:
        if not self._access.can_sign_in:
            raise asked.refuse("nobody may look at this dashboard under this address", 403)
        if "text/html" not in request.headers.get("accept", ""):
            return Response(status_code=401, headers={"www-authenticate": 'Basic realm="onceward"'})
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login", status_code=303)

    async def _login(self, request: Request) -> Response:
        if not self._access.can_sign_in:
            raise asked.refuse("there is nobody to sign in as", 404)
        view = self._view(request, None)
        if request.method == "GET":
            return view.page("login.html", title="Sign in", problem="")
        fields = await asked.form(request)
        if not same_origin(request):
            raise asked.refuse("this request did not come from a page of this dashboard", 403)
        name, secret = (fields.get(field, [""])[0] for field in ("name", "secret"))
        cookie = await run_in_threadpool(self._access.sign_in, request, name, secret)
        if cookie is None:
            log.warning("somebody could not sign in to the dashboard")
            problem = "That is not right, or there were too many tries; wait a moment before the next."
            return view.page("login.html", title="Sign in", problem=problem, status=401)
        answer = RedirectResponse(f"{view.root}/", status_code=303)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=SESSION_SECONDS,
            path=view.root or "/",
            secure=self._behind_tls or request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        if not same_origin(request):
            raise asked.refuse("this request did not come from a page of this dashboard", 403)
        root = request.scope.get("root_path", "")
        answer: Response = RedirectResponse(f"{root}/", status_code=303)
        try:
            await run_in_threadpool(self._end, self._access.session(request))
        except StoreError as error:
            log.warning("a session of the dashboard could not be ended: %s", error)
            what = "This browser is signed out, but the database could not record it: a copy of its cookie still works."
            answer = await self._problem(request, 503, what)
        answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
        return answer

    def _end(self, session: str | None) -> None:
        if session is not None:
            perform(self._inbox.store, lambda: sign_out(self._inbox.context, session, SESSION_SECONDS))

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - what this is registered for
        return await self._problem(request, error.status_code, error.detail)

    async def _away(self, request: Request, error: Exception) -> Response:
        log.warning("the dashboard cannot use the database: %s", error)
        return await self._problem(request, 503, "The database cannot be used just now; this page tries again.")

    async def _misled(self, request: Request, error: Exception) -> Response:
        status = 409 if isinstance(error, ConfigurationError) else 400
        return await self._problem(request, status, str(error))

    async def _problem(self, request: Request, status: int, what: str) -> HTMLResponse:
        return self._view(request, None).page("problem.html", title=str(status), what=what, status=status)
