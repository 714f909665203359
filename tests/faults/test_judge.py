"""The judge is shown a run in which everything was right but for one thing (R70)."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from faults import effect, judge, plan
from faults.judge import Effects, Lists, Row
from faults.place import Place
from faults.plan import QUICK, Payment

PLAN = plan.make(3, QUICK)
BOOKED = [payment for payment in PLAN.payments if payment.books]
POISONS = [payment.id for payment in PLAN.payments if payment.kind == "poison"]
TRIED = {PLAN.killer.id: 3}


def rows_of(payments: list[Payment]) -> list[Row]:
    return [(payment.id, payment.account, payment.position) for payment in payments]


def effects_of(payments: list[Payment]) -> Effects:
    balances: Counter[str] = Counter({payment.account: 0 for payment in PLAN.payments})
    for payment in payments:
        balances[payment.account] += payment.amount
    return Effects(rows_of(payments), dict(balances))


def verdict_of(payments: list[Payment], **options: Any) -> judge.Verdict:
    lists = options.pop("lists", Lists(failed=[*POISONS, PLAN.killer.id]))
    return judge.judge(PLAN, effects_of(payments), TRIED, lists, at_rest=options.pop("at_rest", True))


def test_what_is_right_is_clean() -> None:
    verdict = verdict_of(BOOKED)
    assert verdict.clean
    assert verdict.contained
    assert verdict.killer_ended
    assert (verdict.killer_attempts, verdict.killer_shown) == (3, "failed")
    assert verdict.poisons_visible == verdict.poisons == QUICK.poisons


def test_a_payment_without_a_row_is_lost() -> None:
    verdict = verdict_of(BOOKED[1:])
    assert verdict.lost == [BOOKED[0].id]
    assert verdict.wrong == [BOOKED[0].account]
    assert not verdict.stuck
    assert verdict.contained, "the tool was done with it"
    assert not verdict.clean


def test_one_that_the_tool_still_holds_is_stuck() -> None:
    verdict = verdict_of(BOOKED[1:], lists=Lists(held=[BOOKED[0].id]))
    assert (verdict.stuck, verdict.lost) == ([BOOKED[0].id], [])
    assert not verdict.contained
    assert not verdict.clean


def test_a_second_row_is_a_double() -> None:
    verdict = verdict_of([*BOOKED, BOOKED[5]])
    assert verdict.doubled == [BOOKED[5].id]
    assert verdict.wrong == [BOOKED[5].account]
    assert not verdict.disordered, "the first booking counts for the order"


def test_a_balance_without_its_row_is_wrong() -> None:
    effects = effects_of(BOOKED)
    effects.balances[BOOKED[0].account] += 1
    verdict = judge.judge(PLAN, effects, TRIED, Lists(), at_rest=True)
    assert (verdict.wrong, verdict.doubled) == ([BOOKED[0].account], [])
    assert not verdict.clean


def test_a_poison_message_that_changed_a_balance_is_seen() -> None:
    effects = effects_of(BOOKED)
    effects.balances[PLAN.killer.account] += PLAN.killer.amount
    assert judge.judge(PLAN, effects, TRIED, Lists(), at_rest=True).wrong == [PLAN.killer.account]


def test_a_later_one_first_is_disorder() -> None:
    account = BOOKED[0].account
    own = [payment for payment in BOOKED if payment.account == account]
    verdict = verdict_of([*(payment for payment in BOOKED if payment.account != account), own[1], own[0], *own[2:]])
    assert verdict.disordered == [own[0].id]
    assert not verdict.wrong
    assert not verdict.clean


def test_poison_that_the_tool_does_not_show_is_not_visible() -> None:
    assert verdict_of(BOOKED, lists=Lists(failed=POISONS[:1])).poisons_visible == 1


@pytest.mark.parametrize(
    ("lists", "shown"), [(Lists(), "nowhere"), (Lists(held=[PLAN.killer.id]), "held")], ids=["gone", "held"]
)
def test_where_the_killer_is_in_the_end(lists: Lists, shown: str) -> None:
    verdict = verdict_of(BOOKED, lists=lists, at_rest=False)
    assert (verdict.killer_shown, verdict.killer_ended, verdict.contained) == (shown, False, True)


def test_it_reads_what_the_handler_wrote(tmp_path: Path) -> None:
    """The real handler on real tables: the one that raises once writes at its second attempt, the poison never."""
    place = Place(f"sqlite:///{tmp_path}/effects.db", str(tmp_path))
    place.attempts.mkdir()
    judge.run(place.database, effect.tables("sqlite", sorted({payment.account for payment in PLAN.payments})))
    with closing(judge.connect(place.database)) as connection:
        for payment in PLAN.payments:
            if payment.kind == "killer":
                continue
            for _ in range(2):
                try:
                    effect.book(place, payment, connection.execute)
                except (effect.RaisesOnce, effect.Poison):
                    connection.rollback()
                else:
                    connection.commit()
                    break
    found = judge.read(place.database)
    tried = judge.attempts(place.attempts)
    assert [row[0] for row in found.rows] == [payment.id for payment in BOOKED]
    assert judge.judge(PLAN, found, tried, Lists(), at_rest=True).clean
    assert {tried[payment.id] for payment in PLAN.payments if payment.kind in ("raises once", "poison")} == {2}
    assert PLAN.killer.id not in tried
