"""The pytest plugin, in a pytest of its own, which finds it by its entry point."""

from __future__ import annotations

import pytest

from onceward import Inbox

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:randomly", "-p", "no:xdist", "-q", "-o", "asyncio_default_fixture_loop_scope=function")

SHOP = """
import pytest

ORDER = {"source": "shop", "id": "evt_1", "type": "order.paid", "data": {"order_id": 7}}

@pytest.fixture
def shop(inbox):
    with inbox.transaction() as tx:
        tx.execute("DROP TABLE IF EXISTS paid")
        tx.execute("CREATE TABLE paid (id integer)")
    return inbox

def paid(tx):
    return tx.execute("SELECT id FROM paid").fetchall()
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory to run pytest in."""
    monkeypatch.delenv("ONCEWARD_STORE", raising=False)
    return pytester


def test_the_fixtures_do_what_they_say(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(
        SHOP
        + """
from onceward import Inbox

def test_inbox_is_new_and_drains(shop, drain, deliver_twice):
    assert isinstance(shop, Inbox)
    shop.on("order.paid")(lambda message, tx: tx.execute("INSERT INTO paid VALUES (7)") and None)
    first, second = deliver_twice(**ORDER)
    assert (first.status, second.status) == ("accepted", "duplicate")
    assert drain() == 1
    with shop.transaction() as tx:
        assert paid(tx) == [(7,)]

def test_the_next_one_is_new_too(inbox):
    assert inbox.admin.stats().done == 0

def test_a_retry_is_due_when_the_clock_says_so(shop, drain, fixed_clock):
    from onceward import Retry
    attempts = []

    @shop.on("order.paid")
    def later(message, tx):
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise Retry("tomorrow", after=24 * 3600)

    shop.receive(**ORDER)
    assert drain() == 0
    fixed_clock.advance(hours=23)
    assert drain() == 0
    fixed_clock.advance(hours=2)
    assert drain() == 1
    assert attempts == [1, 2]

def test_a_careful_handler(shop, prove):
    @shop.on("order.paid")
    def careful(message, tx):
        tx.execute("INSERT INTO paid VALUES (7)")

    assert len(prove(ORDER, check=paid).cases) > 25
"""
    )
    outcome.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=4)


