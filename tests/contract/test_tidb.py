"""What only TiDB does (R36), on a real one: `make engines ENGINE=tidb` plays it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from onceward import ConfigurationError
from onceward.admin.doctor import examine
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.programs import HOLDERS
from tests.contract.harness import Shop, arguments
from tests.servers import MariadbServer
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("TiDB")


@pytest.fixture
def shop(mariadb_url: str) -> Iterator[Shop]:
    """A shop on TiDB."""
    with Shop(mariadb_url, "def") as shop:
        yield shop


def caller(shop: Shop, mode: str = "pessimistic") -> Any:
    """A connection of the caller's own."""
    connection = pymysql.connect(**Address.of(shop.url).arguments(), ssl_disabled=True)
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION tidb_txn_mode = '{mode}'")
    return connection


def test_the_doctor_says_what_is_different(shop: Shop) -> None:
    said = {found.what.partition(":")[0]: found.level for found in examine(shop.inbox)}
    assert any(what.startswith("TiDB 8.0.11-TiDB-v") for what in said)
    assert any("CHECK is not enforced" in what for what in said)
    assert "error" not in said.values()


def test_a_ledger_whose_numbers_are_drawn_in_blocks_is_an_error(shop: Shop) -> None:
    """Two servers would each give out their own, and the later message could have the smaller one."""
    shop.sql("CREATE TABLE copied LIKE onceward_ledger")
    ((_, made_by),) = shop.sql("SHOW CREATE TABLE onceward_ledger")
    shop.sql("DROP TABLE onceward_ledger")
    shop.sql(made_by.replace("AUTO_ID_CACHE=1 ", "AUTO_ID_CACHE=100 "))
    assert [found.level for found in examine(shop.inbox) if "AUTO_ID_CACHE" in found.what] == ["error"]


def test_a_callers_transaction_that_holds_no_lock_is_refused(shop: Shop) -> None:
    shop.handle()
    connection = caller(shop, "optimistic")
    connection.begin()
    with pytest.raises(ConfigurationError, match="tidb_txn_mode = 'pessimistic'"):
        shop.receive("one", tx=connection)
    connection.close()


def test_callers_transactions_do_not_wait_for_each_other_and_a_change_of_subscriptions_waits_for_all(
    shop: Shop, mariadb_server: MariadbServer
) -> None:
    """There are no shared locks: each holds a row of its own."""
    shop.handle()
    shop.receive("first")  # the view of a transaction begins before its own receive makes the subscription
    callers = [caller(shop) for _ in range(HOLDERS)]
    for number, connection in enumerate(callers):
        connection.begin()
        assert shop.receive(f"m{number}", tx=connection).status == "accepted"
    late = Shop(shop.place, "def", first=False)
    late.inbox.on("order.sent")(lambda message: None)  # noqa: ARG005 - it has no effect
    sent = arguments("sent", "order.sent", "shop", {})
    subscribing = threading.Thread(target=late.inbox.receive, kwargs=dict(sent))
    subscribing.start()
    waiting = "SELECT 1 FROM information_schema.tidb_trx WHERE state = 'LockWaiting'"
    wait_until(lambda: bool(mariadb_server.administer(waiting)), message="the change to wait for a caller")
    for connection in callers:
        connection.commit()
        connection.close()
    subscribing.join()
    late.close()
    shop.drain()
    assert len(shop.effects()) == HOLDERS + 1


def test_a_claim_does_not_wait_for_a_key_that_others_hold(shop: Shop) -> None:
    """NOWAIT in place of SKIP LOCKED, which locks nothing here."""
    shop.handle(key="order_id")
    shop.receive("held", data={"order_id": 1})
    shop.receive("free", data={"order_id": 2})
    shop.sql("INSERT INTO onceward_key_lock (key_hash) SELECT key_hash FROM onceward_queue WHERE seq = 1")
    other = caller(shop)
    other.begin()
    with other.cursor() as cursor:
        cursor.execute("SELECT key_hash FROM onceward_key_lock FOR UPDATE")
    shop.drain()
    assert shop.effects() == ["free"]
    other.rollback()
    shop.drain()
    assert shop.effects() == ["free", "held"]
