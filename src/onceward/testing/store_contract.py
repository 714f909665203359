"""What `stores/protocol.py` asks of a store, as checks for whoever writes one.

    @pytest.mark.parametrize("promise", PROMISES, ids=str)
    def test_my_store(promise):
        promise.check(open_my_store)

`open_store()` answers a new store on a migrated, disposable database, which is empty or shared by all promises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

from onceward.domain import identity
from onceward.errors import ContractViolation, GuardFailed, StoreError
from onceward.flow import COMMIT, RECONNECT, ROLLBACK, Call, Outcome, Query, run_sync
from onceward.message import Delivery
from onceward.registry import Handler, Registry
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from onceward.steps.context import Context
from onceward.steps.receive import receive
from onceward.stores.protocol import Session, Store
from onceward.testing.process import apart
from onceward.testing.promises import Promise, PromiseBroken, expect, keep_all

OpenStore = Callable[[], Store]


def store_contract(open_store: OpenStore) -> list[str]:
    """Check every promise of a store; answers the sentences, or raises `PromiseBroken` with what was broken."""
    return keep_all(PROMISES, open_store)


def migrating_again_changes_nothing(open_store: OpenStore) -> None:
    """The tables are there, and a second migration has nothing to do."""
    with _opened(open_store) as store:
        expect(store.migrate() == [], "migrate() applied something to a database that was migrated already")
        store.check_schema()
        expect(store.prefix in store.migration_sql(), "migration_sql() does not show the tables")


def what_is_committed_is_there(open_store: OpenStore) -> None:
    """A committed row is seen by every other session; a session is idle before and after."""
    with _opened(open_store) as store, _session(store) as session:
        name = _fresh()
        expect(session.idle, "a new session is not idle")
        session.perform(_context(store).short())
        session.perform(Query("add_name", {"name": name}))
        expect(not session.idle, "a session with an open transaction says that it is idle")
        if not store.single_writer:
            expect(name not in _names(store), "a row is seen before it is committed")
        session.perform(COMMIT)
        expect(session.idle, "the session is not idle after COMMIT")
        expect(name in _names(store), "a committed row is not there")


def what_is_rolled_back_is_gone(open_store: OpenStore) -> None:
    """ROLLBACK undoes everything since Begin, and is fine where there is nothing to undo."""
    with _opened(open_store) as store, _session(store) as session:
        name = _fresh()
        session.perform(ROLLBACK)
        session.perform(_context(store).short())
        session.perform(Query("add_name", {"name": name}))
        session.perform(ROLLBACK)
        session.perform(ROLLBACK)
        expect(session.idle, "the session is not idle after ROLLBACK")
        expect(name not in _names(store), "a row survived ROLLBACK")


def closing_rolls_back(open_store: OpenStore) -> None:
    """Closing a session in the middle of a transaction undoes it; closing twice is fine."""
    with _opened(open_store) as store:
        name, session = _fresh(), store.connect()
        session.perform((_context(store).short(), Query("add_name", {"name": name})))
        session.close()
        session.close()
        expect(name not in _names(store), "a row survived although its session was closed before COMMIT")


def a_transaction_begins_lazily(open_store: OpenStore) -> None:
    """After Begin nothing is open and nothing is locked until the first statement; COMMIT of nothing is fine."""
    with _opened(open_store) as store, _session(store) as session:
        session.perform(_context(store).short())
        expect(session.idle, "Begin alone opened a transaction")
        name = _fresh()
        _add_name(store, name)
        expect(name in _names(store), "Begin alone kept another session from writing")
        session.perform(COMMIT)
        expect(session.idle, "COMMIT of nothing left a transaction open")


def requests_travel_together(open_store: OpenStore) -> None:
    """A tuple of requests is answered with the tuple of their answers, rows as tuples."""
    with _opened(open_store) as store, _session(store) as session:
        name = _fresh()
        answers = session.perform((_context(store).short(), Query("add_name", {"name": name}), Query("names"), COMMIT))
        expect(len(answers) == 4, f"four requests were answered with {len(answers)} answers")  # noqa: PLR2004 - as above
        expect(name in [row[1] for row in answers[2]], "a statement did not see the one before it in its tuple")


def an_error_is_one_of_ours(open_store: OpenStore) -> None:
    """A driver's error is raised as a StoreError with the driver's as its cause, and ROLLBACK works afterwards."""
    with _opened(open_store) as store, _session(store) as session:
        session.perform(_context(store).short())
        try:
            session.perform(Query("add_name", {"name": None}))
        except StoreError as error:
            expect(error.__cause__ is not None, "the StoreError does not name the driver's error as its cause")
        else:
            raise PromiseBroken("a statement that cannot succeed raised nothing")
        session.perform(ROLLBACK)
        expect(session.idle, "the session is not idle after an error and ROLLBACK")


def a_guard_that_fails_raises(open_store: OpenStore) -> None:
    """`finish` under a note that is not there raises GuardFailed, and nothing of its transaction stays."""
    with _opened(open_store) as store, _session(store) as session:
        (seq,), name = _received(store, _fresh()), _fresh()
        session.perform(_context(store).long(5, "0.0.0"))
        session.perform(Query("add_name", {"name": name}))
        note = {"worker": -1, "token": -1, "code_version": "", "mark": "0.0.0", "expected": 1}
        with _raising(GuardFailed, "finish went through without a note"):
            session.perform((Query("finish", {"seqs": [seq], **note}), COMMIT))
        session.perform(ROLLBACK)
        expect(name not in _names(store), "what was written beside a guard that failed is there")


def a_copy_changes_nothing(open_store: OpenStore) -> None:
    """The unique key decides: the same message again inserts no row and answers the number of the first."""
    with _opened(open_store) as store:
        message = _fresh()
        first, again = _received(store, message, message), _received(store, message)
        expect({*first, *again} == {first[0]}, f"copies of one message have the numbers {[*first, *again]}")
        rows = f"SELECT count(*) FROM {store.prefix}queue WHERE seq = {first[0]}"
        with store.raw() as connection:
            expect(connection.execute(rows).fetchone()[0] == 1, "a copy has a queue row of its own")


def a_handler_cannot_end_its_transaction(open_store: OpenStore) -> None:
    """Tx refuses commit(), rollback() and COMMIT from inside a handler, at that line, and nothing is committed."""
    with _opened(open_store) as store:
        for attempt in (lambda tx: tx.commit(), lambda tx: tx.rollback(), lambda tx: tx.execute("COMMIT")):
            with _session(store) as session:
                name = _fresh()
                outcome = _called(store, session, name, attempt)
                expect(isinstance(outcome.error, ContractViolation), f"a handler ended its transaction: {outcome}")
                session.perform(ROLLBACK)
                expect(name not in _names(store), "what the handler wrote was committed by the handler")


def a_handler_answers_an_outcome(open_store: OpenStore) -> None:
    """Whatever a handler raises is the error of an Outcome; what it returns is the value; tx is dead afterwards."""
    kept: list[Any] = []

    def keep(tx: Any) -> int:
        kept.append(tx)
        return 5

    with _opened(open_store) as store, _session(store) as session:
        outcome = _called(store, session, _fresh(), lambda _: 1 / 0)
        expect(isinstance(outcome.error, ZeroDivisionError), f"an error of the handler became {outcome}")
        session.perform(ROLLBACK)
        name = _fresh()
        outcome = _called(store, session, name, keep)
        expect(outcome.value == 5 and outcome.error is None, f"a returned 5 became {outcome}")  # noqa: PLR2004 - as above
        session.perform(COMMIT)
        expect(name in _names(store), "what the handler wrote is not there after COMMIT")
        with _raising(ContractViolation, "tx works after its handler has ended"):
            kept[0].execute(f"SELECT * FROM {store.prefix}name")


def commit_tells_the_truth(open_store: OpenStore) -> None:
    """After a handler has swallowed a database error, COMMIT raises, or everything is there."""

    def swallow(tx: Any) -> None:
        with contextlib.suppress(Exception):
            tx.execute("SELECT * FROM there_is_no_such_table_at_all")

    with _opened(open_store) as store, _session(store) as session:
        name = _fresh()
        _called(store, session, name, swallow)
        try:
            session.perform(COMMIT)
        except (StoreError, ContractViolation):
            session.perform(ROLLBACK)
            expect(name not in _names(store), "COMMIT raised, and yet something was committed")
        else:
            expect(name in _names(store), "COMMIT returned, and yet nothing was committed")


def a_broken_session_comes_back(open_store: OpenStore) -> None:
    """Reconnect gives a closed session a new connection and says so."""
    with _opened(open_store) as store, _session(store) as session:
        session.close()
        expect(session.perform(RECONNECT) is True, "Reconnect did not answer True although the database is there")
        name = _fresh()
        session.perform((_context(store).short(), Query("add_name", {"name": name}), COMMIT))
        expect(name in _names(store), "a reconnected session does not write")


def a_joined_transaction_is_the_callers(open_store: OpenStore) -> None:
    """What is written through `join` is there when, and only when, the caller's own transaction commits."""
    with _opened(open_store) as store:
        undone, done = _fresh(), _fresh()
        with contextlib.suppress(ZeroDivisionError), store.raw() as connection:
            connection.execute(f"SELECT count(*) FROM {store.prefix}name")
            store.join(connection).perform(Query("add_name", {"name": undone}))
            raise ZeroDivisionError
        with store.raw() as connection:
            connection.execute(f"SELECT count(*) FROM {store.prefix}name")
            store.join(connection).perform(Query("add_name", {"name": done}))
        names = _names(store)
        expect(undone not in names, "a joined row survived the rollback of its transaction")
        expect(done in names, "a joined row is not there after its transaction was committed")


