"""What an operator stops, corrects, retires and stops in the middle, from the pages; and fifty clicks at once."""

from __future__ import annotations

import html
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard import shop
from tests.dashboard.conftest import Visitor, visiting
from tests.dashboard.test_pages import act
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward import Inbox, Message


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    """An empty shop."""
    with shop.opened(sqlite_url) as made:
        yield made


@pytest.fixture
def operator(inbox: Inbox) -> Iterator[Visitor]:
    """Its dashboard, and an operator."""
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        yield visitor.sign_in(shop.OPERATOR)


def test_pauses_are_made_shown_everywhere_and_ended(inbox: Inbox, operator: Visitor) -> None:
    token = operator.token("/pauses")
    what = {"token": token, "kind": "type", "name": "order.paid"}
    assert operator.post("/pause", **what, reason=" ").status_code == 400
    assert "Paused: type order.paid" in operator.post("/pause", **what, reason="the bank is away").text
    assert "It is paused already" in operator.post("/pause", **what, reason="again").text
    inbox.receive(source="stripe", id="evt_1", type="order.paid", data={"order": 1, "amount": 1})
    assert inbox.drain() == 0
    for page in ("/", "/messages", "/dead", "/nowhere"):
        assert "<strong>type order.paid</strong> by ada" in operator.get(page).text, page
    assert "the bank is away" in operator.get("/handlers").text
    assert "Resumed: type order.paid" in operator.post("/resume", **what, reason="it is back").text
    assert inbox.drain() == 1
    assert "Paused:" not in operator.get("/").text
    shown = operator.get("/pauses").text
    assert "Nothing is paused" in shown
    assert "the bank is away" in shown
    for wrong in ({"kind": "key", "name": "x"}, {"kind": "type", "name": ""}, {"kind": "everything", "name": "x"}):
        assert operator.post("/pause", token=token, reason="x", **wrong).status_code == 400
    everything = {"token": token, "kind": "everything", "name": "", "reason": "maintenance"}
    assert "Paused: everything" in operator.post("/pause", **everything).text


def test_a_body_is_corrected_and_tried_again(inbox: Inbox, operator: Visitor) -> None:
    seq = inbox.receive(source="stripe", id="evt_1", type="order.paid", data={"order": 7, "amount": -5}).seq
    inbox.drain()
    path, token = f"/messages/{seq}/edit", operator.token(f"/messages/{seq}")
    shown = operator.post(path, token=token, step="begin").text
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", shown, re.DOTALL)
    assert found
    text = html.unescape(found[1]).replace("\n", "\r\n").replace("-5", "5")  # as browsers send it
    preview = operator.post(path, token=token, step="preview", body=text).text
    assert re.search(r'class="minus"><code class="break">-5<.*class="plus"><code class="break">5<', preview)
    assert inbox.admin.stats().dead == 1
    assert operator.post(path, token=token, step="apply", body=text).status_code == 400  # without a reason
    done = operator.post(path, token=token, step="apply", body=text, reason="a slip of the sender").text
    assert f"Edited: message {seq}" in done
    inbox.drain()
    assert inbox.admin.stats().dead == 0
    assert (
        inbox.receive(source="stripe", id="evt_1", type="order.paid", data={"order": 7, "amount": 5}).status
        == "duplicate"
    )
    assert {"read", "edit"} <= {line.action for line in inbox.admin.audit()}
    late = operator.post(path, token=token, step="apply", body=text.replace("5", "6"), reason="again").text
    assert "It is neither dead nor retrying any more" in late


def test_a_body_that_is_not_text_is_not_edited_here(inbox: Inbox, operator: Visitor) -> None:
    inbox.on("blob", raw=True)(_refuse)
    seqs = [
        inbox.receive(source="stripe", id=f"evt_{number}", type="blob", body=body).seq
        for number, body in enumerate((b"\xff\xfe\x00", b"x" * 60_000))
    ]
    inbox.drain()
    token = operator.token(f"/messages/{seqs[0]}")
    for seq in seqs:
        assert operator.post(f"/messages/{seq}/edit", token=token, step="begin").status_code == 409
    assert operator.post("/messages/99999/edit", token=token, step="begin").status_code == 404


def _refuse(message: Message) -> None:
    raise ValueError(message.id)


def test_a_consumer_is_retired(inbox: Inbox, operator: Visitor) -> None:
    inbox.receive(source="stripe", id="evt_1", type="order.shipped", data={"order": 1})
    page = operator.get("/unsubscribe?consumer=shop&type=order.shipped").text
    assert "Discard its 1 unfinished message" in page
    fields = {"token": operator.token("/pauses"), "consumer": "shop", "type": "order.shipped", "reason": "gone"}
    assert operator.post("/unsubscribe", **fields).status_code == 409
    done = operator.post("/unsubscribe", **fields, discard="1").text
    assert "Unsubscribed: shop from order.shipped" in done
    assert "No such subscription" in operator.get("/unsubscribe?consumer=shop&type=order.shipped").text


