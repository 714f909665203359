"""Every page as people see it: at 1440 and 390 pixels, light and dark, with 10,000 messages and 90 days of history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from onceward import Inbox
from onceward.dashboard.app import ROUTES
from onceward.domain.histogram import Histogram
from onceward.runtime.runner import perform
from onceward.stores.moves.history import DAYS, HOURS, MINUTES, HistoryRow
from tests.dashboard import shop
from tests.dashboard.browser import PHONE, WIDE, Browser, browsing
from tests.dashboard.conftest import Visitor, visiting
from tests.dashboard.test_browser import MANY
from tests.waiting import wait_until

TYPES = ("order.paid", "order.shipped", "card.charged")
ROWS = 10_000
STATES = {0: "dead", 1: "waiting", 2: "unhandled", 3: "ready", 4: "retry", 5: "scheduled"}


def past(now: datetime) -> Iterator[HistoryRow]:
    """What such a shop has behind it: busy days and quiet nights, a bad hour."""
    for level, length, ages in ((MINUTES, 60, range(120)), (HOURS, 3600, range(2, 160)), (DAYS, 86400, range(7, 90))):
        for ago in ages:
            start = int(now.timestamp()) // length * length - length * ago
            for place, kind in enumerate(TYPES):
                busy = (40 + 30 * ((start // length) % 7)) * (length // 60) // (place + 1)
                failed = busy // 5 if ago == 20 else busy // 200
                yield _row(level, start, kind, busy, failed)


def _row(level: int, start: int, kind: str, busy: int, failed: int) -> HistoryRow:
    wait, run, late = (Histogram({bucket: busy or 1, bucket + 6: busy // 20}).text() for bucket in (10, 8, 24))
    return {
        "level": level,
        "starts_at": start * 1_000_000,
        "consumer": "shop",
        "source": "stripe",
        "type": kind,
        "received": busy,
        "duplicates": busy // 30,
        "mismatches": 0,
        "done": busy - failed // 4,
        "failed": failed,
        "dead": failed // 4,
        "backlog": failed * 3,
        "oldest": failed * 1_000_000,
        "lateness": late,
        "wait": wait,
        "run": run,
    }


def mixed(inbox: Inbox) -> dict[str, int]:
    """A shop with 10,000 more messages in every state, and its past."""
    seqs = shop.fill(inbox)
    with inbox.transaction() as tx:
        for statement in MANY:
            tx.execute(statement.format(rows=ROWS, now="(SELECT max(received_at) FROM onceward_body)"))
        for part, state in STATES.items():
            later = "(SELECT max(received_at) FROM onceward_body) + 3600000000"
            kind = "'order.paid'" if state == "unhandled" else "type"
            due = later if state in {"retry", "scheduled"} else "NULL"
            tx.execute(
                f"UPDATE onceward_queue SET state = '{state}', due_at = {due}, type = {kind} "
                f"WHERE seq % 12 = {2 * part} AND seq IN (SELECT seq FROM onceward_body WHERE id LIKE 'm%')"
            )
    rows = list(past(datetime.now(UTC)))
    perform(inbox.store, lambda: inbox.context.moves.history.record(rows))
    return seqs


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here."""
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[tuple[Visitor, dict[str, int]]]:
    """A shop with many messages, and its dashboard; an operator is signed in."""
    with shop.opened(f"sqlite:///{tmp_path_factory.mktemp('busy') / 'inbox.db'}") as inbox:

        @inbox.on("card.held")
        def held(message: Any, tx: Any) -> None:
            del tx
            message.once("hold", lambda: 1 / 0)

        for number in range(2):
            inbox.receive(source="stripe", id=f"held_{number}", type="card.held", data={})
        seqs = mixed(inbox)
        inbox.retention.declare_source("stripe", redelivers_for=timedelta(days=3))
        inbox.admin.pause(type="order.refunded", reason="the carrier is away", actor="ada")
        with visiting(inbox, credentials=shop.PEOPLE) as visitor:
            browser.resize(WIDE)
            browser.sign_in(visitor.address, shop.OPERATOR)
            yield visitor, seqs


