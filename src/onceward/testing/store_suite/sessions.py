"""Sessions: what is committed is there, what is not is gone, and a handler cannot end its transaction."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import ConfigurationError, ContractViolation, GuardFailed
from onceward.flow import RECONNECT, ROLLBACK, Call, Outcome, run_sync
from onceward.message import Message
from onceward.registry import Handler
from onceward.retry import RetryPolicy
from onceward.stores.moves.queue import Finish
from onceward.testing.store_suite.behaviour import Do, Steps, wrote
from onceward.testing.store_suite.shop import Shop, threads


class Sessions:
    """Sessions: what is committed is there, what is not is gone, and a handler cannot end its transaction."""

    def test_migrating_again_changes_nothing(self, shop: Shop) -> None:
        assert shop.inbox.migrate() == []
        assert shop.inbox.store.check_schema() == []

    def test_a_new_session_is_idle_and_rolling_back_nothing_is_fine(self, shop: Shop) -> None:
        with closing(shop.inbox.store.connect()) as session:
            assert session.idle
            session.perform(ROLLBACK)
            session.perform(ROLLBACK)
            assert session.idle

    def test_what_a_move_has_returned_is_seen_by_every_session(self, shop: Shop) -> None:
        catalog = shop.inbox.context.moves.catalog
        with closing(shop.inbox.store.connect()) as session:
            run_sync(catalog.add_names(["a name"]), session.perform)
            assert session.idle
        other = shop.another()
        assert "a name" in other.step(other.inbox.context.moves.catalog.names()).values()

    def test_a_finish_without_its_claim_raises_and_leaves_nothing(self, shop: Shop) -> None:
        """The guard of every finish: worker and token are on every row, or nothing of the transaction happens."""
        shop.handle()
        seq = shop.receive("m1").seq
        queue = shop.inbox.context.moves.queue
        finish = Finish(worker=1, token=1, code_version="", fence="a fence", seqs=[seq])
        with closing(shop.inbox.store.connect()) as session:
            run_sync(queue.begin(5, "a fence", savepoint=False), session.perform)
            session.perform(Call(writing(shop), [message(seq)]))
            with pytest.raises(GuardFailed):
                run_sync(queue.finish(finish), session.perform)
            session.perform(ROLLBACK)
            assert session.idle
        assert (shop.effects(), shop.status("m1")) == ([], "due")
        shop.drain()

    def test_closing_a_session_undoes_what_it_has_open(self, shop: Shop) -> None:
        queue, session = shop.inbox.context.moves.queue, shop.inbox.store.connect()
        run_sync(queue.begin(5, "a fence", savepoint=False), session.perform)
        session.perform(Call(writing(shop), [message(1)]))
        session.close()
        session.close()
        assert shop.effects() == []

    def test_a_closed_session_comes_back(self, shop: Shop) -> None:
        with closing(shop.inbox.store.connect()) as session:
            session.close()
            assert session.perform(RECONNECT) is True
            run_sync(shop.inbox.context.moves.catalog.add_names(["again"]), session.perform)
        assert "again" in shop.step(shop.inbox.context.moves.catalog.names()).values()

    def test_a_session_that_was_cut_does_nothing_more(self, shop: Shop) -> None:
        """What a worker does at its end, from another thread: the transaction is undone, and no other is begun."""
        queue = shop.inbox.context.moves.queue
        with closing(shop.inbox.store.connect()) as session:
            run_sync(queue.begin(5, "a fence", savepoint=False), session.perform)
            session.perform(Call(writing(shop), [message(1)]))
            session.cut()
            with suppress(Exception):  # whatever it says
                run_sync(queue.finish(Finish(1, 1, "", "a fence", [])), session.perform)
        assert shop.effects() == []

    def test_what_a_handler_raises_is_the_error_of_its_outcome(self, shop: Shop) -> None:
        with closing(shop.inbox.store.connect()) as session:
            run_sync(shop.inbox.context.moves.queue.begin(5, "", savepoint=False), session.perform)
            outcome: Outcome = session.perform(Call(handler(lambda _message, _tx: 1 / 0), [message(1)]))
            session.perform(ROLLBACK)
        assert isinstance(outcome.error, ZeroDivisionError)
        assert not outcome.infrastructure

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_a_handler_cannot_end_its_transaction(self, shop: Shop, end: str) -> None:
        """Refused at that line, and the message is dead with the reason; nothing of it is committed."""

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            yield Do(lambda tx: getattr(tx, end)())

        shop.handle(behaviour=behaviour)
        shop.receive("m1")
        shop.drain()
        assert (shop.status("m1"), shop.effects()) == ("dead", [])
        assert ContractViolation.__name__ in shop.error("m1")

    def test_a_transaction_is_of_no_use_after_its_handler(self, shop: Shop) -> None:
        kept: list[Any] = []
        shop.handle(behaviour=lambda message: keeping(kept, message))
        shop.receive("m1")
        shop.drain()
        with suppress(Exception):  # whatever it says
            written = shop.place.write(kept[0], ("late", "late"))
            if written is not None and hasattr(written, "__await__"):
                shop.await_(awaited(written))
        assert shop.effects() == ["m1"]

    def test_a_callers_transaction_is_joined_or_refused(self, shop: Shop) -> None:
        """Stored when, and only when, that commits; a store that cannot do so says it before anything is stored."""
        shop.handle()
        if "callers' transactions" not in shop.inbox.store.capabilities:
            with pytest.raises(ConfigurationError, match="leave tx= out"):
                shop.receive("m1", tx=object())
            assert shop.inbox.admin.messages() == []
        elif shop.kind == "def":
            with suppress(ZeroDivisionError), shop.inbox.transaction() as tx:
                shop.receive("undone", tx=tx)
                raise ZeroDivisionError
            with shop.inbox.transaction() as tx:
                shop.receive("done", tx=tx)
            shop.drain()
            assert shop.effects() == ["done"]

    def test_no_thread_is_left_by_an_inbox_that_was_closed(self, shop: Shop) -> None:
        before = threads()
        with shop.visitor() as other:
            other.handle()
            other.receive("m1")
            other.drain()
        assert threads() <= before

    def test_listeners_are_woken_and_can_be_closed(self, shop: Shop) -> None:
        woken: list[int] = []
        listener = shop.inbox.store.watch(lambda: woken.append(1))
        shop.handle()
        shop.receive("m1")
        shop.wait(lambda: woken)
        listener.close()
        shop.drain()


def handler(function: Any) -> Handler:
    """A handler of a list, as a session is given it."""
    return Handler(function, "m", "m", 1, None, RetryPolicy(), timedelta(seconds=5), 1)


def writing(shop: Shop) -> Handler:
    """One that has an effect."""
    return handler(lambda _messages, tx: shop.place.write(tx, ("m1", "never")))


def message(seq: int) -> Any:
    """Whatever a handler is called with."""
    return seq


def keeping(kept: list[Any], message: Message) -> Steps:
    """One effect, and the transaction is kept."""
    yield wrote(message)
    yield Do(kept.append)


async def awaited(written: Any) -> Any:
    """What a handler would await."""
    return await written
