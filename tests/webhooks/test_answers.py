"""What a sender gets, on a real server and real stores: 2xx after the commit, and nothing else means stored (W14)."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceward import ConfigurationError, Inbox, Settings
from onceward.domain.identity import UNIDENTIFIED
from onceward.message import Delivery
from onceward.webhooks import ECHO, GitHub, Limits, Slack, Stripe
from onceward.webhooks.request import Request
from tests.contract.harness import Shop, in_threads
from tests.outage import away
from tests.servers import FaultProxy
from tests.waiting import wait_until
from tests.webhooks.conftest import Caller, served, traces
from tests.webhooks.senders import (
    NOW,
    OTHER,
    SECRET,
    SENDERS,
    Sender,
    Signed,
    event,
    sign_github,
    sign_slack,
    sign_stripe,
)

PUBLIC_OTHER = "whpk_" + base64.b64encode(bytes([7]) * 32).decode()
each_sender = pytest.mark.parametrize("sender", SENDERS, ids=lambda sender: sender.name)


def post(caller: Caller, path: str, signed: Signed) -> Any:
    return caller.post(path, signed.body, signed.headers)


@each_sender
def test_an_event_is_stored_once_and_takes_effect_once(shop: Shop, sender: Sender, monkeypatch: Any) -> None:
    """First `accepted`, then `duplicate`, both 200; the body is the bytes that came; one effect."""
    path = f"/{sender.name}"
    hooks = shop.inbox.webhooks({path: sender.verifier(sender.secrets)})
    monkeypatch.setattr(hooks.hooks, "_clock", lambda: NOW)
    signed = sender.sign(event("evt_1", text="grüße"), "evt_1")
    with served(hooks) as caller:
        answers = [post(caller, path, signed) for _ in range(3)]
    assert [(one.status, one.json) for one in answers] == [
        (200, {"status": "accepted"}),
        (200, {"status": "duplicate"}),
        (200, {"status": "duplicate"}),
    ]
    (seq,) = shop.inbox.admin.find(hooks.hooks.endpoints[path].source, "evt_1")
    detail = shop.detail(seq)
    assert (detail.body, detail.type, detail.duplicates) == (signed.body, "order.paid", 2)
    shop.drain()
    assert shop.effects() == ["evt_1"]


def fresh(message_id: str = "evt_1", **more: Any) -> Signed:
    return sign_stripe(event(message_id, **more), message_id, now=time.time())


def test_many_copies_at_once_are_one_message(shop: Shop, caller: Caller) -> None:
    signed = fresh()
    answers = in_threads(*(lambda: post(caller, "/stripe", signed) for _ in range(8)))
    assert [one.status for one in answers] == [200] * 8
    assert sorted(one.json["status"] for one in answers) == ["accepted", *["duplicate"] * 7]
    shop.drain()
    assert shop.effects() == ["evt_1"]


def test_a_known_id_with_other_bytes_is_quarantined_and_answered_with_2xx(shop: Shop, caller: Caller) -> None:
    """The sender must not come again and again; a person looks at it, and it never runs."""
    assert post(caller, "/stripe", fresh()).json == {"status": "accepted"}
    again = post(caller, "/stripe", fresh(amount=10**6))
    assert (again.status, again.json) == (200, {"status": "mismatch"})
    shop.drain()
    assert shop.effects() == ["evt_1"]
    (case,) = shop.inbox.admin.quarantine()
    assert case.id == "evt_1"
    shop.inbox.admin.resolve(case.case, "discard", reason="test")


def test_a_bad_signature_leaves_no_trace_and_learns_nothing(
    shop: Shop, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """Every reason has the same answer; the log knows which, and quotes neither body nor secret."""
    caplog.set_level(logging.DEBUG, logger="onceward")
    before = traces(shop.inbox)
    old = sign_stripe(event("canary-body"), "evt_1", now=time.time() - 3600)
    wrong = [
        sign_stripe(event("canary-body"), "evt_1", now=time.time(), secret=OTHER),
        old,
        fresh().changed(stripe_signature=None),
        fresh().changed(stripe_signature="t=1,v1=zz"),
        fresh().changed(stripe_signature="grüße"),
        fresh().changed(body=event("canary-body")),
    ]
    answers = [post(caller, "/stripe", one) for one in wrong]
    assert {(one.status, one.body) for one in answers} == {
        (401, b'{"error": "the signature is missing, wrong or too old"}')
    }
    assert traces(shop.inbox) == before
    assert "canary-body" not in caplog.text
    assert SECRET not in caplog.text
    assert "no secret made this signature" in caplog.text
    assert "ago" in caplog.text


def test_one_tenants_secret_opens_no_other_ones_door(shop: Shop) -> None:
    """The source is the endpoint's, never the request's: one tenant cannot use up another's ids (HZ-13)."""
    hooks = shop.inbox.webhooks({"/a": Stripe(SECRET, source="a"), "/b": Stripe(OTHER, source="b")})
    with served(hooks) as caller:
        assert post(caller, "/b", fresh()).status == 401
        assert post(caller, "/a", fresh()).json == {"status": "accepted"}
        theirs = sign_stripe(event("evt_1"), "evt_1", now=time.time(), secret=OTHER)
        assert post(caller, "/b", theirs).json == {"status": "accepted"}