def paths(seqs: dict[str, int]) -> list[str]:
    """Every page, and some with what an operator chooses."""
    found = [one.path.replace("{seq}", str(seqs["dead"])).replace("{case}", "1") for one in ROUTES if one.page]
    chosen = ["/preview?verb=redrive&status=dead", "/?range=quarter", "/types?type=order.paid", "/nowhere"]
    return [one for one in found if one not in {"/preview", "/search", "/metrics"}] + [*chosen, "/search?q=amount"]


CUT_OFF = """(function () {
    function all(selector, says) {
        return Array.from(document.querySelectorAll(selector)).map(says).filter(Boolean);
    }
    return all('.scroll', function (one) {
        return one.scrollWidth > one.clientWidth && 'of a table only ' + one.clientWidth + ' of ' + one.scrollWidth;
    }).concat(all('.side a > :first-child, .cards td > a, .cards td > div > a', function (one) {
        return one.getClientRects().length > 1 && '"' + one.textContent + '" is broken into lines';
    }), all('label > input[name=reason]', function (one) {
        var beside = one.getBoundingClientRect().left - one.parentElement.getBoundingClientRect().left;
        return beside > 1 && 'a field stands beside its label';
    }));
})()"""
"""What does not fit where it stands."""


@contextmanager
def as_on(browser: Browser, size: tuple[int, int], *, dark: bool) -> Iterator[None]:
    browser.resize(size, dark=dark)
    try:
        yield
    finally:
        browser.resize(WIDE)


@pytest.mark.timeout(900)  # axe reads every element of two dozen pages, on a machine that may have much to do
@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (WIDE, True), (PHONE, False), (PHONE, True)])
def test_every_page_fits_and_is_accessible(
    browser: Browser, busy: tuple[Visitor, dict[str, int]], size: tuple[int, int], *, dark: bool
) -> None:
    found: list[str] = []
    with as_on(browser, size, dark=dark):
        for path in paths(busy[1]):
            browser.go(path)
            wide = browser.run("document.documentElement.scrollWidth - window.innerWidth")
            if wide > 0:
                found.append(f"{path}: {wide} pixels too wide")
            found += [f"{path}: {line}" for line in browser.run(CUT_OFF)]
            if dark == (size is PHONE):  # colours and the order of the page are looked at once each
                found += [f"{path}: {line}" for line in browser.barriers()]
            if size is PHONE:
                found += [f"{path}: {line}" for line in _on_a_phone(browser)]
    assert found == []


def _on_a_phone(browser: Browser) -> Iterator[str]:
    """A header of one row, and the current tab in sight."""
    height = browser.run("document.querySelector('.top').getBoundingClientRect().height")
    if height > 60:
        yield f"the header is {height} pixels high"
    place = browser.run(
        "(function () { var one = document.querySelector('.side [aria-current]'); if (!one) return null;"
        " var place = one.getBoundingClientRect(); return [place.left, place.right]; })()"
    )
    if place is not None and not (place[0] >= 0 and place[1] <= PHONE[0]):
        yield f"the current tab is out of sight: {place}"


def test_the_heads_of_plots_stand_on_one_line(browser: Browser, busy: tuple[Visitor, dict[str, int]]) -> None:
    browser.resize(WIDE)
    browser.go("/")
    heights = browser.run("Array.from(document.querySelectorAll('.plot figcaption')).map(one => one.offsetHeight)")
    assert (len(heights), len(set(heights))) == (6, 1)
    tiles = browser.run("Array.from(document.querySelectorAll('.tile')).map(one => one.offsetTop)")
    assert [tiles.count(top) for top in sorted(set(tiles))] == [7, 7]
    assert busy


