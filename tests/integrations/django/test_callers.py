"""`receive` and `send` inside `atomic()` and outside, and what must not be called inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.test import Client, override_settings
from django.urls import path

from onceward import ConfigurationError, ContractViolation, Inbox, Message
from onceward.integrations.django import DjangoInbox
from onceward.integrations.django.addresses import address_of
from onceward.webhooks import Stripe
from tests.integrations.django.project import database
from tests.integrations.django.running import DjangoShop, pay
from tests.integrations.django.shop.models import Order
from tests.stores import with_mariadb
from tests.webhooks.senders import sign_stripe


@with_mariadb
def test_receive_joins_the_block(shop: DjangoShop) -> None:
    """It is there when, and only when, the outermost block is committed; and workers are notified then."""
    notified: list[set[str]] = []
    store: Any = shop.inbox.store
    store.notify = lambda: notified.append(shop.stored())
    with transaction.atomic():
        assert shop.receive("first statement") == "accepted"
        Order.objects.filter(pk=1).update(paid=1)
        with transaction.atomic():
            assert shop.receive("nested") == "accepted"
        with suppress(IntegrityError), transaction.atomic():
            shop.receive("of a block that is rolled back")
            Order.objects.create(id=2)
        assert shop.receive("nested") == "duplicate"
        assert shop.stored() == set()
        assert not notified
    assert shop.stored() == {"first statement", "nested"}
    assert notified == [{"first statement", "nested"}] * 3
    with suppress(ZeroDivisionError), transaction.atomic():
        shop.receive("rolled back")
        shop.inbox.receive_many([{"source": "s", "id": f"m{one}", "type": "t"} for one in range(2)])
        raise ZeroDivisionError
    assert shop.stored() == {"first statement", "nested"}
    with transaction.atomic():
        shop.inbox.receive_many([{"source": "s", "id": f"m{one}", "type": "t"} for one in range(2)])
    assert shop.stored() == {"first statement", "nested", "m0", "m1"}


def test_outside_of_a_block_it_commits_by_itself(shop: DjangoShop) -> None:
    assert shop.receive("a") == "accepted"
    assert shop.stored() == {"a"}
    shop.inbox.receive_many([{"source": "s", "id": "b", "type": "t"}])
    assert shop.stored() == {"a", "b"}


def test_manual_transactions_are_joined(shop: DjangoShop) -> None:
    if shop.inbox.store.dialect == "sqlite":
        return  # Django's own set_autocommit() begins none there
    transaction.set_autocommit(False)
    try:
        shop.receive("a")
        assert shop.stored() == set()
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert shop.stored() == {"a"}


@with_mariadb
def test_sending_joins_too(shop: DjangoShop) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        shop.inbox.send("order.placed", {"id": 1})
        raise ZeroDivisionError
    with transaction.atomic():
        sent = shop.inbox.send("order.placed", {"id": 2})
    shop.inbox.send("order.placed", {"id": 3})
    found = [row.id for row in shop.inbox.admin.messages(outgoing=True)]
    assert len(found) == 2
    assert sent in found


@with_mariadb
def test_in_a_handler_it_is_the_handlers_transaction(shop: DjangoShop) -> None:
    def behave(message: Message) -> None:
        pay(message)
        shop.receive(f"from {message.id}", message_type="other")
        shop.inbox.send("sent", {"by": message.id})
        if message.data == "fail":
            raise ValueError("after it has received")

    shop.handle(behave)
    assert shop.deliver("a") == 1
    assert shop.deliver("b", data="fail") == 0
    assert shop.stored() == {"a", "b", "from a"}
    assert len(shop.inbox.admin.messages(outgoing=True)) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda inbox: inbox.drain(),
        lambda inbox: inbox.run(),
        lambda inbox: inbox.migrate(),
    ],
    ids=["drain", "run", "migrate"],
)
def test_what_commits_by_itself_is_refused_in_a_block(sqlite_shop: DjangoShop, call: Callable[[Any], Any]) -> None:
    with transaction.atomic(), pytest.raises(ContractViolation, match=r"inside atomic\(\): it commits by itself"):
        call(sqlite_shop.inbox)
    assert sqlite_shop.stored() == set()


def test_a_broken_block_stores_nothing(shop: DjangoShop) -> None:
    with suppress(IntegrityError), transaction.atomic():
        with pytest.raises(IntegrityError):
            Order.objects.create(id=1)
        with pytest.raises(DatabaseError, match="until the end of the 'atomic' block"):
            shop.receive("a")
    assert shop.stored() == set()


def test_any_inbox_takes_djangos_connection(shop: DjangoShop) -> None:
    """As `tx=`, the proxy or what is behind it; outside of a block there is nothing to join."""
    with Inbox(shop.inbox.url) as plain:
        given: dict[str, Any] = {"source": "s", "type": "t"}
        with transaction.atomic():
            plain.receive(id="proxy", tx=connection, **given)
            plain.receive(id="connection", tx=connections["default"], **given)
            assert shop.stored() == set()
        assert shop.stored() == {"proxy", "connection"}
        with pytest.raises(ConfigurationError, match=r"is the connection 'default' outside of atomic\(\)"):
            plain.receive(id="outside", tx=connection, **given)


async def test_async_calls_cannot_join(sqlite_shop: DjangoShop) -> None:
    with pytest.raises(ConfigurationError, match="whose transactions are for def only"):
        await sqlite_shop.inbox.areceive(source="s", id="a", type="t", tx=connections["default"])
    assert (await sqlite_shop.inbox.areceive(source="s", id="a", type="t")).status == "accepted"
    await sqlite_shop.inbox.aclose()


def test_the_inbox_follows_the_settings(sqlite_shop: DjangoShop, tmp_path: Path) -> None:
    """As in a test run, which puts its own database into the settings after the inbox was made."""
    sqlite_shop.receive("in the first")
    with database(f"sqlite:///{tmp_path / 'of the test run.db'}"):
        assert "of the test run" in sqlite_shop.inbox.url
        sqlite_shop.inbox.migrate()
        assert sqlite_shop.receive("in the first") == "accepted"
        assert sqlite_shop.receive("in the second") == "accepted"
    assert sqlite_shop.stored() == {"in the first"}
    assert sqlite_shop.receive("in the first") == "duplicate"


def test_a_database_in_memory_only_joins(sqlite_shop: DjangoShop) -> None:
    """Django's usual database of a test run: no worker can reach it, and that is said."""
    with database("sqlite:///:memory:"):
        inbox = DjangoInbox()
        with connection.cursor() as cursor:
            for statement in inbox.migration_sql().split(";\n"):
                cursor.execute(statement)
        with transaction.atomic():
            assert inbox.receive(source="s", id="a", type="t").status == "accepted"
            assert inbox.receive(source="s", id="a", type="t").status == "duplicate"
        for call in (inbox.drain, lambda: inbox.receive(source="s", id="b", type="t"), inbox.migrate):
            with pytest.raises(ConfigurationError, match=r"is in memory, .*\[\"TEST\"\] = \{\"NAME\": BASE_DIR"):
                call()
        inbox.close()
    assert sqlite_shop.stored() == set()


