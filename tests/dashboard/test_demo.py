"""The demo on the dashboard, in a real browser: what people see first, and the pictures of the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceward import Inbox
from onceward.demo.show import Plan, play
from tests.dashboard import shop
from tests.dashboard.browser import PHONE, WIDE, Browser, browsing
from tests.dashboard.conftest import visiting

FOOL, PAYMENT = "account-of-a-fool", "payment.received"
PAGES = {
    "overview": (WIDE, "/"),
    "dead-letters": (WIDE, "/dead"),
    "blocked-keys": (WIDE, "/keys"),
    "quarantine": (WIDE, "/quarantine/1"),
    "message": (WIDE, "/messages/{dead}"),
    "overview-phone": (PHONE, "/"),
}
"""Those with a picture in the documentation."""


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing() as opened:
        yield opened


def afterwards(inbox: Inbox) -> int:
    """More of an account whose payment is dead, and an id again with other bytes; the number of the dead one."""
    dead = next(row for row in inbox.admin.messages(status="dead") if row.key == FOOL)
    for number in range(2):
        inbox.receive(source="bank", id=f"late_{number}", type=PAYMENT, data={"account": FOOL, "amount": 20 + number})
    inbox.receive(source="bank", id=dead.id, type=PAYMENT, data={"account": FOOL, "amount": 1})
    return dead.seq


@pytest.mark.timeout(300)
def test_the_demo_can_be_seen_on_a_wide_screen_and_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    """Whoever was killed on the way: the verdict names what needs an operator, and every page fits."""
    found: list[str] = []

    @contextmanager
    def beside(inbox: Inbox) -> Iterator[None]:
        with visiting(inbox, credentials=shop.PEOPLE) as visitor:
            yield
            dead = afterwards(inbox)
            browser.resize(WIDE)
            browser.sign_in(visitor.address, shop.OPERATOR)
            for name, (size, path) in PAGES.items():
                browser.resize(size)
                browser.go(path.format(dead=dead))
                if browser.run("document.documentElement.scrollWidth - window.innerWidth") > 0:
                    found.append(f"{name} is too wide")
                if path == "/":
                    found.append(browser.text(".verdict"))
                browser.picture(name)
            browser.resize(WIDE)

    plan = Plan(messages=2_000 if browser.keeps_pictures else 200, kills=4 if browser.keeps_pictures else 1)
    assert play(plan, tmp_path, lambda _: None, beside).verdict.holds
    assert len(found) == 2, found
    assert all("dead" in verdict for verdict in found), found