def test_two_senders_under_one_source_are_refused(sqlite_url: str) -> None:
    """D57: an id of one account would turn an event of the other into a mismatch. One sender may have two paths."""
    with Inbox(sqlite_url) as inbox:
        for sender in SENDERS:
            mine, same = sender.verifier(sender.secrets), sender.verifier(sender.secrets)
            other = PUBLIC_OTHER if sender.name == "ed25519" else sender.other
            said = f"'/a' and '/b' have different secrets and the same source '{mine.source}'.*source="
            with pytest.raises(ConfigurationError, match=said):
                inbox.webhooks({"/a": mine, "/b": sender.verifier(other)})
            assert len(inbox.webhooks({"/a": mine, "/b": same}).hooks.endpoints) == 2
            inbox.ingress.served.clear()
        inbox.webhooks({"/a": Stripe(SECRET)})
        with pytest.raises(ConfigurationError, match="'/a' and '/b'"):
            inbox.webhooks({"/b": Stripe(OTHER)})
        with pytest.raises(ConfigurationError, match="different secrets"):
            inbox.webhooks({"/b": Stripe([SECRET, OTHER])})
        assert len(inbox.ingress.served) == 1
        inbox.webhooks({"/b": Stripe(OTHER, source="stripe-b")})


def test_the_handshake_is_answered_and_stored_nowhere(shop: Shop, caller: Caller) -> None:
    before = traces(shop.inbox)
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB10FEMAGAZd4FyFQ"}).encode()
    answer = post(caller, "/slack", sign_slack(body, "", now=time.time()))
    assert (answer.status, answer.body) == (200, b"3eZbrw1aB10FEMAGAZd4FyFQ")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert post(caller, "/slack", sign_slack(body, "", now=time.time(), secret=OTHER)).status == 401
    assert traces(shop.inbox) == before


def test_only_a_short_list_of_headers_is_stored(shop: Shop, caller: Caller) -> None:
    extra = {"authorization": "Bearer canary", "cookie": "canary", "traceparent": "00-1-2-01", "x-other": "canary"}
    forged = {"onceward-unsigned": "nothing", "onceward-echo-of": "canary"}
    signed = sign_github(event("d-1"), "d-1")
    assert caller.post("/github", signed.body, {**signed.headers, **extra, **forged}).status == 200
    (seq,) = shop.inbox.admin.find("github", "d-1")
    assert dict(shop.detail(seq).headers) == {
        "content-type": "application/json",
        "traceparent": "00-1-2-01",
        "x-github-event": "order.paid",
        "onceward-unsigned": "id,type",
    }


UNREADABLE = (
    b'{"id": "e", "type": "order.paid", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"id": "e", "type": "order.paid", "x": "\\u0000"}',
    b'{"id": "e", "type": "order.paid", "x": "\\ud800"}',
    b'{"id": "e", "type": "order.paid", "x": NaN}',
    b'{"id": "e", "type": "order.paid", "x": ' + b"9" * 5000 + b"}",
    b'{"id": "e", "id": "f", "type": "order.paid"}',
    b"not json",
    b"[]",
    b"",
)