def test_async_tests_drain_too(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(
        SHOP
        + """
async def test_drain(shop, drain):
    @shop.on("order.paid")
    async def careful(message, tx):
        await tx.execute("INSERT INTO paid VALUES (7)")

    await shop.areceive(**ORDER)
    assert await drain() == 1
    await shop.store.async_close()
"""
    )
    result = outcome.runpytest_inprocess(*OPTIONS, "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=1)


def test_a_careless_handler_fails_its_test_with_the_report(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(
        SHOP
        + """
def test_careless(shop, prove):
    mails = []

    @shop.on("order.paid")
    def careless(message, tx):
        mails.append(message.id)
        tx.execute("INSERT INTO paid VALUES (7)")

    prove(ORDER, check=paid, external=lambda: mails)
"""
    )
    result = outcome.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*careless: NOT exactly once; * cases went wrong, for 1 reason",
            "*statement 1, `INSERT INTO paid VALUES (7)` (test_a_careless*.py:*)",
            "*when the process died before statement 1, `INSERT INTO paid VALUES (7)`*",
            "*external effect: happened 2 times instead of 1",
        ]
    )


def test_a_wrong_second_delivery_fails(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(
        SHOP
        + """
def test_not_recognised(inbox, deliver_twice, monkeypatch):
    from onceward import Receipt
    monkeypatch.setattr(type(inbox), "receive", lambda self, **message: Receipt("accepted", 1))
    deliver_twice(**ORDER)
"""
    )
    result = outcome.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the second delivery was not recognised*"])


@pytest.mark.parametrize(
    ("store_url", "where"), [("postgres", "ini"), ("mariadb", "environment")], indirect=["store_url"]
)
def test_the_store_may_be_chosen(
    outcome: pytest.Pytester, store_url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "ini":
        outcome.makeini(f"[pytest]\nonceward_store = {store_url}")
    else:
        monkeypatch.setenv("ONCEWARD_STORE", store_url)
    outcome.makepyfile(
        SHOP
        + """
from onceward import ConfigurationError
from onceward.testing import FixedClock

def test_on_a_server(shop, drain):
    assert shop.store.dialect in ("postgres", "mysql")
    shop.on("order.paid")(lambda message, tx: tx.execute("INSERT INTO paid VALUES (7)") and None)
    shop.receive(**ORDER)
    assert drain() == 1
    with pytest.raises(ConfigurationError, match="server's clock"):
        FixedClock(shop)

def test_tables_of_its_own(inbox):
    with inbox.transaction() as tx:
        query = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 't%ledger'"
        assert tx.execute(query).fetchone() == (1,)
"""
    )
    outcome.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=2)
    with Inbox(store_url) as inbox, inbox.transaction() as tx:
        left = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 't%ledger%'"
        assert tx.execute(left).fetchone() == (0,)


MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[int] = mapped_column(default=0)
"""


def test_handlers_with_a_session_have_fixtures(outcome: pytest.Pytester) -> None:
    """The tables are made with `inbox_engine`; `check` may take a Session."""
    outcome.makepyfile(models=MODELS)
    outcome.makepyfile(
        SHOP
        + """
from models import Base, Order, Session
from onceward import Message

def test_it(inbox, inbox_engine, prove):
    Base.metadata.create_all(inbox_engine)
    with Session(inbox_engine) as session, session.begin():
        session.add(Order(id=7))

    @inbox.on("order.paid")
    def pay(message: Message, session: Session) -> None:
        session.get(Order, message.data["order_id"]).paid += 1

    def paid(session: Session):
        return session.get(Order, 7).paid

    assert prove(ORDER, check=paid).ok
"""
    )
    outcome.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)


PROJECT = """
from pathlib import Path
import sys

NAME = Path(__file__).with_name("db.sqlite3")
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": NAME, "TEST": {"NAME": NAME.with_name("test.sqlite3")}}
}
SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["onceward.integrations.django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""


def test_handlers_with_djangos_orm_have_fixtures(outcome: pytest.Pytester) -> None:
    """With pytest-django: the inbox of the project in the test database, put back after each test."""
    outcome.makepyfile(settings=PROJECT)
    shop = outcome.mkpydir("shop")
    (shop / "models.py").write_text(
        "from django.db import models\nclass Order(models.Model):\n    paid = models.IntegerField(default=0)\n"
    )
    (shop / "inbox_handlers.py").write_text(
        """
from django.db import models
from onceward.integrations.django import DjangoInbox
from shop.models import Order

inbox = DjangoInbox()

@inbox.on("order.paid")
def pay(message):
    Order.objects.filter(pk=message.data["order_id"]).update(paid=models.F("paid") + 1)
"""
    )
    outcome.makepyfile(
        """
import pytest
from onceward import ContractViolation
from shop.models import Order

ORDER = {"source": "shop", "id": "evt_1", "type": "order.paid", "data": {"order_id": 7}}

def paid():
    return list(Order.objects.values_list("pk", "paid"))

def test_it_is_proven(prove_django):
    Order.objects.create(pk=7)
    assert prove_django(ORDER, check=paid).ok

@pytest.mark.parametrize("turn", [1, 2])
def test_each_begins_anew(django_inbox, turn):
    Order.objects.create(pk=7)
    assert django_inbox.receive(**ORDER).status == "accepted"
    assert django_inbox.drain() == 1
    assert paid() == [(7, 1)]

@pytest.mark.django_db
def test_a_transaction_that_is_never_committed_is_no_place_to_work():
    from shop.inbox_handlers import inbox
    inbox.receive(**ORDER)
    with pytest.raises(ContractViolation, match="TransactionTestCase"):
        inbox.drain()
"""
    )
    done = outcome.runpytest_subprocess(
        *OPTIONS, "-p", "pytest_django", "--ds", "settings", "-o", f"pythonpath={outcome.path}"
    )
    done.assert_outcomes(passed=4)
