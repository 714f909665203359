"""The admin's pages: who may see and do what, and that nothing out of a message is markup (R56)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings
from django.urls import path

from onceward import Message, RetryPolicy
from tests.integrations.django.running import DjangoShop

urlpatterns = [path("admin/", admin.site.urls)]
LIST = "/admin/onceward/message/"
NASTY = "<script>alert(1)</script>\"'&{{ 7*7 }}"
SECRET = "<b>4111 1111</b>"


class Desk:
    """A shop with a dead message, and people who look at it."""

    def __init__(self, shop: DjangoShop) -> None:
        self.shop = shop
        self.shop.handle(self._fail, key="key", group=1, retry=RetryPolicy(attempts=1))
        self.shop.inbox.receive(source=NASTY, id=NASTY, type="t", data={"key": SECRET, "secret": SECRET})
        self.shop.inbox.drain()
        assert self.status() == "dead"

    @staticmethod
    def _fail(message: Message) -> None:
        raise ValueError(f"about {message.data['secret']}")

    @property
    def seq(self) -> int:
        return self.shop.inbox.admin.find(NASTY, NASTY)[0]

    def status(self) -> str:
        detail = self.shop.inbox.admin.message(self.seq)
        assert detail is not None
        return detail.status

    def person(self, *may: str, is_staff: bool = True, checks: bool = False) -> Client:
        """Somebody with these permissions."""
        user = User.objects.create_user("-".join(may) or "nobody", is_staff=is_staff)
        for name in may:
            user.user_permissions.add(Permission.objects.get(codename=f"{name}_message"))
        client = Client(enforce_csrf_checks=checks)
        client.force_login(user)
        return client


@pytest.fixture
def desk(shop: DjangoShop) -> Iterator[Desk]:
    """On each store."""
    call_command("migrate", verbosity=0)
    with override_settings(ROOT_URLCONF=__name__):
        yield Desk(shop)


def text(client: Client, page: str) -> str:
    """A page that is shown."""
    answer = client.get(page)
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


def test_nothing_out_of_a_message_is_markup(desk: Desk) -> None:
    """In any page, for those who may see all of it."""
    everything = desk.person("view", "read", "operate")
    seen = [
        text(everything, "/admin/"),
        text(everything, LIST),
        text(everything, f"{LIST}?id={quote(NASTY)}&type={quote(NASTY)}"),
        text(everything, f"{LIST}{desk.seq}/"),
        text(everything, f"{LIST}decide/?action=redrive&seq={desk.seq}"),
        everything.post(f"{LIST}{desk.seq}/payload/").content.decode(),
        everything.post(
            f"{LIST}decide/", {"action": "discard", "seqs": f"{desk.seq},99", "reason": NASTY}
        ).content.decode(),
        text(everything, f"{LIST}{desk.seq}/"),
    ]
    for page in seen:
        assert "<script>alert" not in page
        assert "<b>4111" not in page
        assert "{{ 7*7 }}" not in page or "&#x27;&amp;{{ 7*7 }}" in page
    assert "&lt;script&gt;alert(1)" in seen[1]
    assert "&lt;b&gt;4111 1111&lt;/b&gt;" in seen[5]


def test_each_sees_what_their_role_allows(desk: Desk) -> None:
    """Strangers and staff without a permission nothing; viewers no content; readers all; operators act."""
    assert Client().get(LIST).status_code == 302
    for stranger in (desk.person(is_staff=False), desk.person("read")):
        assert stranger.get(LIST).status_code in (302, 403)
    viewer = desk.person("view")
    for page in (LIST, f"{LIST}{desk.seq}/"):
        shown = text(viewer, page)
        assert "4111" not in shown
        assert "ValueError" in shown
        assert "Redrive" not in shown
    assert viewer.get(f"{LIST}?key={SECRET}").status_code == 403
    assert viewer.post(f"{LIST}{desk.seq}/payload/").status_code == 403
    assert viewer.get(f"{LIST}decide/?action=redrive&seq={desk.seq}").status_code == 403
    assert viewer.post(f"{LIST}decide/", {"action": "redrive", "seqs": str(desk.seq), "reason": "x"}).status_code == 403
    assert desk.status() == "dead"
    reader = desk.person("view", "read")
    assert "about &lt;b&gt;4111" in text(reader, f"{LIST}{desk.seq}/")
    assert reader.post(f"{LIST}{desk.seq}/payload/").status_code == 200
    assert [(line.actor, line.action) for line in desk.shop.inbox.admin.audit()] == [("view-read", "read")]
    assert reader.post(f"{LIST}decide/", {"action": "redrive", "seqs": str(desk.seq), "reason": "x"}).status_code == 403


def test_messages_are_redriven_and_discarded_with_a_reason(desk: Desk) -> None:
    """What is changed is what was shown; who did it is in the audit."""
    operator = desk.person("view", "operate")
    preview = text(operator, f"{LIST}decide/?action=redrive&type=t")
    assert "Redrive 1 message" in preview
    assert "4111" not in preview
    decide = f"{LIST}decide/"
    without = operator.post(decide, {"action": "redrive", "seqs": str(desk.seq), "reason": " "})
    assert "This field is required" in without.content.decode()
    assert desk.status() == "dead"
    done = operator.post(decide, {"action": "redrive", "seqs": str(desk.seq), "reason": "mended"})
    assert "Redriven: 1 message" in done.content.decode()
    assert desk.status() == "due"
    again = operator.post(decide, {"action": "redrive", "seqs": str(desk.seq), "reason": "mended"})
    assert "Left alone: 1" in again.content.decode()
    gone = operator.post(decide, {"action": "discard", "seqs": str(desk.seq), "reason": "a test order"})
    assert "Discarded: 1 message" in gone.content.decode()
    assert desk.status() == "discarded"
    (*_, first) = desk.shop.inbox.admin.audit()
    assert (first.actor, first.action, first.reason) == ("view-operate", "redrive", "mended")


def test_forged_requests_change_nothing(desk: Desk) -> None:
    operator = desk.person("view", "operate", checks=True)
    forged = operator.post(f"{LIST}decide/", {"action": "discard", "seqs": str(desk.seq), "reason": "x"})
    assert forged.status_code == 403
    assert operator.get(f"{LIST}decide/?action=discard&seqs={desk.seq}&reason=x").status_code == 200
    assert desk.status() == "dead"


def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    operator = desk.person("view", "operate")
    wrong = ["?status=elsewhere", "?before=-1", "?inbox=os:environ", "4711/"]
    wrong += ["decide/?action=erase&seq=1", "decide/?action=redrive&seq=abc", "decide/?action=redrive&before=x"]
    assert {page: operator.get(f"{LIST}{page}").status_code for page in wrong} == dict.fromkeys(wrong, 404)


def test_lists_have_pages_and_filters(desk: Desk) -> None:
    for number in range(101):
        desk.shop.inbox.receive(source="s", id=f"m{number}", type="waiting" if number % 2 else "other")
    viewer = desk.person("view")
    first = text(viewer, f"{LIST}?source=s")
    assert len(re.findall(r'href="/admin/onceward/message/\d+/', first)) == 100
    (older,) = (line.partition('"')[0] for line in first.split('href="')[1:] if "before=" in line.partition('"')[0])
    assert ">m0<" in text(viewer, LIST + older.replace("&amp;", "&"))
    assert text(viewer, f"{LIST}?status=dead").count("ValueError") == 1
    assert "No messages" in text(viewer, f"{LIST}?type=nothing")


def test_views_are_outside_of_the_requests_transaction(desk: Desk) -> None:
    """The inbox has connections of its own: on SQLite they would wait for the request's, and it for them."""
    settings: dict[str, Any] = connections["default"].settings_dict
    settings["ATOMIC_REQUESTS"] = True
    if desk.shop.inbox.store.dialect == "sqlite":  # a request has the only lock from its beginning on
        settings["OPTIONS"]["transaction_mode"] = "IMMEDIATE"
        connections["default"].close()
    operator = desk.person("view", "operate")
    done = operator.post(f"{LIST}decide/", {"action": "redrive", "seqs": str(desk.seq), "reason": "mended"})
    assert "Redriven: 1 message" in done.content.decode()


def test_an_inbox_without_tables_is_said(desk: Desk) -> None:
    viewer = desk.person("view")
    with desk.shop.inbox.transaction() as tx:
        tx.execute("ALTER TABLE onceward_queue RENAME TO elsewhere")
    answer = viewer.get(LIST)
    assert answer.status_code == 503
    assert "onceward_queue" in answer.content.decode()
