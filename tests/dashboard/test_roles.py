"""Every route with every role: what each may do is written here by hand, and each form is a real one.

Invariant: the table is the whole dashboard. A route or a method that is not in it fails the test, and so does a role
that may do more or less than the table says: whoever may not is refused although form, fields and token are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Mount, Route

from onceward import Inbox, Message, Reject
from onceward.dashboard import Credential, Dashboard, Person
from onceward.dashboard.access import COOKIE, Access
from onceward.dashboard.app import HEADERS
from tests.dashboard import shop
from tests.dashboard.conftest import Visitor, visiting

SENT_AWAY = 303
"""To the page where one signs in."""
ANYBODY = dict.fromkeys(("nobody", "viewer", "reader", "operator"), 200)
SIGNED_IN = ANYBODY | {"nobody": SENT_AWAY}
READERS = SIGNED_IN | {"viewer": 403}
OPERATORS = READERS | {"reader": 403}
WHO: dict[str, Credential | None] = {
    "nobody": None,
    "viewer": shop.VIEWER,
    "reader": shop.READER,
    "operator": shop.OPERATOR,
}


@dataclass(frozen=True)
class Seen:
    """What a change would be seen by."""

    dead: int
    cases: int
    open_calls: int
    audit: int
    pauses: int
    subscribed: int


@dataclass(frozen=True)
class Case:
    """A route with a method: a request that is right in everything, and what each role gets."""

    method: str
    route: str
    wanted: dict[str, int]
    query: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    changes: Callable[[Seen, Seen], bool] = lambda before, after: before == after
    """What is to be seen afterwards where it was allowed; where it was refused, nothing is."""


def looked_at(before: Seen, after: Seen) -> bool:
    return after == replace(before, audit=before.audit + 1)


PAGES = (
    "/ /types /messages /messages/{seq} /dead /quarantine /keys /effects /handlers /workers /pauses /polls /outbox "
    "/sources /storage"
)
TABLE = (
    *(Case("GET", page, SIGNED_IN) for page in PAGES.split()),
    Case("GET", "/audit", SIGNED_IN),
    Case("GET", "/metrics", SIGNED_IN),
    Case("GET", "/search", SIGNED_IN, query="q=no-such-id"),
    Case("GET", "/quarantine/{case}", READERS),
    Case("GET", "/preview", OPERATORS, query="verb=redrive&seq={seq}"),
    Case("POST", "/messages/{seq}/payload", READERS, changes=looked_at),
    Case("POST", "/quarantine/{case}/payload", READERS, changes=looked_at),
    Case("POST", "/messages/{seq}/edit", OPERATORS, fields={"step": "begin"}, changes=looked_at),
    Case("POST", "/try", OPERATORS, fields={"seq": "{seq}"}, changes=looked_at),
    Case(
        "POST",
        "/act",
        OPERATORS,
        fields={"verb": "discard", "seqs": "{seq}", "reason": "never again"},
        changes=lambda before, after: after.dead == before.dead - 1,
    ),
    Case(
        "POST",
        "/resolve",
        OPERATORS,
        fields={"case": "{case}", "resolution": "keep-first", "reason": "a bug of the sender"},
        changes=lambda before, after: after.cases == before.cases - 1,
    ),
    Case(
        "POST",
        "/settle",
        OPERATORS,
        fields={"call": "{held}:hold", "outcome": "happened", "result": "1", "reason": "seen at the bank"},
        changes=lambda before, after: after.open_calls == before.open_calls - 1,
    ),
    Case(
        "POST",
        "/pause",
        OPERATORS,
        fields={"kind": "type", "name": "card.charged", "reason": "the bank is away"},
        changes=lambda before, after: after.pauses == before.pauses + 1,
    ),
    Case(
        "POST",
        "/resume",
        OPERATORS,
        fields={"kind": "type", "name": "card.charged", "reason": "the bank is back"},
        changes=lambda before, after: after.pauses == before.pauses - 1,
    ),
    Case("GET", "/unsubscribe", OPERATORS, query="consumer=shop&type=order.refunded"),
    Case(
        "POST",
        "/unsubscribe",
        OPERATORS,
        fields={"consumer": "shop", "type": "order.shipped", "discard": "1", "reason": "retired"},
        changes=lambda before, after: after.subscribed == before.subscribed - 1,
    ),
    Case("GET", "/login", ANYBODY),
    Case("GET", "/static", ANYBODY, query="style.css"),
    Case("POST", "/login", dict.fromkeys(ANYBODY, 401), fields={"name": "ada", "secret": "not-her-secret-123"}),
    Case("POST", "/logout", dict.fromkeys(ANYBODY, 303)),
)


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    """A shop with something of everything, and a call whose outcome is not known."""
    with shop.opened(sqlite_url) as made:

        @made.on("card.held")
        def held(message: Message, tx: Any) -> None:
            del tx
            message.once("hold", lambda: 1 / 0)

        yield made


def seen(inbox: Inbox) -> Seen:
    return Seen(
        inbox.admin.stats().dead,
        len(inbox.admin.quarantine()),
        len(inbox.admin.effects()),
        len(inbox.admin.audit(limit=1000)),
        len(inbox.admin.pauses()),
        sum(not one.retired for one in inbox.admin.subscriptions("shop")),
    )


def token_of(visitor: Visitor, who: Credential | None) -> str:
    """The token of this person's session, whether or not a page shows it to them."""
    if who is None:
        return "of nobody"
    people = Access(shop.PEOPLE, anonymous=None, has_ended=lambda _: False)
    cookie = f"{COOKIE}={visitor.cookie}".encode()
    return people.token(Request({"type": "http", "headers": [(b"cookie", cookie)]}), Person(who.name, who.role))