def test_plots_are_read_with_a_pointer_and_with_keys(browser: Browser, busy: tuple[Visitor, dict[str, int]]) -> None:
    browser.resize(WIDE)
    browser.go("/types?type=order.paid&range=day")
    frame, readout = browser.one("[data-plot=throughput] .frame"), "[data-plot=throughput] .now"
    before = browser.text(readout)
    assert before.startswith("this hour: received ")
    ActionChains(browser.driver).move_to_element(frame).perform()
    wait_until(lambda: browser.text(readout) != before, message="the value below the pointer")
    assert "received" in browser.text(readout)
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    wait_until(lambda: browser.text(readout) == before, message="the last values again")
    browser.run("document.querySelector('[data-plot=throughput] .frame').focus()")
    seen = set()
    for _ in range(3):
        browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
        seen.add(browser.text(readout))
    assert len(seen) == 3
    assert busy


def test_boxes_are_ticked_together_and_lead_to_the_preview(
    browser: Browser, busy: tuple[Visitor, dict[str, int]]
) -> None:
    browser.resize(WIDE)
    browser.go("/messages?status=dead")
    browser.one("button[value=redrive]").click()
    assert browser.text("[data-count]") == "Choose at least one first"
    browser.run("window.scrollTo(0, 0)")
    browser.one("[data-all]").click()
    assert browser.text("[data-count]") == "50 chosen"
    browser.one("button[value=redrive]").click()
    wait_until(lambda: browser.text("h1") == "Redrive 50 messages?", message="the preview")
    assert busy


def test_lists_stay_fresh_and_wait_for_the_person(browser: Browser, busy: tuple[Visitor, dict[str, int]]) -> None:
    browser.resize(WIDE)
    browser.go("/messages?status=dead")
    browser.one("tbody input[type=checkbox]").click()
    box = browser.one("tbody input[type=checkbox]")
    inbox = busy[0].inbox
    browser.run("document.querySelector('#pages').dataset.seen = 1")
    wait_until(lambda: not browser.all("#pages[data-seen]"), timeout=30, message="the next fresh page")
    assert box.is_selected()  # a list in which something is chosen is left alone
    browser.go("/")
    before = inbox.admin.stats().due
    inbox.receive(source="stripe", id=f"live_{before}", type="order.paid", data={"order": 9, "amount": 1})

    def fresh() -> bool:
        """The page has the number of now; retries may become due meanwhile."""
        now = inbox.admin.stats().due
        return now > before and browser.text("[data-stat=due]") == f"{now:,}"

    wait_until(fresh, timeout=30, message="the number on the page")
    assert browser.text("#pulse") == "live"


def test_times_are_local_or_utc(browser: Browser, busy: tuple[Visitor, dict[str, int]]) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    try:
        browser.go("/audit")
        local = browser.text("time[data-form=exact]")
        title = browser.one("time[data-form=exact]").get_attribute("title") or ""
        assert local in title
        assert "UTC" in title
        browser.one("#zone").click()
        utc = browser.text("time[data-form=exact]")
        assert utc.endswith(" UTC")
        assert utc in title
        assert utc[:13] != local[:13]
        browser.one("#zone").click()
        assert browser.text("time[data-form=exact]") == local
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    assert busy


def test_everything_is_reached_with_the_keyboard(browser: Browser, busy: tuple[Visitor, dict[str, int]]) -> None:
    """From the first key on, in the order of the page, with a mark that is seen."""
    browser.resize(WIDE)
    browser.go("/messages?status=dead")
    every = "a[href], button, input:not([type=hidden]), select, summary"
    wanted = browser.run(f"document.querySelectorAll('{every}').length")
    reached = set()
    for _ in range(wanted + 5):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        active = browser.driver.switch_to.active_element
        if active.id in reached or active.tag_name == "body":
            break
        reached.add(active.id)
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none", active.tag_name
    assert len(reached) >= wanted
    assert busy