@each_sender
def test_what_is_authentic_is_stored_whatever_it_holds(shop: Shop, sender: Sender, monkeypatch: Any) -> None:
    """D55: byte by byte, once; it ends dead with a reason, or waits with one where nobody can say whose it is."""
    path = f"/{sender.name}"
    hooks = shop.inbox.webhooks({path: sender.verifier(sender.secrets)})
    monkeypatch.setattr(hooks.hooks, "_clock", lambda: NOW)
    source = hooks.hooks.endpoints[path].source
    with served(hooks) as caller:
        for number, body in enumerate(UNREADABLE):
            signed = sender.sign(body, f"evt_{number}")
            assert [post(caller, path, signed).json["status"] for _ in range(2)] == ["accepted", "duplicate"], body[:60]
    shop.drain()
    rows = shop.inbox.admin.messages(source=source)
    assert sorted(shop.detail(row.seq).body or b"" for row in rows) == sorted(UNREADABLE)
    for row in rows:
        detail = shop.detail(row.seq)
        if row.type == UNIDENTIFIED:
            assert (row.status, bool(detail.headers["onceward-reason"])) == ("unhandled", True)
        else:  # its type is in a header
            assert (row.status, sender.name) in {(s, n) for s in ("dead", "done") for n in ("github", "shopify")}
            assert row.status == "dead" or detail.body == b"[]"


def test_an_id_or_type_that_cannot_be_stored_or_is_not_there_has_a_stand_in(shop: Shop, caller: Caller) -> None:
    """D55: ids that can be read stay what tells events apart; else the bytes do."""
    long, control, body = "e" * 1025, "e\u0007", event("")
    for sent in (event(long), event(control), body, event("t", type="t" * 256), event("u", type="\u0085")):
        signed = sign_stripe(sent, "", now=time.time())
        assert [post(caller, "/stripe", signed).json["status"] for _ in range(2)] == ["accepted", "duplicate"]
    other = sign_stripe(event(long, amount=1), "", now=time.time())
    assert post(caller, "/stripe", other).json == {"status": "mismatch"}
    found = {row.id: row.type for row in shop.inbox.admin.messages(source="stripe")}
    stand_ins = {"sha256:" + hashlib.sha256(raw).hexdigest() for raw in (long.encode(), control.encode(), body)}
    assert found == {**dict.fromkeys(stand_ins, "order.paid"), "t": UNIDENTIFIED, "u": UNIDENTIFIED}
    (case,) = shop.inbox.admin.quarantine()
    shop.inbox.admin.resolve(case.case, "discard", reason="test")


def test_a_body_that_only_the_handler_can_judge_is_stored(shop: Shop, caller: Caller) -> None:
    """Where the id is in a header the body is not read here: what cannot be parsed ends dead, and is seen (HZ-66)."""
    assert caller.post("/github", b"{", sign_github(b"{", "d-1").headers).status == 200
    shop.drain()
    (seq,) = shop.inbox.admin.find("github", "d-1")
    assert shop.status(seq) == "dead"


# Ids that are not signed


@pytest.mark.parametrize(
    "sender", [one for one in SENDERS if one.name in ("github", "shopify")], ids=lambda one: one.name
)
def test_a_body_that_comes_again_under_a_new_unsigned_id_is_taken_and_marked(shop: Shop, sender: Sender) -> None:
    """Equal genuine events exist, so it is not refused; but whoever replays a signed body is seen (W07)."""
    path, body = f"/{sender.name}", event("same")
    hooks = shop.inbox.webhooks({path: sender.verifier(sender.secrets)})
    with served(hooks) as caller:
        answers = [post(caller, path, sender.sign(body, one)).json["status"] for one in ("d-1", "d-1", "d-2", "d-2")]
        assert post(caller, path, sender.sign(event("other"), "d-3")).json["status"] == "accepted"
    assert answers == ["accepted", "duplicate", "accepted", "duplicate"]
    marks = {}
    for message_id in ("d-1", "d-2", "d-3"):
        (seq,) = shop.inbox.admin.find(sender.name, message_id)
        marks[message_id] = shop.detail(seq).headers.get(ECHO)
    assert marks == {"d-1": None, "d-2": "d-1", "d-3": None}


