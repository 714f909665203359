"""Real processes, real servers, a few real faults: onceward is clean, and the judge agrees with the tables (R70)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults import lineup
from faults.plan import QUICK
from faults.trial import Outcome, run

SMALL = replace(QUICK, messages=80, kills=2, restarts=1, suspensions=0, raises=2, poisons=1)
SEED = 70


def outcome_of(name: str) -> Outcome:
    (contender,) = (one for one in lineup.ALL if one.name == name)
    return run(replace(contender, lease_seconds=1, patience_seconds=20), SEED, SMALL)


@pytest.mark.needs("PostgreSQL")
@pytest.mark.timeout(300)
def test_onceward_is_clean_and_contains_the_killer() -> None:
    outcome = outcome_of("onceward, store-first")
    assert outcome.verdict.clean, outcome
    assert outcome.verdict.contained
    assert outcome.verdict.killer_ended
    assert outcome.verdict.killer_shown == "failed"
    assert outcome.verdict.poisons_visible == outcome.verdict.poisons == 1
    assert outcome.strikes == {"kill": 2, "restart": 1}
    assert outcome.deaths >= outcome.verdict.killer_attempts + 1, "the killer's, and those of the nemesis"


@pytest.mark.needs("PostgreSQL", "RabbitMQ")
@pytest.mark.timeout(300)
def test_the_careless_consumer_is_judged_by_what_it_did() -> None:
    """Whether it doubles is luck; that a double is a wrong balance, and a wrong balance has a cause, is not."""
    verdict = outcome_of("careless consumer").verdict
    assert bool(verdict.wrong) == bool(verdict.doubled or verdict.lost or verdict.stuck)
    assert verdict.poisons_visible <= verdict.poisons
