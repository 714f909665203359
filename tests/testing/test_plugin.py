"""The pytest plugin, in a pytest of its own, which finds it by its entry point."""

from __future__ import annotations

import pytest

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
            "*careless: NOT exactly once; * cases went wrong",
            "*statement 1, `INSERT INTO paid VALUES (7)` (test_a_careless*.py:*)",
            "*DOUBLED when the process died before statement 1, `INSERT INTO paid VALUES (7)`*",
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


@pytest.mark.parametrize("where", ["ini", "environment"])
def test_the_store_may_be_chosen(
    outcome: pytest.Pytester, postgres_url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "ini":
        outcome.makeini(f"[pytest]\nonceward_store = {postgres_url}")
    else:
        monkeypatch.setenv("ONCEWARD_STORE", postgres_url)
    outcome.makepyfile(
        SHOP
        + """
from onceward import ConfigurationError
from onceward.testing import FixedClock

def test_on_postgres(shop, drain):
    assert shop.store.dialect == "postgres"
    shop.on("order.paid")(lambda message, tx: tx.execute("INSERT INTO paid VALUES (7)") and None)
    shop.receive(**ORDER)
    assert drain() == 1
    with pytest.raises(ConfigurationError, match="server's clock"):
        FixedClock(shop)

def test_tables_of_its_own(inbox):
    with inbox.transaction() as tx:
        query = "SELECT count(*) FROM pg_tables WHERE tablename LIKE '%ledger'"
        assert tx.execute(query).fetchone() == (1,)
"""
    )
    outcome.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=2)