def test_a_first_seen_body_is_forgotten_after_its_window(shop: Shop) -> None:
    """The table stays as large as its window; another source's window is its own."""

    def seen(source: str, body: str, message_id: str, hours: float) -> str:
        unsigned = Delivery.of(source=source, id=message_id, type="x", body=body.encode(), echo_window=hours * 3600)
        receipt = shop.inbox._receiver.receive(unsigned)  # as webhooks pass it
        return shop.detail(receipt.seq).headers.get(ECHO, message_id)

    assert seen("a", "x", "1", 1) == "1"
    assert seen("a", "x", "2", 1) == "1"
    assert seen("b", "x", "3", 1) == "3"
    assert seen("a", "x", "4", -1) == "4"  # its window is over: the newcomer is the first now
    assert shop.count("first_seen") == 1  # and what is older than the window goes beside it
    assert seen("b", "x", "5", 1) == "3"


def test_a_replay_without_its_unsigned_headers_is_marked_too(shop: Shop, caller: Caller) -> None:
    """D55: whoever has a signed body may leave out what is not signed; that hides nothing."""
    assert post(caller, "/github", sign_github(b"{}", "d-1")).status == 200
    stripped = sign_github(b"{}", "").changed(x_github_delivery=None, x_github_event=None)
    assert post(caller, "/github", stripped).json == {"status": "accepted"}
    (row,) = shop.inbox.admin.messages(type=UNIDENTIFIED)
    assert shop.detail(row.seq).headers[ECHO] == "d-1"


def test_many_copies_of_a_body_under_many_ids_at_once(shop: Shop, caller: Caller) -> None:
    """One is the first, all others are marked with it; nobody waits for ever."""
    answers = in_threads(*(lambda n=n: post(caller, "/github", sign_github(b"{}", f"d-{n}")) for n in range(8)))
    assert [one.json["status"] for one in answers] == ["accepted"] * 8
    marks = [shop.detail(shop.inbox.admin.find("github", f"d-{n}")[0]).headers.get(ECHO) for n in range(8)]
    first = f"d-{marks.index(None)}"
    assert [mark for mark in marks if mark] == [first] * 7


# The database is away


@pytest.mark.parametrize(
    "sender", [one for one in SENDERS if one.name in ("github", "shopify")], ids=lambda one: one.name
)
def test_unsigned_ids_wait_in_the_spool_and_are_looked_at_when_they_are_stored(
    store_url: str, tmp_path: Path, sender: Sender
) -> None:
    """D07: GitHub does not come again by itself. A replay is marked as it would have been with the database there."""
    path = f"/{sender.name}"
    soon = Settings(poll=timedelta(milliseconds=50))
    with Shop(store_url, "def", settings=soon, spool=tmp_path / "spool") as shop:
        shop.handle()
        with served(shop.inbox.webhooks({path: sender.verifier(sender.secrets)})) as caller:

            def posted(*ids: str) -> list[str]:
                return [post(caller, path, sender.sign(event(one[0]), one)).json["status"] for one in ids]

            assert posted("a-1") == ["accepted"]
            with away(shop.inbox):
                assert posted("a-2", "b-1", "b-2", "a-1") == ["spooled"] * 4
            wait_until(lambda: not shop.inbox._receiver.spooling.waiting, message="an empty spool")
            assert posted("b-3", "b-2") == ["accepted", "duplicate"]
        found = {
            row.id: shop.detail(row.seq).headers.get(ECHO) for row in shop.inbox.admin.messages(source=sender.name)
        }
        assert found == {"a-1": None, "a-2": "a-1", "b-1": None, "b-2": "b-1", "b-3": "b-1"}
        shop.drain()
        assert len(shop.effects()) == len(found)


def test_while_the_database_is_away_senders_are_told_to_come_again(
    postgres_proxy: FaultProxy, proxied_postgres_url: str
) -> None:
    """503 with Retry-After, never 2xx; later the same delivery is taken. Bad signatures are still 401."""
    inbox = Inbox(proxied_postgres_url)
    inbox.migrate()
    with served(inbox.webhooks({"/stripe": Stripe(SECRET)})) as caller:
        assert post(caller, "/stripe", fresh("evt_0")).status == 200
        postgres_proxy.cut()
        away = post(caller, "/stripe", fresh())
        assert (away.status, int(away.headers["retry-after"]) > 0) == (503, True)
        assert post(caller, "/stripe", fresh().changed(stripe_signature="x")).status == 401
        postgres_proxy.heal()
        # The pool may just have begun a pause between two attempts to connect: until it is over, senders come again.
        wait_until(lambda: post(caller, "/stripe", fresh()).status == 200, message="the delivery to be taken")
        assert post(caller, "/stripe", fresh()).json == {"status": "duplicate"}
    inbox.close()


