"""What people see, in a real browser. Few and broad: starting one costs more than all it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from onceward.dashboard.app import ROUTES
from tests.dashboard import shop
from tests.dashboard.browser import WIDE, Browser, browsing
from tests.dashboard.conftest import visiting
from tests.dashboard.test_pages import NASTY, poisoned
from tests.waiting import wait_until

ROWS = 100_000
# Every row is a message of its own; most are done, a part is dead, in few kinds, and holds its key.
MANY = (
    "INSERT INTO onceward_name (name) VALUES ('many')",
    """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
    INSERT INTO onceward_ledger (consumer, source, slot, id, hash, type_hash, received_at)
    SELECT (SELECT id FROM onceward_name WHERE name = 'shop'), (SELECT id FROM onceward_name WHERE name = 'many'),
           0, CAST(i AS blob), zeroblob(32), 0, {now} - i FROM n
    """,
    """
    INSERT INTO onceward_body (seq, source, id, type, version, key, body, received_at)
    SELECT seq, source, 'm' || seq, 'order.paid', 1, seq, x'7b7d', received_at FROM onceward_ledger
    WHERE source = (SELECT id FROM onceward_name WHERE name = 'many')
    """,
    """
    INSERT INTO onceward_queue (seq, subscription, key_hash, slot, place, state)
    SELECT seq, 1, seq, 0, seq, 'dead' FROM onceward_body WHERE id LIKE 'm%' AND seq % 2 = 0
    """,
    """
    INSERT INTO onceward_attempt (seq, attempt, kind, charged, error, code_version, fingerprint, at)
    SELECT seq, 1, 'error', 1, 'Reject: no', '1', 'kind-' || (seq % 5), {now} FROM onceward_queue
    WHERE state = 'dead' AND seq IN (SELECT seq FROM onceward_body WHERE id LIKE 'm%')
    """,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here."""
    with browsing() as opened:
        yield opened


def pages(seq: int) -> list[str]:
    """Every page there is."""
    return [
        allowed.path.replace("{seq}", str(seq)).replace("{case}", "1") + "?verb=redrive"
        for allowed in ROUTES
        if allowed.page
    ]


def test_strangers_strings_do_nothing_on_any_page(browser: Browser, sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox:
        poisoned(inbox)
        seq = inbox.admin.messages(status="dead")[0].seq
        with visiting(inbox, credentials=shop.PEOPLE) as visitor:
            browser.resize(WIDE)
            browser.sign_in(visitor.address, shop.OPERATOR)
            browser.complaints()
            shown = 0
            for path in pages(seq):
                browser.go(path)  # an alert would make every further command fail
                assert browser.all('script:not([src]), img[src="x"], svg[onload], main b') == [], path
                shown += NASTY[:20] in browser.text("body")
            assert shown >= 8
            assert [line for line in browser.complaints() if "favicon" not in line] == []
            browser.go(f"/messages/{seq}")
            browser.one(f"form[action='/messages/{seq}/payload'] button").click()
            wait_until(lambda: "Hide" in browser.text("main"), message="the payload")
            assert browser.all("script:not([src]), img[src='x']") == []
            browser.one("form[action='/try'] button").click()
            wait_until(lambda: "rolled back" in browser.text("main"), message="the page of the dry run")
            assert browser.all("script:not([src]), img[src='x']") == []


def test_keys_lead_to_search_and_past_the_navigation(browser: Browser, sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox, visiting(inbox, credentials=shop.PEOPLE) as visitor:
        shop.fill(inbox)
        browser.resize(WIDE)
        browser.sign_in(visitor.address, shop.OPERATOR)
        browser.go("/dead")
        browser.one("body").send_keys(Keys.TAB)
        assert browser.driver.switch_to.active_element.text == "Skip to the content"
        browser.one("body").send_keys("/")
        assert browser.driver.switch_to.active_element.get_attribute("name") == "q"
        browser.driver.switch_to.active_element.send_keys("evt_55", Keys.ENTER)
        wait_until(lambda: "Message " in browser.text("h1"), message="the message that was searched for")
        theme = browser.run("getComputedStyle(document.body).backgroundColor")
        browser.one("#theme").click()
        assert browser.run("getComputedStyle(document.body).backgroundColor") != theme
        browser.one("#theme").click()


def test_two_tabs_redrive_the_same_message_and_one_of_them_does(browser: Browser, sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox, visiting(inbox, credentials=shop.PEOPLE) as visitor:
        seq = shop.fill(inbox)["dead"]
        browser.resize(WIDE)
        browser.sign_in(visitor.address, shop.OPERATOR)
        tabs = [browser.driver.current_window_handle]
        browser.driver.switch_to.new_window("tab")
        tabs.append(browser.driver.current_window_handle)
        for tab in tabs:  # both see it dead
            browser.driver.switch_to.window(tab)
            browser.go(f"/messages/{seq}")
            browser.driver.find_element(By.LINK_TEXT, "Redrive…").click()
            browser.one("input[name=reason]").send_keys("the account was opened")
        said = []
        for tab in tabs:
            browser.driver.switch_to.window(tab)
            browser.one("form.decide button").click()
            wait_until(lambda: "Redriven" in browser.text("h1"), message="the answer")
            said.append(browser.text("main"))
        browser.driver.close()
        browser.driver.switch_to.window(tabs[0])
        assert "Redriven: 1 message" in said[0]
        assert "Redriven: 0 messages" in said[1]
        assert "it is due" in said[1]
        assert [line.actor for line in inbox.admin.audit() if line.reason == "the account was opened"] == [
            shop.OPERATOR.name
        ]


def test_a_hundred_thousand_messages_are_shown_page_by_page(browser: Browser, sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox:
        shop.fill(inbox)
        with inbox.transaction() as tx:
            for statement in MANY:
                tx.execute(statement.format(rows=ROWS, now="(SELECT max(received_at) FROM onceward_body)"))
        with visiting(inbox, credentials=shop.PEOPLE) as visitor:
            browser.resize(WIDE)
            browser.sign_in(visitor.address, shop.OPERATOR)
            browser.go("/messages")
            assert len(browser.all("tbody tr")) == 50
            browser.driver.find_element(By.LINK_TEXT, "Older").click()
            assert len(browser.all("tbody tr")) == 50
            browser.go("/dead")
            assert len(browser.all("article.group")) == 6  # five kinds, and the shop's own
            browser.go("/keys")
            assert len(browser.all("tbody tr")) == 200
            browser.go("/preview?verb=discard&error=kind-0")
            assert "Discard 1,000 messages?" in browser.text("h1")
            browser.go("/")
            assert browser.text("[data-stat=dead]") == f"{ROWS // 2 + 6:,}"
            for path in ("/storage", "/sources", "/messages?status=done", "/messages?error=kind-3"):
                browser.go(path)
                assert browser.all("tbody tr"), path