def test_what_runs_is_interrupted(inbox: Inbox, operator: Visitor) -> None:
    started, ended = threading.Event(), threading.Event()

    @inbox.on("slow")
    def slow(message: Message) -> None:
        del message
        started.set()
        ended.wait(60)

    seq = inbox.receive(source="stripe", id="evt_1", type="slow", data={}).seq
    worker = threading.Thread(target=inbox.run)
    worker.start()
    try:
        wait_until(started.is_set, message="the handler")
        assert "Interrupt\N{HORIZONTAL ELLIPSIS}" in operator.get(f"/messages/{seq}").text
        assert "Interrupted: 1 message" in act(operator, "interrupt", f"seq={seq}").text
        ended.set()
        detail = inbox.admin.message(seq)
        assert detail is not None
        assert detail.status == "dead"
    finally:
        ended.set()
        inbox.stop()
        worker.join()


def test_bulk_is_for_what_an_action_is_for(inbox: Inbox, operator: Visitor) -> None:
    shop.fill(inbox)
    assert "Retry now 1 message?" in operator.get("/preview?verb=retry-now&status=retrying").text
    assert "Discard 1 message?" in operator.get("/preview?verb=discard&status=unhandled").text
    assert "made due: 1 message" in act(operator, "retry-now", "status=retrying").text.lower()
    refused = operator.get("/preview?verb=redrive&status=done")
    assert (refused.status_code, "redrive is for messages that are dead" in refused.text) == (400, True)


CLICKS = 50
AT_ONCE = 10


def clicked(visitor: Visitor, path: str, told: str, **fields: Any) -> list[re.Match[str] | None]:
    """Fifty requests of one form, ten at a time; what each page says about it."""
    token, start = visitor.token("/pauses"), threading.Barrier(AT_ONCE)

    def click(number: int) -> re.Match[str] | None:
        if number < AT_ONCE:
            start.wait()
        page = visitor.post(path, token=token, reason=f"click {number}", **fields)
        assert page.status_code == 200
        return re.search(told, page.text)

    with ThreadPoolExecutor(AT_ONCE) as clicks:
        return list(clicks.map(click, range(CLICKS)))


def decisions(inbox: Inbox) -> list[tuple[str, int | None]]:
    """What the audit has of them."""
    lines = inbox.admin.audit(limit=1000)
    return sorted((line.action, line.seq) for line in lines if "click " in line.reason)


@pytest.mark.parametrize("verb", ["redrive", "discard", "retry-now"])
def test_fifty_clicks_at_once_change_each_message_once(inbox: Inbox, operator: Visitor, verb: str) -> None:
    """Each of fifty requests decides about the same messages: every message is changed by one of them."""
    shop.fill(inbox)
    status = "retrying" if verb == "retry-now" else "dead"
    seqs = [row.seq for row in inbox.admin.messages(status=status)]
    fields: dict[str, Any] = {"verb": verb, "seqs": ",".join(map(str, seqs))}
    found = clicked(operator, "/act", r'role="status">[^:<]+: (\d+) message', **fields)
    assert sum(int(one[1]) for one in found if one) == len(seqs)
    assert None not in found
    assert [seq for _, seq in decisions(inbox)] == sorted(seqs)


def test_fifty_clicks_at_once_interrupt_a_message_once(inbox: Inbox, operator: Visitor) -> None:
    started, ended = threading.Event(), threading.Event()

    @inbox.on("slow")
    def slow(message: Message) -> None:
        del message
        started.set()
        ended.wait(60)

    seq = inbox.receive(source="stripe", id="evt_1", type="slow", data={}).seq
    worker = threading.Thread(target=inbox.run)
    worker.start()
    try:
        wait_until(started.is_set, message="the handler")
        found = clicked(operator, "/act", r"Interrupted: 1 message", verb="interrupt", seqs=str(seq))
        assert sum(map(bool, found)) == 1
        assert decisions(inbox) == [("interrupt", seq)]
    finally:
        ended.set()
        inbox.stop()
        worker.join()


def test_fifty_clicks_at_once_pause_once_and_edit_once(inbox: Inbox, operator: Visitor) -> None:
    shop.fill(inbox)
    paused = clicked(operator, "/pause", r"Paused: type", kind="type", name="order.paid")
    assert (sum(map(bool, paused)), len(inbox.admin.pauses())) == (1, 1)
    resumed = clicked(operator, "/resume", r"Resumed: type", kind="type", name="order.paid")
    assert (sum(map(bool, resumed)), len(inbox.admin.pauses())) == (1, 0)
    seq = next(row.seq for row in inbox.admin.messages(status="dead"))
    detail = inbox.admin.message(seq)
    assert detail is not None
    assert detail.body is not None
    body = json.dumps({**json.loads(detail.body), "amount": 7})
    edited = clicked(operator, f"/messages/{seq}/edit", r"Edited: message", step="apply", body=body)
    assert sum(map(bool, edited)) == 1
    assert [action for action, _ in decisions(inbox)] == ["edit", "pause", "resume"]
