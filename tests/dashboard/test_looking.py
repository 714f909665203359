"""What an operator sees first, and where it leads: the verdict, numbers beside the pages, plots, what runs, search."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Inbox, RetryPolicy
from onceward.admin.concerns import HELP, standing
from onceward.admin.history import RANGES
from onceward.dashboard import Dashboard, charts
from onceward.dashboard.view import NAVIGATION
from onceward.errors import ConfigurationError
from onceward.runtime.runner import perform
from onceward.steps.history import save_activity
from tests.dashboard import shop
from tests.dashboard.conftest import visiting
from tests.outage import away
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop_of_store(store_url: str) -> Iterator[Inbox]:
    """An empty shop, on each store."""
    with shop.opened(store_url) as made:
        yield made


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    """An empty shop, where it is the same on every store."""
    with shop.opened(sqlite_url) as made:
        yield made


def save(inbox: Inbox) -> None:
    """As every process does each ten seconds."""
    perform(inbox.store, lambda: save_activity(inbox.context))


def verdict(page: str) -> str:
    """What the page begins with."""
    found = re.search(r'<section class="verdict (\w+)".*?<p class="big">([^<]+)</p>', page, re.DOTALL)
    assert found, page
    return f"{found[1]}: {found[2]}"


def badges(page: str) -> dict[str, int]:
    """The numbers beside the pages."""
    found = re.findall(r'<a href="/(\w*)"[^>]*><span>[^<]+</span><span class="badge \w+" title="[^"]+">([\d,]+)<', page)
    return {name: int(number.replace(",", "")) for name, number in found}


def test_the_verdict_comes_first_and_leads_to_what_needs_a_person(shop_of_store: Inbox) -> None:
    inbox = shop_of_store
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.VIEWER)
        assert verdict(visitor.get("/").text) == "good: Healthy"
        shop.fill(inbox)
        page = visitor.get("/").text
        found = perform(inbox.store, lambda: standing(inbox.context)).concerns
        assert verdict(page) == f"bad: {len(found)} things need an operator"
        assert page.index('class="verdict') < page.index('class="tiles"')
        assert {one.kind for one in found} == {"stuck", "dead", "blocked", "mismatch", "unhandled"}
        for one in found:
            assert f'<a href="/{html.escape(one.help.page)}">{html.escape(one.what)}</a>' in page
            assert visitor.get(f"/{one.help.page}").status_code == 200, one.kind


def test_every_concern_has_its_page_and_its_runbook(inbox: Inbox) -> None:
    pages = {name for name, _ in NAVIGATION}
    assert {one.page.partition("?")[0] for one in HELP.values()} <= pages
    with visiting(inbox, anonymous="viewer") as visitor:
        assert [one.page for one in HELP.values() if visitor.get(f"/{one.page}").status_code != 200] == []


def test_numbers_beside_the_pages_follow_what_is_done(inbox: Inbox) -> None:
    shop.fill(inbox)
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        before = badges(visitor.get("/audit").text)
        assert before == {"dead": 6, "quarantine": 1, "keys": 1, "workers": 2}
        token = visitor.token("/quarantine/1")
        answer = visitor.post("/resolve", token=token, case="1", resolution="keep-first", reason="a bug of the sender")
        assert badges(answer.text) == {name: number for name, number in before.items() if name != "quarantine"}


def test_problems_keep_the_navigation_for_those_who_are_signed_in(inbox: Inbox) -> None:
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        assert 'aria-label="Pages"' not in visitor.get("/nowhere").text
        visitor.sign_in(shop.VIEWER)
        for path in ("/nowhere", "/messages/999999", "/messages?status=nonsense", "/preview?verb=redrive"):
            assert 'aria-label="Pages"' in visitor.get(path).text, path
        with away(inbox):
            answer = visitor.get("/dead")
            assert (answer.status_code, "cannot be used just now" in answer.text) == (503, True)


def lines(page: str, plot: str) -> dict[str, list[float | None]]:
    """What a plot shows, as a pointer reads it."""
    found = re.search(rf'data-plot="{plot}" data-lines="([^"]+)"', page)
    assert found, plot
    return dict(json.loads(html.unescape(found[1])))


def test_plots_show_the_history(shop_of_store: Inbox) -> None:
    inbox = shop_of_store
    if "history" not in inbox.store.capabilities:
        return  # the page says so
    shop.fill(inbox)
    save(inbox)
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.VIEWER)
        for reach, points in (("hour", 60), ("day", 24), ("week", 168), ("quarter", 90)):
            page = visitor.get(f"/?range={reach}").text
            known = inbox.admin.history(since=RANGES[reach][0], by="day")
            assert sum(lines(page, "throughput")["done"]) == sum(one.done for one in known)  # type: ignore[arg-type]
            assert sum(lines(page, "failures")["dead"]) == sum(one.dead for one in known) > 6  # type: ignore[arg-type]
            assert sum(lines(page, "duplicates")["duplicates stopped"]) == 3  # type: ignore[arg-type]
            assert {len(line) for line in lines(page, "wait").values()} == {points}
            assert len(re.findall(r"<time datetime", page[page.index('class="x"') : page.index("</figure>")])) == 5
        of_type = visitor.get("/types?type=order.paid&range=day").text
        assert sum(lines(of_type, "throughput")["done"]) == 41  # type: ignore[arg-type]
        assert visitor.get("/?range=year").status_code == 400


def test_each_type_has_its_row(inbox: Inbox) -> None:
    shop.fill(inbox)
    save(inbox)
    found = {one.type: one for one in charts.by_type(inbox.admin.history(per="type"), "hour")}
    paid = found["order.paid"]
    assert (paid.known.done, paid.known.dead, paid.known.failed) == (41, 7, 7)
    assert paid.failed_share is not None
    assert round(paid.failed_share) == 15
    assert paid.known.run.count == 41
    with visiting(inbox, anonymous="viewer") as visitor:
        page = visitor.get("/types").text
        assert all(f">{kind}</a>" in page for kind in ("order.paid", "card.charged", "order.shipped"))
        assert re.search(r'data-label="Run p95">[\d.]+ (ms|s)<', page)


def test_a_plot_has_axes_gaps_and_a_readable_end() -> None:
    line = charts.Line("p95", "cool", [None, 0.5, None, 1.0, 3.0])
    chart = charts.Chart("run", "Run", "", [line], is_time=True)
    assert (chart.top, chart.scale) == (4.0, ["4.0 s", "2.0 s", "0"])
    assert chart.path(line) == "M150.0 104.5h.01M450.0 90.0L600.0 32.0"
    assert chart.path(line, closed=True).count("Z") == 2
    assert chart.summary == "p95 3.0 s, at most 3.0 s"
    empty = charts.Chart("x", "X", "", [charts.Line("done", "good", [0.0, 0.0])])
    assert (empty.is_empty, empty.top, charts.Chart("x", "X", "", []).summary) == (True, 1.0, "")
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    assert charts.drawn([], "hour", at).times[-1] == at
    assert charts.drawn([], "quarter", at).ticks[-1] == at.replace(hour=0, minute=0)


def test_handlers_say_their_rules_and_what_is_guaranteed(inbox: Inbox) -> None:
    inbox.on("slow", retry=RetryPolicy(attempts=3), timeout=90)(lambda message: None)  # noqa: ARG005
    with visiting(inbox, anonymous="viewer") as visitor:
        page = visitor.get("/handlers").text
        for part in ("order.paid", "slow", "3 attempts", "1 min 30 s", "<code>order</code>", "opens for", ">none<"):
            assert part in page, part
        level = "weaker" if "durability" not in inbox.store.capabilities else "exactly-once"
        assert level in page


def test_a_program_without_handlers_shows_those_of_running_workers(postgres_url: str) -> None:
    with (
        shop.opened(postgres_url) as inbox,
        Inbox(postgres_url, service="shop") as other,
        visiting(other, anonymous="viewer") as visitor,
    ):
        assert "No handlers" in visitor.get("/handlers").text
        worker = Thread(target=inbox.run)
        worker.start()
        try:
            wait_until(other.admin.workers, message="the worker")
            page = visitor.get("/handlers").text
            assert "order.shipped" in page
            assert "not known here" in page
            shown = visitor.get("/workers").text
            assert "card.charged, order.paid, order.shipped" in shown
            assert re.search(r"in hand, \d+ worker thread", shown)
        finally:
            inbox.stop()
            worker.join()


def test_sources_show_how_late_copies_came(inbox: Inbox) -> None:
    inbox.retention.declare_source("stripe", redelivers_for=timedelta(days=3))
    shop.fill(inbox)
    save(inbox)
    with visiting(inbox, anonymous="viewer") as visitor:
        page = visitor.get("/sources").text
        row = page[page.index(">stripe</a>") :]
        assert re.search(r'data-label="Copies">3<', row)
        assert re.search(r'data-label="Lateness p95">[\d.]+ (ms|s)<', row)
        assert ">kept<" in row


def test_search_finds_errors_and_payloads_for_those_who_may_read_them(shop_of_store: Inbox) -> None:
    inbox = shop_of_store
    seqs = shop.fill(inbox)
    data = {"order": 7777, "amount": 1, "note": "Z-77"}
    last = inbox.receive(source="stripe", id="evt_999", type="order.paid", data=data).seq
    assert [(hit.seq, hit.place) for hit in inbox.admin.search("Z-77")] == [(last, "payload")]
    assert seqs["dead"] in {hit.seq for hit in inbox.admin.search("order 2055 has a negative")}
    assert inbox.admin.search("nothing of this kind") == []
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.READER)
        page = visitor.get("/search?q=Z-77").text
        assert f'href="/messages/{last}"' in page
        assert ">payload<" in page
        assert ">error<" in visitor.get("/search?q=has a negative amount").text
        visitor.forget_me()
        visitor.sign_in(shop.VIEWER)
        assert "No message found" in visitor.get("/search?q=Z-77").text
        assert "No message found" in visitor.get("/search?q=has a negative amount").text


def test_every_link_leads_somewhere(inbox: Inbox) -> None:
    """From page to page, each kind of link once."""
    shop.fill(inbox)
    inbox.admin.pause(everything=True, reason="a fire", actor="ada")
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        ahead, followed, broken = ["/"], set[str](), list[str]()
        while ahead:
            path = ahead.pop()
            page = visitor.get(path)
            if page.status_code not in {200, 303}:
                broken.append(f"{path}: {page.status_code}")
            for link in re.findall(r'href="(/[^"#]*)', page.text):
                alike = re.sub(r"\d+|(?<==)[^&]*", "1", html.unescape(link)) if link != "/messages/0" else link
                if alike not in followed and not link.startswith("/static"):
                    followed.add(alike)
                    ahead.append(html.unescape(link))
        assert broken == []
        assert len(followed) > len(NAVIGATION)
        assert "There is no such page." in visitor.get("/nowhere").text


def test_a_backlog_that_was_not_looked_at_is_not_zero(inbox: Inbox) -> None:
    """While no worker runs none looks at it: the plot has a gap, and at its end what is due now."""
    for number in range(3):
        inbox.receive(source="stripe", id=f"evt_{number}", type="order.paid", data={"order": number, "amount": 1})
    save(inbox)
    with visiting(inbox, anonymous="viewer") as visitor:
        page = visitor.get("/").text
        assert "this minute: due 3<" in page
        assert re.search(r'data-label="Backlog"></td>', page)
    periods = inbox.admin.history(per="type")
    values = {one.name: one.lines[0].values for one in charts.drawn(periods, "hour").charts}
    assert set(values["backlog"]) == {None}
    assert sum(one or 0 for one in values["throughput"]) == 3
    inbox.drain()
    save(inbox)
    values = {one.name: one.lines[0].values for one in charts.drawn(inbox.admin.history(per="type"), "hour").charts}
    assert 0 in values["backlog"]


def test_an_unknown_outcome_leads_to_its_decision(inbox: Inbox) -> None:
    @inbox.on("card.held")
    def held(message: Any, tx: Any) -> None:
        del tx
        message.once("hold", lambda: 1 / 0)

    for number in (1, 2):
        inbox.receive(source="stripe", id=f"held_{number}", type="card.held", data={})
    inbox.drain()
    calls = inbox.admin.effects()
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        page = visitor.get(f"/messages/{calls[0].seq}").text
        found = re.search(r'href="(/effects)#(call-\w+)"', page)
        assert found
        decide = visitor.get(found[1]).text
        assert f'id="{found[2]}"' in decide
        fields = {"token": visitor.token("/effects"), "outcome": "did-not-happen", "reason": "asked the bank"}
        both = [f"{one.seq}:hold" for one in calls]
        done = visitor.post("/settle", **fields, call=both).text
        assert "Recorded: 2 messages" in done
        assert f"verb=redrive&amp;seq={calls[0].seq}&amp;seq={calls[1].seq}" in done
        assert inbox.admin.effects() == []


def test_several_cases_are_decided_together(inbox: Inbox) -> None:
    for number in range(3):
        for amount in (1, 2):
            data = {"order": number, "amount": amount}
            inbox.receive(source="stripe", id=f"evt_{number}", type="order.paid", data=data)
    cases = [str(one.case) for one in inbox.admin.quarantine()]
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        assert visitor.get("/quarantine").text.count('type="checkbox" name="case"') == 3
        fields = {"token": visitor.token("/quarantine"), "resolution": "keep-first", "reason": "a bug of the sender"}
        assert visitor.post("/resolve", **fields).status_code == 400
        done = visitor.post("/resolve", **fields, case=[*cases[:2], "999"]).text
        assert "Decided: 2 messages" in done
        assert "mismatch 999 is not open any more" in done
        assert [str(one.case) for one in inbox.admin.quarantine()] == cases[2:]


@pytest.mark.parametrize("names", [{}, {"Shop": None}, {"login": None}, {"a/b": None}])
def test_names_of_inboxes_must_fit_a_path(sqlite_url: str, names: dict[str, None]) -> None:
    with shop.opened(sqlite_url) as inbox, pytest.raises(ConfigurationError, match="Dashboard\\(\\)"):
        Dashboard(dict.fromkeys(names, inbox), anonymous="viewer")


def test_several_inboxes_in_one_dashboard(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("shop", "billing")]
    with shop.opened(urls[0]) as one, shop.opened(urls[1]) as other:
        seqs = shop.fill(one)
        with visiting({"shop": one, "billing": other}, credentials=shop.PEOPLE) as visitor:
            assert visitor.get("/shop/messages").headers["location"] == "/login"
            visitor.sign_in(shop.OPERATOR)
            page = visitor.get("/").text
            assert re.findall(r'<a href="(/\w+/)">\w+</a></h2>', page) == ["/shop/", "/billing/"]
            assert verdict(page[page.index('href="/billing/">billing</a></h2>') :]) == "good: Healthy"
            here = visitor.get("/shop/messages").text
            assert 'href="/billing/"' in here
            assert 'href="/shop/" aria-current="true"' in here
            assert 'href="/static/style.css"' in here
            assert 'href="/shop/messages" aria-current="page"' in here
            token = visitor.token(f"/shop/preview?verb=discard&seq={seqs['dead']}")
            sent = {"token": token, "verb": "discard", "seqs": str(seqs["dead"]), "reason": "never again"}
            assert "Left alone: 1" in visitor.post("/billing/act", **sent).text
            assert "Discarded: 1 message" in visitor.post("/shop/act", **sent).text
            with away(other):
                page = visitor.get("/").text
                assert verdict(page).startswith("bad: ")
                assert "This inbox cannot be read just now" in page


def test_sessions_of_several_inboxes_are_the_first_ones(tmp_path: Path, filled: tuple[Inbox, dict[str, int]]) -> None:
    with (
        shop.opened(f"sqlite:///{tmp_path / 'other.db'}") as other,
        visiting({"shop": filled[0], "other": other}, credentials=shop.PEOPLE) as visitor,
    ):
        copied = visitor.sign_in(shop.VIEWER).cookie
        assert visitor.get_with(copied, "/other/").status_code == 200
        assert visitor.post("/logout").status_code == 303
        assert visitor.get_with(copied, "/other/").status_code == 303
