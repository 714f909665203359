"""What one request says of itself: whether a page of this site sent it, and whether its session goes on."""

from __future__ import annotations

import pytest

from onceward.dashboard.access import COOKIE, Access, same_origin
from tests.dashboard import shop
from tests.dashboard.test_access import comes_from

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