def async_sessions_do_the_same(open_store: OpenStore) -> None:
    """An async session commits, rolls back, and undoes what was open when it is abandoned."""

    async def use(store: Store, names: list[str]) -> None:
        begin = _context(store).short()
        session = await store.async_connect()
        await session.perform((begin, Query("add_name", {"name": names[0]}), COMMIT))
        await session.perform((begin, Query("add_name", {"name": names[1]})))
        await session.perform(ROLLBACK)
        expect(session.idle, "an async session is not idle after ROLLBACK")
        await session.perform((begin, Query("add_name", {"name": names[2]})))
        await session.close()
        await store.async_close()

    with _opened(open_store) as store:
        names = [_fresh() for _ in range(3)]
        apart(lambda: asyncio.run(use(store, names)))
        expect([name in _names(store) for name in names] == [True, False, False], "an async session keeps other rows")


PROMISES = tuple(
    Promise(check)
    for check in (
        migrating_again_changes_nothing,
        what_is_committed_is_there,
        what_is_rolled_back_is_gone,
        closing_rolls_back,
        a_transaction_begins_lazily,
        requests_travel_together,
        an_error_is_one_of_ours,
        a_guard_that_fails_raises,
        a_copy_changes_nothing,
        a_handler_cannot_end_its_transaction,
        a_handler_answers_an_outcome,
        commit_tells_the_truth,
        a_broken_session_comes_back,
        a_joined_transaction_is_the_callers,
        async_sessions_do_the_same,
    )
)


