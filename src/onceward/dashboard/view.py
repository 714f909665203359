"""What a page knows: the request, who sent it, the inbox; and how it becomes a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse

from onceward.admin.admin import Admin
from onceward.admin.concerns import Standing, Tone
from onceward.admin.overview import Pause
from onceward.dashboard.access import Person
from onceward.dashboard.watch import Watch
from onceward.errors import OncewardError
from onceward.inbox import Inbox

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

NAVIGATION = (
    ("", "Overview"),
    ("types", "Types"),
    ("messages", "Messages"),
    ("dead", "Dead letters"),
    ("quarantine", "Quarantine"),
    ("keys", "Blocked keys"),
    ("effects", "Open calls"),
    ("outbox", "Outbox"),
    ("handlers", "Handlers"),
    ("workers", "Workers"),
    ("pauses", "Pauses"),
    ("polls", "Polls"),
    ("sources", "Sources"),
    ("storage", "Storage"),
    ("audit", "Audit"),
)


class Badge(NamedTuple):
    """A number beside the name of a page."""

    number: int
    tone: Tone
    what: str


class Other(NamedTuple):
    """An inbox of this dashboard."""

    name: str
    href: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class View:
    """One request."""

    request: Request
    person: Person | None
    token: str
    watch: Watch
    templates: Environment
    can_sign_in: bool
    name: str = ""
    """What this inbox is called in the path, where the dashboard has several."""
    watches: Mapping[str, Watch] = field(default_factory=dict)
    """All inboxes."""

    @property
    def inbox(self) -> Inbox:
        """What it is about."""
        return self.watch.inbox

    @property
    def admin(self) -> Admin:
        """What its pages show, and its forms do."""
        return self.inbox.admin

    @property
    def base(self) -> str:
        """Where the dashboard is mounted: signing in, and what all inboxes share."""
        base: str = self.request.scope.get("onceward.base", self.request.scope.get("root_path", ""))
        return base

    @property
    def root(self) -> str:
        """Where the pages of this inbox are, for links."""
        return f"{self.base}/{self.name}" if self.name else self.base

    @property
    def may_read(self) -> bool:
        """Whether this person may see payloads, and what may quote them: keys, texts of errors, tracebacks."""
        return self.person is not None and self.person.may("reader")

    async def standing(self) -> Standing:
        """How the inbox is now."""
        return await run_in_threadpool(self.watch.standing, fresh=True)

    async def page(self, template: str, *, title: str, status: int = 200, **known: Any) -> HTMLResponse:
        """A template as a response; it is filled in a thread, as a payload may be long."""
        return HTMLResponse(await run_in_threadpool(self._filled, template, title, known), status)

    def _filled(self, template: str, title: str, known: dict[str, Any]) -> str:
        path = self.request.scope["path"].removeprefix(self.root).strip("/").partition("/")[0]
        return self.templates.get_template(template).render(
            title=title,
            root=self.root,
            base=self.base,
            here=path,
            navigation=NAVIGATION,
            badges=self._badges() if self.person else {},
            stopped=self._stopped() if self.person else (),
            others=[Other(name, f"{self.base}/{name}/", name == self.name) for name in self.watches if name],
            person=self.person,
            token=self.token,
            service=self.inbox.context.service,
            about=self.inbox.context,
            can_sign_in=self.can_sign_in,
            may_read=self.may_read,
            may_act=self.person is not None and self.person.may("operator"),
            **known,
        )

    def _stopped(self) -> Sequence[Pause]:
        """What is paused, which every page says."""
        try:
            return self.watch.standing().pauses
        except OncewardError:
            return ()

    def _badges(self) -> Mapping[str, Badge]:
        """The numbers beside the pages; none where the database is away."""
        try:
            concerns = self.watch.standing().concerns
        except OncewardError:
            return {}
        badges: dict[str, Badge] = {}
        for one in concerns:
            # The most important comes first. What is retrying, due or unhandled is among the messages: no number there.
            if "?" not in one.help.page:
                badges.setdefault(one.help.page, Badge(one.number, one.help.tone, one.what))
        return badges
