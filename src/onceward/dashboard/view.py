"""What a page knows: the request, who sent it, the inbox; and how it becomes an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse

from onceward.admin.admin import Admin
from onceward.dashboard.access import Person
from onceward.dashboard.samples import Samples
from onceward.inbox import Inbox

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

NAVIGATION = (
    ("", "Overview"),
    ("messages", "Messages"),
    ("dead", "Dead letters"),
    ("quarantine", "Quarantine"),
    ("keys", "Blocked keys"),
    ("effects", "Open calls"),
    ("outbox", "Outbox"),
    ("workers", "Workers"),
    ("sources", "Sources"),
    ("storage", "Storage"),
    ("audit", "Audit"),
)


@dataclass(frozen=True, slots=True)
class View:
    """One request."""

    request: Request
    person: Person | None
    token: str
    inbox: Inbox
    samples: Samples
    templates: Environment
    can_sign_in: bool

    @property
    def admin(self) -> Admin:
        """What its pages show, and its forms do."""
        return self.inbox.admin

    @property
    def root(self) -> str:
        """Where the dashboard is mounted, for links."""
        root: str = self.request.scope.get("root_path", "")
        return root

    @property
    def may_read(self) -> bool:
        """Whether this person may see payloads, and what may quote them: keys, texts of errors, tracebacks."""
        return self.person is not None and self.person.may("reader")

    def page(self, template: str, *, title: str, status: int = 200, **known: Any) -> HTMLResponse:
        """A template as an answer."""
        path = self.request.scope["path"].removeprefix(self.root).strip("/").partition("/")[0]
        text = self.templates.get_template(template).render(
            title=title,
            root=self.root,
            here=path,
            navigation=NAVIGATION,
            person=self.person,
            token=self.token,
            service=self.inbox.context.service,
            can_sign_in=self.can_sign_in,
            may_read=self.may_read,
            may_act=self.person is not None and self.person.may("operator"),
            **known,
        )
        return HTMLResponse(text, status)