@contextmanager
def _opened(open_store: OpenStore) -> Iterator[Store]:
    with closing(open_store()) as store:
        yield store


@contextmanager
def _session(store: Store) -> Iterator[Session]:
    with closing(store.connect()) as session:
        yield session


@contextmanager
def _raising(kind: type[Exception], otherwise: str) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise PromiseBroken(otherwise)


def _fresh() -> str:
    return f"contract-{identity.new_id()}"


def _context(store: Store) -> Context:
    return Context("contract", store.prefix, "", Settings(), Registry())


def _names(store: Store) -> set[str]:
    with store.session() as session:
        answers = session.perform((_context(store).short(), Query("names"), COMMIT))
    return {name for _, name in answers[1]}


def _add_name(store: Store, name: str) -> None:
    with store.session() as session:
        session.perform((_context(store).short(), Query("add_name", {"name": name}), COMMIT))


def _received(store: Store, *ids: str) -> list[int]:
    context = _context(store)
    deliveries = [Delivery.of(source="contract", id=one, type="contract", data=1) for one in ids]
    with store.session() as session:
        receipts = run_sync(receive(context, context.cache, deliveries), session.perform)
    return [receipt.seq for receipt in receipts]


def _called(store: Store, session: Session, name: str, act: Callable[[Any], Any]) -> Outcome:
    """Call a handler that writes a row and then acts, in a transaction that is left open."""

    def function(_message: Any, tx: Any) -> Any:
        tx.execute(f"INSERT INTO {store.prefix}name (name) VALUES ('{name}')")
        return act(tx)

    limit = timedelta(seconds=5)
    handler = Handler(function, "contract", "contract", 1, None, RetryPolicy(), limit, 1)
    session.perform(_context(store).long(limit.total_seconds(), ""))
    outcome: Outcome = session.perform(Call(handler, None))
    return outcome