def test_the_table_is_the_whole_dashboard(inbox: Inbox) -> None:
    found: set[tuple[str, str]] = set()
    for route in Dashboard(inbox, credentials=shop.PEOPLE)._app.routes:
        if isinstance(route, Mount):
            found.add(("GET", route.path))
        else:
            assert isinstance(route, Route)
            assert route.methods is not None
            found |= {(method, route.path) for method in route.methods - {"HEAD"}}
    listed = [(case.method, case.route) for case in TABLE]
    assert sorted(found) == sorted(listed)


def test_every_route_with_every_role(inbox: Inbox) -> None:
    """Those who may least come first: nothing has changed when the operator comes, and then it does."""
    seqs = shop.fill(inbox)
    held = inbox.receive(source="stripe", id="held", type="card.held", data={}).seq
    inbox.drain()
    names = {"seq": str(seqs["dead"]), "case": str(inbox.admin.quarantine()[0].case), "held": str(held)}

    def named(text: str) -> str:
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    before = seen(inbox)
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        for role, who in WHO.items():
            visitor.forget_me()
            if who:
                visitor.sign_in(who)
            for case in TABLE:
                path = named(case.route)
                if case.method == "GET":
                    joint = "/" if path == "/static" else "?"
                    answer = visitor.get(f"{path}{joint}{named(case.query)}")
                else:
                    fields = {name: named(value) for name, value in case.fields.items()}
                    answer = visitor.post(path, token=token_of(visitor, who), **fields)
                what = (role, case.method, path)
                assert answer.status_code == case.wanted[role], what
                if who is None and case.wanted[role] == SENT_AWAY and case.route != "/logout":
                    assert answer.headers["location"] == "/login", what
                for name, value in HEADERS.items():
                    assert answer.headers[name] == value, (what, name)
                after = seen(inbox)
                assert case.changes(before, after) if case.wanted[role] == 200 else after == before, what
                before = after
        assert before.open_calls == 0


def test_other_methods_do_nothing(inbox: Inbox) -> None:
    allowed = {(case.method, case.route) for case in TABLE}
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        for route in {case.route for case in TABLE} - {"/static"}:
            for method in ("GET", "POST", "DELETE"):
                if (method, route) not in allowed:
                    path = route.replace("{seq}", "1").replace("{case}", "1")
                    assert visitor.request(method, path).status_code == 405, (method, path)


CANARIES = {
    "key": "canary-key",
    "error": "canary-error",
    "traceback": "Traceback (most recent call last)",
    "payload": "canary-payload",
}
SHOWN: dict[str, set[str]] = {
    "GET /": {"error"},
    "GET /types": set(),
    "GET /messages": {"key", "error"},
    "GET /messages/{seq}": {"key", "error", "traceback"},
    "POST /messages/{seq}/payload": {"key", "error", "traceback", "payload"},
    "GET /dead": {"error"},
    "GET /quarantine": set(),
    "GET /keys": {"key"},
    "GET /effects": set(),
    "GET /handlers": set(),
    "GET /workers": set(),
    "GET /pauses": set(),
    "GET /polls": set(),
    "GET /outbox": set(),
    "GET /sources": set(),
    "GET /storage": set(),
    "GET /audit": set(),
    "GET /metrics": set(),
    "GET /search?q=evt_canary": set(),
    "GET /quarantine/{case}": set(),
    "POST /quarantine/{case}/payload": {"key", "payload"},
}
"""What may quote a payload, by page: all of it for readers and operators, none of it for viewers."""


@pytest.mark.parametrize("role", ["viewer", "reader", "operator"])
def test_what_may_quote_a_payload_is_for_readers_alone(inbox: Inbox, role: str) -> None:
    """D44, D59: one rule on every page."""

    @inbox.on("card.refused", key="card")
    def refused(message: Message, tx: Any) -> None:
        del tx
        raise Reject(f"{CANARIES['error']} {message.attempt}")

    data = {"card": CANARIES["key"], "name": CANARIES["payload"]}
    for consumer in ("evt_canary", "evt_behind"):
        inbox.receive(source="stripe", id=consumer, type="card.refused", data=data)
    inbox.receive(source="stripe", id="evt_canary", type="card.refused", data={"card": "other"})
    inbox.drain()
    (dead,), (case,) = inbox.admin.messages(status="dead"), inbox.admin.quarantine()
    who = WHO[role]
    assert who is not None
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(who)
        for route, wanted in SHOWN.items():
            method, _, path = route.replace("{seq}", str(dead.seq)).replace("{case}", str(case.case)).partition(" ")
            if method == "GET":
                answer = visitor.get(path)
                if answer.status_code == SENT_AWAY:
                    answer = visitor.get(answer.headers["location"])
                    wanted = SHOWN["GET /messages/{seq}"]  # noqa: PLW2901 - where it leads
            else:
                answer = visitor.post(path, token=token_of(visitor, who))
            found = {name for name, text in CANARIES.items() if text in answer.text}
            assert found == (set() if role == "viewer" else wanted), (role, route)
            is_masked = role == "viewer" and (method == "POST" or "{case}" in route)
            assert answer.status_code == (403 if is_masked else 200), (role, route)
