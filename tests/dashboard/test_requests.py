"""What one request says of itself: whether a page of this site sent it, and whether its session goes on."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from onceward.dashboard import Person
from onceward.dashboard.access import COOKIE, Access, same_origin
from tests.dashboard import shop
from tests.dashboard.test_access import comes_from

if TYPE_CHECKING:
    from starlette.requests import Request

OURS, THEIRS = "https://shop.example", "https://evil.example"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": OURS}, True),
        ({"referer": f"{OURS}/messages"}, True),
        ({"origin": OURS, "sec_fetch_site": "same-origin"}, True),
        ({"origin": OURS, "referer": f"{THEIRS}/"}, True),
        ({"origin": THEIRS, "referer": f"{OURS}/"}, False),
        ({"origin": OURS, "sec_fetch_site": "cross-site"}, False),
        ({"origin": OURS, "sec_fetch_site": ""}, False),
        ({}, False),
    ],
)
def test_a_request_is_of_this_site_by_its_origin_and_else_by_its_referer(
    headers: dict[str, str], expected: object
) -> None:
    assert same_origin(comes_from("192.0.2.1", host="shop.example", **headers)) is expected


@pytest.mark.parametrize("headers", [{}, {"origin": "null"}, {"origin": OURS}])
def test_a_request_to_no_host_is_of_no_site(headers: dict[str, str]) -> None:
    assert not same_origin(comes_from("192.0.2.1", **headers))


def test_a_session_is_valid_for_twelve_hours_and_no_second_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("onceward.dashboard.access.time.time", lambda: now[0])
    people = Access([shop.VIEWER], anonymous=None, has_ended=lambda _: False)
    cookie = people.sign_in(comes_from("192.0.2.1"), shop.VIEWER.name, shop.VIEWER.secret)
    request = comes_from("192.0.2.1", cookie=f"{COOKIE}={cookie}")
    now[0] += 12 * 60 * 60
    assert people.session(request)
    now[0] += 1
    assert people.session(request) is None


BEN = Person("ben", "viewer")


@pytest.mark.parametrize(
    ("found", "person"),
    [(BEN, BEN), (None, None), ("ben", None), (Person("ben", "owner"), None)],  # type: ignore[arg-type] # there is no such role
)
@pytest.mark.parametrize("kind", ["def", "async"])
async def test_an_application_names_a_person_with_a_role_or_none(found: Any, person: Person | None, kind: str) -> None:
    """What it returns by mistake lets no one in."""

    async def identify(request: Request) -> Any:
        assert request.client is not None
        return found

    people = Access(
        [], anonymous=None, has_ended=lambda _: False, identify=identify if kind == "async" else lambda _: found
    )
    assert await people.person(comes_from("192.0.2.1")) == person


@pytest.mark.parametrize("spoil", ["{}", "!{}", "{}!", " {}"])
async def test_basic_authentication_is_exact(spoil: str) -> None:
    people = Access([shop.VIEWER], anonymous=None, has_ended=lambda _: False)
    pair = base64.b64encode(f"{shop.VIEWER.name}:{shop.VIEWER.secret}".encode()).decode()
    found = await people.person(comes_from("192.0.2.1", authorization=f"Basic {spoil.format(pair)}"))
    assert found == (Person(shop.VIEWER.name, "viewer") if spoil == "{}" else None)
