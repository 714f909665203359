"""Fixtures: a dashboard on a real server, and a visitor with an HTTP client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

import httpx2 as httpx
import pytest

from onceward import Inbox
from onceward.dashboard import Credential, Dashboard
from onceward.dashboard.access import COOKIE
from onceward.runtime.http_server import serving
from tests.dashboard import shop


class Visitor:
    """Somebody with a browser's manners: same-origin headers, cookies, tokens from the forms."""

    def __init__(self, address: str, inbox: Any = None) -> None:
        self.address, self.inbox = address, inbox
        self._client = httpx.Client(base_url=address, headers={"accept": "text/html"}, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def sign_in(self, who: Credential) -> Self:
        """Sign in; the cookie stays."""
        answer = self.post("/login", name=who.name, secret=who.secret)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        return self

    def get(self, path: str, **headers: str | bytes) -> httpx.Response:
        """Look at a page."""
        return self._client.get(path, headers=list(headers.items()))  # type: ignore[arg-type] # httpx takes both

    def post(self, path: str, *, origin: str | None = None, **fields: Any) -> httpx.Response:
        """Send a form as a page of the dashboard would."""
        headers = {"origin": self.address if origin is None else origin, "sec-fetch-site": "same-origin"}
        return self._client.post(path, data=fields, headers=headers)

    def send(self, path: str, fields: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        """Send a form with whatever headers."""
        return self._client.post(path, data=fields, headers=headers)

    def request(self, method: str, path: str) -> httpx.Response:
        """Whatever method, as a page of the dashboard would."""
        return self._client.request(method, path, headers={"origin": self.address, "sec-fetch-site": "same-origin"})

    @property
    def cookie(self) -> str:
        """The session, as somebody might copy it."""
        return self._client.cookies[COOKIE]

    def get_with(self, cookie: str, path: str) -> httpx.Response:
        """Look at a page with somebody's session."""
        return httpx.get(f"{self.address}{path}", headers={"cookie": f"{COOKIE}={cookie}", "accept": "text/html"})

    def token(self, path: str) -> str:
        """The token of the form on a page."""
        found = re.search(r'name="token" value="([^"]+)"', self.get(path).text)
        assert found, path
        return found[1]

    def forget_me(self) -> None:
        """Lose the cookies."""
        self._client.cookies.clear()


@contextmanager
def visiting(inbox: Inbox | Mapping[str, Inbox], **options: Any) -> Iterator[Visitor]:
    """A dashboard on a server of its own, and a visitor."""
    app = Dashboard(inbox, **options)
    with (
        serving(app, "127.0.0.1:0", stop=lambda: None, patience=timedelta(seconds=1)) as port,
        Visitor(f"http://127.0.0.1:{port}", inbox) as visitor,
    ):
        yield visitor


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Inbox, dict[str, int]]]:
    """A shop with something of everything, which nobody changes."""
    with shop.opened(f"sqlite:///{tmp_path_factory.mktemp('shop') / 'inbox.db'}") as inbox:
        yield inbox, shop.fill(inbox)


@pytest.fixture(scope="module")
def site(filled: tuple[Inbox, dict[str, int]]) -> Iterator[Visitor]:
    """Its dashboard."""
    with visiting(filled[0], credentials=shop.PEOPLE) as visitor:
        yield visitor


@pytest.fixture
def inbox(store_url: str) -> Iterator[Inbox]:
    """An empty shop on each store."""
    with shop.opened(store_url) as made:
        yield made
