"""What the pages say, what the actions do, and that what messages contain is only ever text."""

from __future__ import annotations

import html
import json
import re
import secrets
import socket
import threading
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward import Inbox, Message, Reject
from onceward.dashboard import Dashboard, actions, asked
from onceward.dashboard.app import ROUTES
from onceward.runtime.http_server import serving
from tests.dashboard import shop
from tests.dashboard.conftest import Visitor, visiting

NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>{{9973*9973}}${9973*9973}"


@pytest.fixture
def operator(site: Visitor) -> Visitor:
    """Somebody who may do everything, in a shop that is left as it is."""
    site.forget_me()
    return site.sign_in(shop.OPERATOR)


def test_the_numbers_are_those_of_everywhere_else(operator: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    stats = filled[0].admin.stats()
    page = operator.get("/").text
    for name in ("due", "dead", "quarantined", "done", "duplicates", "outbox_unsent", "unhandled"):
        assert re.search(rf'data-stat="{name}">{getattr(stats, name):,}<', page), name


def test_lists_filter_and_page(operator: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    numbers = re.compile(r'class="seq" href="/messages/(\d+)"')
    first = operator.get("/messages")
    seqs = [int(seq) for seq in numbers.findall(first.text)]
    assert len(seqs) == asked.PAGE
    assert seqs == sorted(seqs, reverse=True)
    older = html.unescape(re.findall(r'href="(/messages\?[^"]*before=\d+)"', first.text)[0])
    assert max(map(int, numbers.findall(operator.get(older).text))) < min(seqs)
    dead = [int(seq) for seq in numbers.findall(operator.get("/messages?status=dead&since=1h&source=stripe").text)]
    assert dead == [row.seq for row in filled[0].admin.messages(status="dead")]
    assert "No messages match" in operator.get("/messages?key=nobody").text


@pytest.mark.parametrize(
    "path",
    [
        "/messages?status=nonsense",
        "/messages?before=x",
        "/messages?before=0",
        "/messages?before=99999999999999999999999999",
        "/messages?since=forever",
        f"/messages?type={'x' * 501}",
        "/preview?verb=delete",
        "/preview?verb=redrive&seq=-1",
        "/messages/1e5",
    ],
)
def test_input_has_bounds(operator: Visitor, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text


def test_a_form_has_bounds(operator: Visitor) -> None:
    assert operator.post("/act", reason="x" * (asked.LARGEST_FORM + 1)).status_code == 413


def test_a_form_that_does_not_come_is_given_up(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers may send the form to sign in; one that never ends holds none of the server's connections."""
    monkeypatch.setattr(asked, "FORM_SECONDS", 0.5)
    where = urlsplit(operator.address)
    head = f"POST /login HTTP/1.1\r\nhost: {where.netloc}\r\norigin: {operator.address}\r\ncontent-length: 100\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(head.encode() + b"n")
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_search_finds_by_number_id_and_key(operator: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    seq = filled[1]["dead"]
    assert operator.get(f"/search?q={seq}").headers["location"] == f"/messages/{seq}"
    assert operator.get("/search?q=evt_55").headers["location"] == f"/messages/{seq}"
    assert operator.get("/search?q=2055").headers["location"] == "/messages?key=2055"
    assert operator.get("/search?q=").headers["location"] == "/messages"


def test_a_payload_is_masked_until_asked_for(operator: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    seq = filled[1]["done"]
    masked = operator.get(f"/messages/{seq}").text
    shown = operator.post(f"/messages/{seq}/payload", token=operator.token(f"/messages/{seq}")).text
    for hidden in ("&#34;amount&#34;", "4bf92f3577b34da6", "confirmed&#34;"):
        assert hidden not in masked
        assert hidden in shown


def test_whoever_sees_a_payload_is_in_the_audit(inbox: Inbox) -> None:
    """D59: a message, both bodies of a case, a dry run; written before anything is shown, and for no other request."""
    seqs = shop.fill(inbox)
    seq, case = seqs["dead"], inbox.admin.quarantine()[0]
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.READER)
        token = visitor.token(f"/messages/{seq}")
        before = len(inbox.admin.audit())
        assert visitor.post(f"/messages/{seq}/payload", token="forged").status_code == 403
        assert visitor.post("/messages/999999/payload", token=token).status_code == 404
        assert len(inbox.admin.audit()) == before
        assert "&#34;amount&#34;: -55" in visitor.post(f"/messages/{seq}/payload", token=token).text
        assert "2700" not in visitor.get(f"/quarantine/{case.case}").text
        assert "2700" in visitor.post(f"/quarantine/{case.case}/payload", token=token).text
        visitor.forget_me()
        visitor.sign_in(shop.OPERATOR)
        visitor.post("/try", token=visitor.token(f"/messages/{seq}"), seq=str(seq))
    lines = [(line.actor, line.action, line.seq) for line in inbox.admin.audit(limit=3)]
    assert lines == [("ada", "read", seq), ("grace", "read", case.seq), ("grace", "read", seq)]


def test_a_viewer_sees_nothing_that_may_quote_a_payload(sqlite_url: str) -> None:
    """D44, D59: one rule on every page, the log's: no keys, no texts of errors, no tracebacks, no payloads."""
    secret = "ann-4711"
    with shop.opened(sqlite_url) as inbox, visiting(inbox, credentials=shop.PEOPLE) as visitor:
        for number in (1, 2):
            data = {"order": secret, "amount": -number}
            inbox.receive(source="stripe", id=f"evt_{number}", type="order.paid", data=data)
        inbox.receive(source="stripe", id="evt_1", type="order.paid", data={"order": secret, f"{secret}-field": 1})
        inbox.drain()
        paths = [
            "/",
            "/messages",
            "/dead",
            "/keys",
            "/quarantine",
            "/outbox",
            "/workers",
            "/types",
            "/handlers",
            "/polls",
            "/metrics",
        ]
        paths += ["/sources", "/audit", "/effects", "/storage", "/search?q=evt_1", "/handlers", "/polls"]
        paths += [f"/messages/{row.seq}" for row in inbox.admin.messages()]
        visitor.sign_in(shop.READER)
        assert sum(secret in visitor.get(path).text for path in paths) >= 7
        visitor.forget_me()
        visitor.sign_in(shop.VIEWER)
        for path in paths:
            answer = visitor.get(path)
            assert (answer.status_code in {200, 303}, secret in answer.text, "Traceback" in answer.text) == (
                True,
                False,
                False,
            ), path
        assert ">Reject<" in visitor.get("/messages").text
        assert "failed on worker" in (page := visitor.get(paths[-1]).text)
        assert ": Reject</p>" in page
        # Nor may one find out by guessing.
        assert visitor.get(f"/messages?key={secret}").status_code == 403
        assert "No message found" in visitor.get(f"/search?q={secret}").text


def test_every_page_shows_what_it_is_about(operator: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    seq = filled[1]["dead"]
    for path, parts in {
        f"/messages/{seq}": ("the bank is back", "has a negative amount", "Traceback", "not tried again"),
        "/dead": ("6 \N{MULTIPLICATION SIGN} order.paid", "has a negative amount"),
        "/quarantine": ("evt_7", "<code>amount</code>"),
        "/quarantine/1": ("<code>amount</code>", "Show the values", "Keep the first"),
        "/keys": ("2055", "next:"),
        "/outbox": ("order.confirmed", "not published yet"),
        "/sources": ("stripe", "carrier"),
        "/storage": ("ledger", "Ids remembered for"),
        "/audit": ("ada", "redrive", "the bank is back"),
        "/workers": ("No worker is running",),
        "/effects": ("No open calls",),
    }.items():
        page = operator.get(path).text
        for part in parts:
            assert part in page, (path, part)
    assert operator.get("/messages/999999").status_code == 404
    assert operator.get("/quarantine/999").status_code == 404
    assert operator.get("/nowhere").status_code == 404


def act(visitor: Visitor, verb: str, query: str, reason: str = "looked at it") -> Any:
    """Preview, then do it, as a person would."""
    page = visitor.get(f"/preview?verb={verb}&{query}").text
    fields = {name: re.search(rf'name="{name}" value="([^"]*)"', page) for name in ("token", "seqs")}
    sent = {name: found[1] for name, found in fields.items() if found}
    return visitor.post("/act", verb=verb, reason=reason, **sent)


def test_bulk_actions_are_previewed_reasoned_and_audited(inbox: Inbox) -> None:
    seqs = shop.fill(inbox)
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        (group,) = inbox.admin.dead_groups()
        preview = visitor.get(f"/preview?verb=redrive&error={group.fingerprint}")
        assert "Redrive 6 messages?" in preview.text
        assert inbox.admin.stats().dead == 6
        assert act(visitor, "redrive", f"error={group.fingerprint}", reason=" ").status_code == 400
        assert inbox.admin.stats().dead == 6
        done = act(visitor, "redrive", f"error={group.fingerprint}")
        assert "Redriven: 6 messages" in done.text
        assert inbox.admin.stats().dead == 0
        assert {(line.actor, line.action, line.reason) for line in inbox.admin.audit(limit=6)} == {
            (shop.OPERATOR.name, "redrive", "looked at it")
        }
        inbox.drain()
        assert "Discarded: 1 message" in act(visitor, "discard", f"seq={seqs['dead']}").text
        assert "Unblocked: 1 message" in act(visitor, "unblock", "key=2054").text
        assert "Left alone: 1" in act(visitor, "discard", f"seq={seqs['done']}").text


def test_two_redrives_at_once_change_each_message_once(inbox: Inbox) -> None:
    shop.fill(inbox)
    seqs = ",".join(str(row.seq) for row in inbox.admin.messages(status="dead"))
    changed: list[int] = []
    with visiting(inbox, credentials=shop.PEOPLE) as first, Visitor(first.address) as second:
        tokens = [visitor.sign_in(shop.OPERATOR).token("/preview?verb=redrive") for visitor in (first, second)]
        start = threading.Barrier(2)

        def click(visitor: Visitor, token: str) -> None:
            start.wait()
            page = visitor.post("/act", token=token, verb="redrive", seqs=seqs, reason="both").text
            changed.append(int(re.findall(r"Redriven: (\d+)", page)[0]))

        threads = [threading.Thread(target=click, args=pair) for pair in zip((first, second), tokens, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(changed) == 6
    assert len([line for line in inbox.admin.audit(limit=50) if line.reason == "both"]) == 6


def test_a_case_and_an_open_call_are_decided(inbox: Inbox) -> None:
    shop.fill(inbox)

    @inbox.on("card.held")
    def held(message: Message, tx: Any) -> None:
        del tx
        message.once("hold", lambda: 1 / 0)

    inbox.receive(source="stripe", id="held", type="card.held", data={})
    inbox.drain()
    (effect,) = inbox.admin.effects()
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        token = visitor.token("/quarantine/1")
        wrong = visitor.post("/resolve", token=token, case="1", resolution="guess", reason="x")
        assert wrong.status_code == 400
        visitor.post("/resolve", token=token, case="1", resolution="keep-first", reason="sender bug")
        assert inbox.admin.quarantine() == []
        late = visitor.post("/resolve", token=token, case="1", resolution="accept-as-new", reason="x")
        assert "not open any more" in late.text
        fields = {"token": token, "call": f"{effect.seq}:hold", "reason": "seen at the bank"}
        for outcome, result in (("perhaps", ""), ("happened", "{")):
            assert visitor.post("/settle", **fields, outcome=outcome, result=result).status_code == 400
        done = visitor.post("/settle", **fields, outcome="happened", result='{"id": 1}')
        assert "Recorded: 1 message" in done.text
        assert inbox.admin.effects() == []
        assert (
            visitor.post("/settle", **(fields | {"call": f"{effect.seq}:none"}), outcome="happened").status_code == 404
        )


def test_a_dry_run_is_shown_and_leaves_nothing(inbox: Inbox) -> None:
    seqs = shop.fill(inbox)
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        token = visitor.token(f"/messages/{seqs['due']}")
        before = inbox.admin.stats()
        page = visitor.post("/try", token=token, seq=str(seqs["done"])).text
        assert "INSERT INTO orders" in page
        assert "update in orders" in page
        assert "Would send" in page
        failed = visitor.post("/try", token=token, seq=str(seqs["dead"])).text
        assert "has a negative amount" in failed
        assert visitor.post("/try", token=token, seq="99999").status_code == 404
        (sent, *_) = inbox.admin.messages(outgoing=True)
        assert visitor.post("/try", token=token, seq=str(sent.seq)).status_code == 409
        assert inbox.admin.stats().done == before.done


def poisoned(inbox: Inbox) -> None:
    """Strangers' strings in every field that a page shows."""
    inbox.on("<b>" + NASTY[:150], key="order")(_refuse)
    kind = "<b>" + NASTY[:150]
    for number in range(2):
        inbox.receive(
            source=f"s{NASTY[:100]}",
            id=f"{number}{NASTY}",
            type=kind,
            data={"order": NASTY, NASTY: NASTY},
            headers={NASTY: NASTY, "x": NASTY},
        )
        inbox.receive(source=f"s{NASTY[:100]}", id=f"{number}{NASTY}", type=kind, data={"order": NASTY, NASTY: "other"})
    inbox.drain()
    (row, *_) = inbox.admin.messages(status="dead")
    inbox.admin.redrive(row.seq, reason=NASTY, actor=NASTY)
    inbox.drain()


def _refuse(message: Message, tx: Any) -> None:
    del message
    with pytest.raises(Exception, match="no_such"):
        tx.execute(f"SELECT '{NASTY.replace(chr(39), chr(39) * 2).replace('%', '')}' FROM no_such_table")
    raise Reject(NASTY)


def test_what_strangers_wrote_is_only_text_on_every_page(sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox:
        poisoned(inbox)
        seq = inbox.admin.messages(status="dead")[0].seq
        with visiting(inbox, credentials=shop.PEOPLE) as visitor:
            visitor.sign_in(shop.OPERATOR)
            shown = 0
            for allowed in ROUTES:
                path = allowed.path.replace("{seq}", str(seq)).replace("{case}", "1")
                if allowed.page is None:
                    continue
                queries = ("verb=redrive", "verb=redrive&status=dead", f"key={NASTY}&type={NASTY}", f"q=0{NASTY}")
                for query in queries if path in {"/messages", "/preview", "/search"} else queries[:1]:
                    text = visitor.get(f"{path}?{query}").text
                    assert "<script>alert" not in text, path
                    assert "<img src=x" not in text, path
                    assert "<svg onload" not in text, path
                    assert "<b>" not in text, path
                    assert "99460729" not in text, path  # what a template would have made of it
                    shown += "&lt;script&gt;alert" in text
            token = visitor.token(f"/messages/{seq}")
            report = visitor.post("/try", token=token, seq=str(seq)).text
            assert "<script>alert" not in report
            assert shown >= 8  # it was really there to be escaped


def test_a_database_that_is_away_is_said(sqlite_url: str) -> None:
    with shop.opened(sqlite_url) as inbox, visiting(inbox, anonymous="viewer") as visitor:
        assert visitor.get("/").status_code == 200
        with inbox.transaction() as tx:
            tx.execute("ALTER TABLE onceward_queue RENAME TO elsewhere")
        answer = visitor.get("/dead")
        assert answer.status_code == 503
        assert "cannot be used just now" in answer.text
        assert "elsewhere" not in answer.text


def test_it_works_where_it_is_mounted(filled: tuple[Inbox, dict[str, int]]) -> None:
    app = Starlette(routes=[Mount("/ops/inbox", Dashboard(filled[0], credentials=shop.PEOPLE))])
    with (
        serving(app, "127.0.0.1:0", stop=lambda: None, patience=timedelta(seconds=1)) as port,
        Visitor(f"http://127.0.0.1:{port}") as visitor,
    ):
        assert visitor.get("/ops/inbox/").headers["location"] == "/ops/inbox/login"
        answer = visitor.post("/ops/inbox/login", name=shop.VIEWER.name, secret=shop.VIEWER.secret)
        assert answer.headers["location"] == "/ops/inbox/"
        assert "path=/ops/inbox" in answer.headers["set-cookie"].lower()
        page = visitor.get("/ops/inbox/messages").text
        assert 'href="/ops/inbox/static/style.css"' in page
        assert 'href="/ops/inbox/messages" aria-current="page"' in page
        assert visitor.get("/ops/inbox/static/style.css").status_code == 200
        assert visitor.get("/ops/inbox/static/../app.py").status_code == 404


def test_bulk_is_limited(monkeypatch: pytest.MonkeyPatch, operator: Visitor) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    page = operator.get("/preview?verb=redrive&status=dead").text
    assert "Redrive 2 messages?" in page
    assert "There are more" in page
    token = operator.token("/preview?verb=redrive")
    answer = operator.post("/act", token=token, verb="redrive", seqs="1,2,3", reason="x")
    assert answer.status_code == 400
    assert json.dumps("at most 2")[1:-1] in answer.text


def test_a_database_role_that_may_only_read_is_enough_to_look(postgres_url: str) -> None:
    with shop.opened(postgres_url) as inbox:
        seq = shop.fill(inbox)["dead"]
        role = f"looking_{secrets.token_hex(4)}"  # of the whole server
        with inbox.transaction() as tx:
            tx.execute(f"CREATE ROLE {role} LOGIN")
            tx.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
            tx.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            looking = Inbox(postgres_url.replace("postgres@", f"{role}@"), service="shop")
            with looking, visiting(looking, credentials=shop.PEOPLE) as visitor:
                visitor.sign_in(shop.OPERATOR)
                for allowed in ROUTES:
                    path = allowed.path.replace("{seq}", str(seq)).replace("{case}", "1")
                    if allowed.page and path not in {"/search", "/preview"}:
                        assert visitor.get(path).status_code == 200, path
                assert act(visitor, "redrive", f"seq={seq}").status_code == 503
            assert inbox.admin.stats().dead == 6
        finally:
            with inbox.transaction() as tx:
                tx.execute(f"DROP OWNED BY {role}")
                tx.execute(f"DROP ROLE {role}")