def test_a_database_that_hangs_does_not_hang_the_sender(postgres_proxy: FaultProxy, proxied_postgres_url: str) -> None:
    """Answered in time although nothing comes back; what was committed meanwhile is a duplicate afterwards."""
    inbox = Inbox(proxied_postgres_url)
    inbox.migrate()
    hooks = inbox.webhooks({"/stripe": Stripe(SECRET)}, limits=Limits(store=timedelta(seconds=1)))
    with served(hooks) as caller:
        assert post(caller, "/stripe", fresh("evt_0")).status == 200
        postgres_proxy.freeze()
        begun = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda n: post(caller, "/stripe", fresh(f"evt_{n}")), range(1, 21)))
        assert [one.status for one in answers] == [503] * 20
        assert time.monotonic() - begun < 8
        postgres_proxy.thaw()
        for number in range(1, 21):
            assert post(caller, "/stripe", fresh(f"evt_{number}", again=1)).status == 200
        assert hooks._held == 0
    inbox.close()


def test_a_commit_whose_answer_is_lost_is_found_by_the_next_delivery(
    postgres_proxy: FaultProxy, proxied_postgres_url: str
) -> None:
    inbox = Inbox(proxied_postgres_url)
    inbox.migrate()
    signed = fresh()
    with served(inbox.webhooks({"/stripe": Stripe(SECRET)})) as caller:
        assert post(caller, "/stripe", fresh("evt_0")).status == 200
        postgres_proxy.drop_reply_after(b"COMMIT")
        first = post(caller, "/stripe", signed)
        assert postgres_proxy.hits == 1
        assert first.status in (200, 503)
        assert post(caller, "/stripe", signed).json == {"status": "duplicate"}
    inbox.close()


def test_without_tables_nothing_is_answered_with_2xx(postgres_url: str) -> None:
    """On a server the tables are made by command; SQLite has them from the first delivery on."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")  # the fixture's has them
        connection.execute("CREATE SCHEMA public")
    inbox = Inbox(postgres_url)
    with served(inbox.webhooks({"/stripe": Stripe(SECRET)})) as caller:
        answer = post(caller, "/stripe", fresh())
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        inbox.migrate()
        assert post(caller, "/stripe", fresh()).status == 200
    inbox.close()


def test_a_bug_of_ours_is_a_500_without_a_word_about_it(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET)})

    def broken(_: Any, request: Request, __: float) -> Any:
        raise RuntimeError(request.body)

    monkeypatch.setattr(Stripe, "verify", broken)
    with served(hooks) as caller:
        answer = post(caller, "/stripe", fresh("canary"))
    assert (answer.status, answer.json) == (500, {"error": "the receiver failed"})
    assert "canary" not in caplog.text
    assert "RuntimeError" in caplog.text


def test_more_than_the_rate_of_an_endpoint_is_told_when_to_come_again(sqlite_url: str) -> None:
    """W11: before the signature is looked at, and for this endpoint alone; nothing of it is stored."""
    with Shop(sqlite_url, "def") as shop:
        hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET), "/github": GitHub(SECRET)}, limits=Limits(rate=1 / 60))
        with served(hooks) as caller:
            assert post(caller, "/stripe", fresh("evt_1")).status == 200
            refused = post(caller, "/stripe", fresh("evt_2"))
            assert refused.status == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert post(caller, "/github", sign_github(event("evt_3"), "evt_3")).status == 200
        assert shop.inbox.admin.find("stripe", "evt_2") == []


def test_a_retention_that_is_shorter_than_the_senders_patience_is_refused(sqlite_url: str) -> None:
    """R31: each verifier says how late its sender may send a copy."""
    day = timedelta(days=1)
    with Inbox(sqlite_url, settings=Settings(dedupe_retention=day, body_retention=day)) as inbox:
        with pytest.raises(ConfigurationError, match=r"'stripe' may redeliver for up to 30 days.*dedupe_retention"):
            inbox.webhooks({"/stripe": Stripe(SECRET)})
        assert inbox.ingress.served == []
        inbox.webhooks({"/slack": Slack(SECRET)})
        assert inbox.context.registry.sources == {"slack": Slack.redelivery}