POSTGRES = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}
ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/shop.db")}, "sqlite:////srv/shop.db"),
    (POSTGRES, "postgresql:///shop?options=-c%20TimeZone%3DUTC"),
    (
        {**POSTGRES, "USER": "a b", "PASSWORD": "p@/:", "HOST": "db", "PORT": 5433},
        "postgresql://a%20b:p%40%2F%3A@db:5433/shop?options=-c%20TimeZone%3DUTC",
    ),
    (
        {**POSTGRES, "HOST": "/run/postgresql", "PORT": "5433", "DISABLE_SERVER_SIDE_CURSORS": True},
        "postgresql:///shop?host=%2Frun%2Fpostgresql&port=5433",
    ),
    (
        {
            **POSTGRES,
            "TIME_ZONE": "Asia/Tokyo",
            "OPTIONS": {
                "options": "-c search_path=shop",
                "assume_role": "the owner",
                "sslmode": "require",
                "pool": True,
            },
        },
        (
            "postgresql:///shop?options=-c%20search_path%3Dshop%20-c%20TimeZone%3DAsia%2FTokyo%20-c%20role%3Dthe%5C%20"
            "owner&sslmode=require"
        ),
    ),
    (
        {**POSTGRES, "NAME": "", "OPTIONS": {"service": "shop"}},
        "postgresql:///?service=shop&options=-c%20TimeZone%3DUTC",
    ),
]


@pytest.mark.parametrize(("given", "url"), ADDRESSES, ids=[url for _, url in ADDRESSES])
def test_addresses(given: dict[str, Any], url: str) -> None:
    found = _address(given)
    assert dict(_parts(found)) == dict(_parts(url))


def _parts(url: str) -> list[tuple[str, str]]:
    place, _, options = url.partition("?")
    return [("place", place), *((one.partition("=")[0], one) for one in options.split("&"))]


def _address(given: dict[str, Any]) -> str:
    connections.settings["tried"] = connections.configure_settings({"default": {}, "tried": given})["tried"]
    try:
        return address_of("tried").url
    finally:
        del connections["tried"], connections.settings["tried"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ENGINE": "django.db.backends.dummy", "NAME": "x"}, "which onceward has no store for"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ""}, "NAME is empty"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x.db"}, "write NAME as a path"),
        ({"ENGINE": "django.db.backends.postgresql", "NAME": ""}, r"DATABASES\['tried'\]: .*supply the NAME"),
    ],
    ids=["dummy", "empty", "uri", "nameless"],
)
def test_databases_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence.replace("supply the NAME", "[Ss]upply the NAME")):
        _address(given)


SECRET = "whsec_of_stripe"


def test_a_webhook_view_is_outside_of_the_requests_transaction(shop: DjangoShop) -> None:
    """What the sender is answered is committed, whatever becomes of the request; and no lock of it is waited for."""
    settings: dict[str, Any] = connections["default"].settings_dict
    settings["ATOMIC_REQUESTS"] = True
    if shop.inbox.store.dialect == "sqlite":  # a request has the only lock from its beginning on
        settings["OPTIONS"]["transaction_mode"] = "IMMEDIATE"
        connections["default"].close()
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET)})
    urls = ModuleType("urls")
    urls.__dict__["urlpatterns"] = [path("hooks/stripe", hooks.wsgi.django("/stripe"))]
    event = sign_stripe(b'{"id": "evt_1", "type": "paid"}', "", now=time.time(), secret=SECRET)
    with override_settings(ROOT_URLCONF=urls):
        answer = Client().post(
            "/hooks/stripe", event.body, content_type="application/json", headers=dict(event.headers)
        )
    assert (answer.status_code, shop.stored()) == (200, {"evt_1"})
