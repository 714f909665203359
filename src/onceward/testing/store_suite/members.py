"""Processes: what a dead one had claimed comes back, and nothing of it is committed any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onceward.domain import identity
from onceward.errors import GuardFailed
from onceward.flow import ROLLBACK, run_sync
from onceward.message import Message
from onceward.steps import membership
from onceward.stores.moves.claims import Claim
from onceward.stores.moves.membership import Charge, NewWorker
from onceward.stores.moves.queue import Finish
from onceward.testing.store_suite.behaviour import Do, Steps, wrote
from onceward.testing.store_suite.shop import TYPE, Shop


def declare_dead(shop: Shop) -> None:
    """What a supervisor does when it has seen the only worker die."""
    (worker,) = shop.inbox.admin.workers()
    other = shop.another()
    other.step(membership.take_over_process(other.inbox.context, worker.process, "killed by the test"))


def dying(shop: Shop, *ids: str, times: int = 1) -> Any:
    """The process is declared dead while the handler of one of these runs: after its effect, or before where there is
    one writer, beside whose transaction nothing can happen.
    """
    before = shop.inbox.store.single_writer

    def behaviour(message: Message) -> Steps:
        dies = message.id in ids and shop.runs[message.id] <= times
        if dies and before:
            yield Do(lambda _: declare_dead(shop))
        yield wrote(message)
        if dies and not before:
            yield Do(lambda _: declare_dead(shop))

    return behaviour


class Members:
    """Processes: what a dead one had claimed comes back, and nothing of it is committed any more."""

    def test_a_process_is_registered_while_it_works(self, shop: Shop) -> None:
        shop.handle()
        with shop.running():
            (worker,) = shop.inbox.admin.workers()
            assert worker.lease_seconds > 0
            shop.receive("m1")
            shop.wait(lambda: shop.effects() == ["m1"])
        assert shop.inbox.admin.workers() == []

    def test_a_process_that_was_declared_dead_commits_nothing(self, shop: Shop) -> None:
        """Its claim is off, so its finish is refused with everything that its handler wrote; then it runs again."""
        shop.handle(behaviour=dying(shop, "m1"))
        shop.receive("m1")
        shop.drain()
        shop.finish()
        assert (shop.effects(), shop.runs["m1"]) == (["m1"], 2)
        assert [(one.kind, one.charged) for one in shop.detail("m1").history] == [("crash", True)]

    def test_what_kills_its_process_again_and_again_is_dead(self, shop: Shop) -> None:
        shop.handle(behaviour=dying(shop, "m1", times=9))
        shop.receive("m1")
        shop.finish()
        detail = shop.detail("m1")
        assert (detail.status, detail.crashes, shop.effects()) == ("dead", shop.inbox.settings.crash_limit, [])

    def test_a_group_that_died_is_isolated_and_the_innocent_are_not_charged(self, shop: Shop) -> None:
        killer = "m0" if shop.inbox.store.single_writer else "m3"  # the first has written nothing when it dies
        shop.handle(behaviour=dying(shop, killer, times=9))
        ids = [f"m{number}" for number in range(8)]
        for message_id in ids:
            shop.receive(message_id)
        shop.wait(lambda: shop.drain() or shop.status(killer) == "dead")
        shop.finish()
        assert shop.effects() == [one for one in ids if one != killer]
        assert all(not attempt.charged for one in ids if one != killer for attempt in shop.detail(one).history)

    def test_a_worker_that_is_gone_without_a_word_is_found_by_its_lease(self, shop: Shop) -> None:
        """No row stays with a worker that does not renew its lease."""
        claim = shop.another()
        claim.handle()
        claim.drain()  # its subscription is known from now on
        shop.receive("m1")
        with shop.inbox.store.session() as session:
            abandoned(claim, session)
        assert shop.status("m1") == "running"
        shop.handle()
        with shop.running():
            shop.wait(lambda: shop.effects() == ["m1"])

    @pytest.mark.parametrize("half", ["worker", "token"])
    def test_a_finish_with_half_of_its_claim_changes_nothing(self, shop: Shop, half: str) -> None:
        """A worker has one claim after the other, and tokens are its own numbers: only the pair is one claim."""
        shop.handle()
        shop.drain()  # its subscription is known from now on
        seq = shop.receive("m1").seq
        queue = shop.inbox.context.moves.queue
        with shop.inbox.store.session() as session:
            claim = abandoned(shop, session)
            right = Finish(claim.worker, claim.token, "", "a fence", [seq])
            other: dict[str, Any] = {"worker": claim.worker + 1} if half == "token" else {"token": claim.token + 1}
            run_sync(queue.begin(5, "a fence", savepoint=False), session.perform)
            with pytest.raises(GuardFailed):
                run_sync(queue.finish(replace(right, **other)), session.perform)
            session.perform(ROLLBACK)
            assert shop.status("m1") == "running"
            run_sync(queue.begin(5, "a fence", savepoint=False), session.perform)
            run_sync(queue.finish(right), session.perform)
            run_sync(membership.deregister(shop.inbox.context, claim.worker), session.perform)
        assert shop.status("m1") == "done"

    def test_messages_are_shared_among_processes_and_each_runs_once(self, shop: Shop) -> None:
        shop.handle(group=3)
        other = shop.another()
        other.handle(group=3)
        ids = [f"m{number:02}" for number in range(40)]
        for message_id in ids:
            shop.receive(message_id, TYPE)
        with shop.running(), other.running():
            shop.wait(lambda: len(shop.effects()) == len(ids))
        assert shop.effects() == ids


def abandoned(shop: Shop, session: Any) -> Claim:
    """Claim what is due in the name of a process whose lease is over at once, and do nothing more."""
    moves, number = shop.inbox.context.moves, identity.new_number()
    worker = NewWorker(number, f"gone-{number}", "nowhere", 0, "", "", 1, inline=False, lease=0.0)
    run_sync(moves.membership.register(worker, str, Charge(3, lambda _: None)), session.perform)  # type: ignore[arg-type, return-value] # none is charged
    catalog = run_sync(moves.catalog.load_catalog(), session.perform)
    claim = Claim(number, identity.new_number(), [one.id for one in catalog.subscriptions], limit=10)
    assert run_sync(moves.claims.claim(claim), session.perform).kept
    return claim
