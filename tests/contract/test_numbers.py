"""Numbers within a key: what people do about one that was given up, and what is too late to matter (R18, R19)."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import ConfigurationError, Message, Reject
from onceward.flow import COMMIT, Begin, Query
from tests.contract.behaviour import Steps
from tests.contract.harness import Shop
from tests.contract.journal import journal, journaling, open_journal


class Moody:
    """Journals each message; those named here are rejected."""

    def __init__(self, *ids: str) -> None:
        self.rejected = set(ids)

    def __call__(self, message: Message) -> Steps:
        yield from journaling(message)
        if message.id in self.rejected:
            raise Reject("not this one")


def counting(shop: Shop, moody: Moody, **options: Any) -> None:
    open_journal(shop)
    shop.handle(key="k", sequence="n", on_dead="continue", behaviour=moody, **options)


def receive(shop: Shop, *numbers: int) -> None:
    for number in numbers:
        shop.receive(f"n{number}", data={"k": "a", "n": number})


def test_a_number_that_was_given_up_last_may_come_back(shop: Shop) -> None:
    """It takes its old place: nothing later has run, and what follows runs after it."""
    moody = Moody("n2")
    counting(shop, moody)
    receive(shop, 1, 2)
    shop.drain()
    assert shop.status("n2") == "dead"
    moody.rejected.clear()
    assert shop.inbox.admin.redrive(shop.seqs["n2"], out_of_order=True) == 1
    receive(shop, 3)
    shop.drain()
    assert (journal(shop), shop.status("n2")) == (["n1", "n2", "n3"], "done")


def test_a_program_that_does_not_count_any_more(shop: Shop) -> None:
    """What another version has numbered keeps its order: behind a gap it waits here too, and carries no claim."""
    counting(shop, Moody())
    receive(shop, 1, 3)
    with shop.visitor() as newer:
        newer.handle(key="k", on_dead="continue", behaviour=journaling)
        newer.drain()
    assert journal(shop) == ["n1"]
    assert shop.sql(f"SELECT count(*) FROM {shop.prefix}queue WHERE token IS NULL")[0][0] == 1


def test_a_number_that_was_passed_does_not_come_back(shop: Shop) -> None:
    """A later one is applied: it would only be skipped, and the operator is told instead."""
    moody = Moody("n2")
    counting(shop, moody)
    receive(shop, 1, 2, 3)
    shop.drain()
    moody.rejected.clear()
    with pytest.raises(ConfigurationError, match="would only be skipped"):
        shop.inbox.admin.redrive(shop.seqs["n2"], out_of_order=True)
    assert (shop.status("n2"), journal(shop), shop.count("audit")) == ("dead", ["n1", "n3"], 0)
    assert shop.inbox.admin.discard(shop.seqs["n2"]) == 1


def test_numbers_that_were_given_up_come_back_last_first(shop: Shop) -> None:
    """Then all of them run, in order."""
    moody = Moody("n2", "n3")
    counting(shop, moody)
    receive(shop, 1, 2, 3)
    shop.drain()
    moody.rejected.clear()
    with pytest.raises(ConfigurationError, match="Redrive the later ones"):
        shop.inbox.admin.redrive(shop.seqs["n2"], out_of_order=True)
    for message_id in ("n3", "n2"):
        assert shop.inbox.admin.redrive(shop.seqs[message_id], out_of_order=True) == 1
    shop.drain()
    assert journal(shop) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("how", ["receive", "process"])
def test_a_stale_number_need_not_be_readable(shop: Shop, how: str) -> None:
    """R19: nobody would run it, so nobody needs to be troubled with it: it is skipped, not dead."""
    open_journal(shop)
    shop.handle(key="header:k", sequence="header:n", behaviour=journaling)
    shop.receive("n1", headers={"k": "a", "n": "1"})
    shop.drain()
    getattr(shop, how)("again", body=b"{", headers={"k": "a", "n": "1"})
    shop.drain()
    assert (shop.status("again"), journal(shop)) == ("skipped", ["n1"])


def test_a_discarded_message_is_not_queued_again(shop: Shop) -> None:
    """An inline attempt that committed on its own looks for its message after an operator has discarded it."""
    shop.handle()
    seq = shop.receive("m1").seq
    (found,) = shop.sql(f"SELECT consumer, source, id FROM {shop.prefix}ledger")
    own = {
        **dict(zip(("consumer", "source", "stored_id"), found, strict=True)),
        "seq": seq,
        "subscription": 1,
        "key_hash": None,
        "place": None,
        "sequence": None,
        "state": "ready",
        "after": None,
        "unplaced": None,
        "attempts": 1,
    }
    assert shop.inbox.admin.discard(seq) == 1
    with shop.inbox.store.session() as session:
        _, rows, _ = session.perform((Begin(5, 5, 5), Query("requeue_own", own), COMMIT))
    assert (rows, shop.status("m1")) == ([], "discarded")
