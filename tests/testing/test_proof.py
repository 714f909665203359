"""Careless handlers are caught, with the reason and the statement; careful ones pass; the database is as before."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, Reject
from onceward.testing import Case, NotExactlyOnce, Report, prove_exactly_once
from tests.testing import shop as handlers
from tests.testing.shop import LATER, NOTE, ORDER, PAY, Shop
from tests.waiting import wait_until

ONE_MODE = ["store-first"]  # half the time, where the other mode would only say the same


def failure(report: Report, *words: str) -> Case:
    """The first failure whose text has all the words."""
    for case in report.failures:
        if all(word in str(case) for word in words):
            return case
    raise AssertionError(f"no failure says {words}:\n{report}")


def test_a_connection_of_its_own_is_caught(shop: Shop) -> None:
    report = shop.prove(handlers.own_connection(shop), modes=ONE_MODE)
    case = failure(report, "DOUBLED when the process died before statement 1", NOTE, "does not go through tx")
    assert case.kind == "doubled"
    assert case.statement is not None
    assert case.statement.sql == NOTE
    assert case.statement.where.startswith("shop.py:")
    assert "already permanent when the attempt had been undone: [(7, 1, None)]" in str(case)
    assert "found    [(7, 2, None), ('paid',)]" in str(case)


def test_a_connection_of_its_own_at_the_end_is_caught(postgres_url: str) -> None:
    with Inbox(postgres_url) as inbox:
        shop = Shop(inbox).open()
        report = shop.prove(handlers.own_connection_at_the_end(shop), modes=ONE_MODE)
    # Nothing has left before its last statement, so that alone is not the culprit; what comes after it is.
    assert [case for case in report.failures if "died before statement 1" in case.name] == []
    failure(report, "DOUBLED when the process died before the commit", "does not go through tx")


def test_a_commit_is_caught(shop: Shop) -> None:
    report = shop.prove(handlers.commits(shop))
    failure(report, "UNFINISHED when no fault was injected", "dead", "the handler called commit()")
    assert len(report.cases) == 1
    assert "not tried" in str(report)


def test_one_mistake_is_one_cause(shop: Shop) -> None:
    report = shop.prove(handlers.own_connection(shop), modes=ONE_MODE)
    (cause,) = report.causes
    assert cause.cases == report.failures
    assert len(cause.cases) > 5
    assert str(report).count("does not go through tx") == 1


def test_a_swallowed_error_is_caught(shop: Shop) -> None:
    report = shop.prove(handlers.swallows(shop), modes=ONE_MODE)
    case = failure(report, "LOST when the handler raised after statement 1", PAY, "caught the error and returned")
    assert case.statement == report.statements[0]
    assert not any(case.kind == "doubled" for case in report.failures)


@pytest.mark.parametrize("careless", [handlers.mails, handlers.mails_async])
def test_a_mail_that_is_sent_again_is_caught(shop: Shop, careless: Any) -> None:
    report = shop.prove(careless(shop), external=lambda: shop.mails, modes=ONE_MODE)
    case = failure(report, "DOUBLED when the process died before statement 2", NOTE, "happened 2 times instead of 1")
    assert "message.once" in str(case)
    assert case.external_calls == 2
    assert not any("before statement 1" in case.name for case in report.failures)


def test_a_mail_that_may_be_sent_again_is_counted(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    report = shop.prove(handlers.mails(shop), external=lambda: len(shop.mails), external_at_least_once=True)
    assert report.ok, str(report)
    assert "the external effect is at least once: up to" in str(report)


@pytest.fixture
def charges() -> Iterator[tuple[int, list[bytes]]]:
    """A payment service, and the requests it has got."""
    requests: list[bytes] = []

    class Charging(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(100))

    with socketserver.TCPServer(("127.0.0.1", 0), Charging) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1], requests
        server.shutdown()
        thread.join()


def test_a_call_that_nobody_counts_is_not_proven(sqlite_shop: Shop, charges: tuple[int, list[bytes]]) -> None:
    """D49: a handler that charges a card over the network, without external=; what is uncounted is named."""
    shop, (port, requests) = sqlite_shop, charges

    def charge() -> None:
        with closing(socket.create_connection(("127.0.0.1", port))) as connection:
            connection.sendall(b"charge 7")

    def careless(message: Message, tx: Any) -> None:
        del message
        charge()
        tx.execute(PAY)

    report = shop.prove(careless, modes=ONE_MODE)
    case = failure(report, "UNCOUNTED when it called the outside", f"it connected to ('127.0.0.1', {port})")
    assert "external=" in str(case)
    wait_until(lambda: len(requests) > 1)  # it is charged again and again
    declared = shop.prove_again(external_at_least_once=True, modes=ONE_MODE)
    assert declared.ok
    assert "calls to the outside were not counted" in str(declared)
    counted = shop.prove_again(external=lambda: 0, external_at_least_once=True, modes=ONE_MODE)
    assert "not counted" not in str(counted)


def test_a_call_through_once_is_counted_by_itself(sqlite_shop: Shop, charges: tuple[int, list[bytes]]) -> None:
    """D49: nothing need be declared for it; files that are written are named."""
    shop, (port, _) = sqlite_shop, charges

    def careful(message: Message, tx: Any) -> None:
        message.once("charge", lambda: socket.create_connection(("127.0.0.1", port)).close())
        tx.execute(PAY)
        Path(shop.inbox.url.removeprefix("sqlite:///")).with_name("log.txt").write_text("paid")

    report = shop.prove(careful, modes=ONE_MODE)
    assert report.ok, str(report)
    assert "log.txt" in str(report)


def test_a_connection_that_was_open_before_is_named(shop: Shop) -> None:
    """D49: no audit event tells what goes over it, so the report says that it was not looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        connection.connect(server.getsockname())

        def careless(message: Message, tx: Any) -> None:
            connection.sendall(message.id.encode())
            tx.execute(PAY)

        report = shop.prove(careless, modes=ONE_MODE)
        assert report.ok, str(report)
        named = [line.partition(": to ")[2].split(", ") for line in report.unseen if "open before" in line]
        assert any(f"127.0.0.1 port {server.getsockname()[1]}" in one for one in named), str(report)
        counted = shop.prove_again(modes=ONE_MODE, external=lambda: 0)
        assert not any("open before" in line for line in counted.unseen), str(counted)


