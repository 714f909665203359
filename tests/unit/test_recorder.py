"""The `tx` that records: only for the handler that has it, and only what stands at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward.errors import ContractViolation, GuardFailed, HandlerTimeout, StoreUnavailable
from onceward.flow import Outcome
from onceward.stores.dry_run import Statement
from onceward.stores.recording import Open, Recorder, Recording, Savepoint, Undo, examined


@pytest.fixture
def session() -> Recording[Recorder]:
    session = Recording(Recorder, "redis")
    session.keep(Open())
    return session


def test_what_was_recorded_since_the_last_savepoint_is_forgotten(session: Recording[Recorder]) -> None:
    with session.lent() as tx:
        tx.record("a")
        session.keep(Savepoint())
        tx.record("b")
        session.keep(Savepoint())
        tx.record("c")
        tx.record("d")
        session.keep(Undo())
        assert tx.writes == ["a", "b"]
        tx.record("e")
        session.keep(Undo())
        assert tx.statements_shown() == [Statement("a", ""), Statement("b", "")]


@pytest.mark.parametrize("call", [Recorder.commit, Recorder.rollback])
def test_a_handler_cannot_end_it(session: Recording[Recorder], call: Callable[[Recorder], None]) -> None:
    with session.lent() as tx, pytest.raises(ContractViolation, match="belongs to onceward"):
        call(tx)


@pytest.mark.parametrize("call", [Recorder.commit, Recorder.rollback, lambda tx: tx.record("late")])
def test_after_its_handler_it_is_refused(session: Recording[Recorder], call: Callable[[Recorder], None]) -> None:
    with session.lent() as tx:
        tx.record("a")
    with pytest.raises(ContractViolation, match="outside of its handler"):
        call(tx)
    assert tx.writes == ["a"]


@pytest.mark.parametrize("call", [Recorder.commit, Recorder.rollback, lambda tx: tx.record("late")])
def test_after_the_timeout_it_is_refused(session: Recording[Recorder], call: Callable[[Recorder], None]) -> None:
    with session.lent() as tx:
        session.interrupt()
        with pytest.raises(HandlerTimeout):
            call(tx)
        assert tx.writes == []


def test_whether_it_was_used_is_known(session: Recording[Recorder]) -> None:
    with session.lent() as tx:
        assert not examined(Outcome(), tx).touched
        tx.record("a")
        assert examined(Outcome(), tx).touched


def test_a_session_without_a_transaction_has_lost_it() -> None:
    session = Recording(Recorder, "redis")
    session.interrupt()
    for request in (Savepoint(), Undo()):
        with pytest.raises(GuardFailed):
            session.keep(request)
    with pytest.raises(GuardFailed), session.lent():
        pass


@pytest.mark.parametrize("end", ["is_cut", "is_open"])
def test_a_closed_session_is_unavailable(end: str) -> None:
    session = Recording(Recorder, "redis")
    session.check()
    setattr(session, end, end == "is_cut")
    with pytest.raises(StoreUnavailable, match="redis is closed"):
        session.check()