def test_its_own_database_is_no_connection_to_elsewhere(postgres_url: str) -> None:
    with Inbox(postgres_url) as inbox:
        shop = Shop(inbox).open()
        report = shop.prove(handlers.careful(shop), modes=ONE_MODE)
    port = postgres_url.rpartition(":")[2].partition("/")[0]
    assert port.isdigit()
    assert not any(port in line for line in report.unseen), str(report)


def test_a_memory_of_its_own_is_caught(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    report = shop.prove(handlers.remembers_in_memory(shop), modes=ONE_MODE)
    failure(report, "LOST when the handler raised after statement 1", PAY)
    failure(report, "LOST when the connection was lost before statement 1", PAY)


def test_what_only_a_first_attempt_does_is_caught(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    report = shop.prove(handlers.only_the_first_attempt(shop), modes=ONE_MODE)
    case = failure(report, "LOST when the handler raised after statement 2", NOTE)
    assert "expected [(7, 1, None), ('paid',)]" in str(case)
    assert "found    [(7, 0, None), ('paid',)]" in str(case)


def test_a_uuid_in_the_effect_is_caught(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    report = shop.prove(handlers.uses_a_uuid(shop))
    failure(report, "UNREPEATABLE when it ran twice", "a clock, a random number or a uuid is part of the effect")
    assert len(report.cases) == 2


def test_a_message_sent_past_the_transaction_is_caught(shop: Shop) -> None:
    report = shop.prove(handlers.sends_outside(shop), modes=ONE_MODE)
    case = failure(report, "DOUBLED when the process died before statement 1", PAY, "order.shipped")
    assert case.kind == "doubled"
    assert "already permanent when the attempt had been undone: sent [('order.shipped'" in str(case)
    assert "use message.send(...)" in str(case)


def test_an_effect_that_needs_order_is_caught(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    report = shop.prove(handlers.last_writer_wins(shop), others=[LATER], modes=ONE_MODE)
    failure(report, "CHANGED when it raised at its last statement while the others were waiting", "only key= keeps")
    assert "the handler has no key=" in str(report)


def test_an_effect_that_needs_order_and_has_it_passes(shop: Shop) -> None:
    report = shop.prove(handlers.last_writer_wins(shop), others=[LATER], options={"key": "order"}, modes=ONE_MODE)
    assert report.ok, str(report)


def test_a_handler_that_rejects_is_reported(shop: Shop) -> None:
    def reject(_message: Any, _tx: Any) -> None:
        raise Reject("no such order")

    report = shop.prove(reject)
    failure(report, "UNFINISHED when no fault was injected", "the message is dead: Reject: no such order")
    with pytest.raises(NotExactlyOnce, match="no such order"):
        report.raise_if_failed()


@pytest.mark.parametrize(
    ("careful", "options", "more"),
    [
        (handlers.careful, {}, {}),
        (handlers.careful_async, {}, {"modes": ONE_MODE}),
        (handlers.careful, {"key": "order"}, {"modes": ONE_MODE, "others": [LATER]}),
        (handlers.careful_async, {"key": "order"}, {"others": [LATER]}),
        (handlers.careful_batch, {"batch": True, "key": "order"}, {"modes": ONE_MODE, "others": [LATER]}),
    ],
    ids=["def", "async def", "keyed", "keyed async", "batch"],
)
def test_a_careful_handler_passes(shop: Shop, careful: Any, options: dict[str, Any], more: dict[str, Any]) -> None:
    report = shop.prove(careful(shop), options=options, **more)
    assert report.ok, str(report)
    assert len(report.statements) == 2
    assert len(report.cases) >= (20 if "modes" in more else 36)
    assert str(report).startswith(f"{report.handler}: exactly once in all {len(report.cases)} cases")
    assert all(statement.where.startswith("shop.py:") for statement in report.statements)
    report.raise_if_failed()


def test_numbers_within_a_key_pass_in_any_order(shop: Shop) -> None:
    first, second = ({**one, "data": {**one["data"], "n": n}} for n, one in enumerate([ORDER, LATER], start=1))  # type: ignore[dict-item]
    shop.inbox.on("order.paid", key="order", sequence="n")(handlers.last_writer_wins(shop))
    report = prove_exactly_once(shop.inbox, first, check=shop.effect, others=[second])
    assert report.ok, str(report)
    assert any(case.name == "they arrived in reverse order" for case in report.cases)


def test_a_call_through_once_passes(shop: Shop) -> None:
    report = shop.prove(handlers.careful_call(shop), external=lambda: shop.mails)
    assert report.ok, str(report)
    died = [case for case in report.cases if "once('mail')" in case.name]
    assert [case.external_calls for case in died] == [1]
    assert ("inline was left out" in str(report)) == (shop.inbox.store.dialect == "sqlite")


def test_an_idempotent_call_through_once_may_repeat(shop: Shop) -> None:
    report = shop.prove(handlers.careful_call_async(shop), external=lambda: shop.mails)
    assert report.ok, str(report)
    died = [case for case in report.cases if "once('mail')" in case.name]
    assert [case.external_calls for case in died] == [2]


def test_real_processes_are_killed(shop: Shop) -> None:
    report = shop.prove(handlers.own_connection(shop), modes=ONE_MODE, real_processes=True)
    failure(report, "DOUBLED when the process died before statement 1", "already permanent")


def test_a_careful_handler_survives_real_kills(shop: Shop) -> None:
    report = shop.prove(handlers.careful(shop), real_processes=True, modes=ONE_MODE)
    assert report.ok, str(report)


def test_the_database_is_put_back(shop: Shop) -> None:
    shop.inbox.on("order.paid")(handlers.careful(shop))
    shop.inbox.process(**{**ORDER, "id": "evt_0"})  # type: ignore[arg-type]
    with shop.inbox.transaction() as tx:
        before = shop.effect(tx)
    assert prove_exactly_once(shop.inbox, ORDER, check=shop.effect, modes=ONE_MODE).ok
    with shop.inbox.transaction() as tx:
        assert shop.effect(tx) == before
    assert shop.inbox.admin.stats().done == 1
    assert shop.inbox.receive(**{**ORDER, "id": "evt_0"}).status == "duplicate"  # type: ignore[arg-type]
    assert shop.inbox.receive(**ORDER).status == "accepted"  # type: ignore[arg-type]


def test_a_reset_of_the_users_own_is_used(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    prefix = shop.inbox.context.prefix
    tables = ["journal", *(f"{prefix}{name}" for name in ("queue", "body", "ledger", "run", "result", "attempt"))]
    count = 0

    def reset() -> None:
        nonlocal count
        count += 1
        with shop.inbox.transaction() as tx:
            for table in tables:
                tx.execute(f"DELETE FROM {table}")
            tx.execute("UPDATE orders SET paid = 0")

    report = shop.prove(handlers.careful(shop), reset=reset, modes=ONE_MODE)
    assert report.ok, str(report)
    assert count > len(report.cases)


def test_one_of_several_consumers_is_chosen(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    mailer = handlers.mails(shop)
    shop.inbox.on("order.paid", consumer="mailer")(mailer)
    shop.inbox.on("order.paid", consumer="other")(lambda _message, _tx: None)
    with pytest.raises(ConfigurationError, match="name the one to prove"):
        prove_exactly_once(shop.inbox, ORDER, check=shop.effect)
    for handler in (mailer, "mailer"):
        report = prove_exactly_once(
            shop.inbox, ORDER, check=shop.effect, handler=handler, external=lambda: shop.mails, modes=ONE_MODE
        )
        failure(report, "DOUBLED when the process died before statement 2")


def test_what_makes_no_sense_is_refused(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        shop = Shop(inbox).open()
        with pytest.raises(ConfigurationError, match=r"no handler for 'order\.paid'"):
            prove_exactly_once(inbox, ORDER, check=shop.effect)
        with pytest.raises(ConfigurationError, match="choose from"):
            prove_exactly_once(inbox, ORDER, check=shop.effect, modes=["sideways"])
        inbox.on("order.paid")(handlers.careful(shop))
        with pytest.raises(ConfigurationError, match="a list of the calls or a number"):
            prove_exactly_once(inbox, ORDER, check=shop.effect, external=lambda: None)
    with Inbox("sqlite://") as memory, pytest.raises(ConfigurationError, match="in memory"):
        prove_exactly_once(memory, ORDER, check=lambda _: None, real_processes=True)


def test_a_database_in_memory_is_fine() -> None:
    with Inbox("sqlite://") as inbox:
        shop = Shop(inbox).open()
        assert shop.prove(handlers.careful(shop)).ok


async def test_it_works_inside_an_event_loop(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        shop = Shop(inbox).open()
        assert shop.prove(handlers.careful_async(shop)).ok


def test_an_effect_that_check_does_not_show_is_doubted(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        shop = Shop(inbox).open()
        inbox.on("order.paid")(lambda _message, tx: tx.execute(NOTE) and None)
        report = prove_exactly_once(inbox, ORDER, check=lambda tx: tx.execute("SELECT id FROM orders"))
        assert report.ok
        assert "the message changed nothing that check= shows" in str(report)
        assert shop.mails == []
