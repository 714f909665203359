"""The protocol is right in every state of every scenario, and each of its guards is needed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model import scenarios
from tests.model.bounds import Scenario
from tests.model.guards import Guards
from tests.model.search import explore
from tests.model.variants import VARIANTS, Variant
from tests.model.world import World

# A model that had lost half of its moves would still find no violation. So each scenario must have at least
# about nine tenths of the states it had when it was written, and these things must have happened in it.
EXPECTED: dict[Scenario, tuple[int, set[str]]] = {
    scenarios.EVERYTHING: (
        145_000,
        {
            "crash",
            "discard and promote",
            "duplicate while in flight",
            "finish and promote",
            "late commit",
            "leave alone",
            "park",
            "redrive",
            "settle: dead",
            "taken over",
            "taken over, message dead",
            "zombie claim rejected",
            "zombie finish rejected",
        },
    ),
    scenarios.TWICE: (200, {"duplicate while in flight", "crash of a receiver"}),
    scenarios.DUPLICATES: (
        24_000,
        {"late commit", "duplicate while in flight", "crash of a receiver", "park"},
    ),
    scenarios.ORDER: (
        1_000,
        {"settle: again", "settle: dead", "redrive", "discard and promote", "unclaim", "leave alone"},
    ),
    scenarios.TROUBLED_ORDER: (30_000, {"zombie settle rejected", "late commit", "park", "redrive"}),
    scenarios.CHAIN: (15_500, {"late commit", "park", "leave alone", "finish and promote"}),
    scenarios.SHORT_CHAIN: (60, {"park", "finish and promote"}),
    scenarios.LEASES: (
        8_900,
        {
            "connection lost",
            "resume",
            "taken over",
            "taken over, message dead",
            "zombie claim rejected",
            "zombie finish rejected",
        },
    ),
    scenarios.PAIR: (400, {"taken over", "zombie finish rejected", "park", "finish and promote"}),
    scenarios.GROUPS: (42_000, {"run alone", "taken over with a group", "zombie finish rejected"}),
    scenarios.LATE_GROUPS: (25_500, {"run alone", "taken over with a group", "late commit", "leave alone"}),
    scenarios.GROUPS_OF_THREE: (9_000, {"run alone", "taken over with a group", "finish and promote"}),
    scenarios.POISON: (5_200, {"crash", "taken over with a group", "taken over, message dead", "redrive"}),
    scenarios.WATCHDOG: (1_200, {"watchdog gives up", "abandoned finish rejected"}),
    scenarios.INLINE: (
        5_400,
        {"inline: run", "inline: key is busy, queue", "inline: handler raises", "duplicate while in flight"},
    ),
    scenarios.PLACES: (8_600, {"late commit", "park", "leave alone", "settle: dead", "finish and promote"}),
    scenarios.PLACED_GROUPS: (2_100, {"late commit", "run alone", "give back", "finish and promote"}),
    scenarios.ADOPTED: (3_900, {"adopt", "park", "hold", "deadline is over", "finish and promote"}),
    scenarios.NUMBERS: (
        8_200,
        {
            "deadline is over",
            "discard and promote",
            "hold",
            "park",
            "redrive out of order",
            "unblock the key and promote",
            "settle: too late",
            "skip",
        },
    ),
    scenarios.TWO_NUMBERS: (490, {"hold", "discard", "unblock the key", "finish and promote"}),
    scenarios.NUMBERS_IN_GROUPS: (7_300, {"hold", "park", "run alone", "settle: too late", "finish and promote"}),
    scenarios.SAME_NUMBER: (1_900, {"skip", "run alone", "settle: dead, key goes on"}),
    scenarios.GAP: (4_400, {"hold", "skip", "settle: too late, key goes on"}),
    scenarios.LATE_NUMBERS: (3_100, {"redrive", "unblock the key and promote", "settle: too late", "skip"}),
    scenarios.TROUBLED_NUMBERS: (
        8_900,
        {
            "settle: too late, key goes on",
            "taken over, message dead, key goes on",
            "zombie finish rejected",
            "zombie settle rejected",
        },
    ),
    scenarios.CONTINUE: (1_000, {"settle: dead, key goes on", "redrive out of order", "leave alone", "park"}),
    scenarios.UNBLOCK: (
        600,
        {"unblock the key and promote", "redrive out of order", "second operator: nothing to discard", "leave alone"},
    ),
    scenarios.FATAL: (1_400, {"taken over, message dead, key goes on", "redrive out of order", "connection lost"}),
    scenarios.SCHEDULED: (34_000, {"is due", "late commit", "park", "leave alone", "discard", "crash"}),
    scenarios.TWO_SCHEDULED: (104_000, {"is due", "run alone", "park", "zombie finish rejected"}),
    scenarios.RELAY: (7_900, {"publish", "publish again", "settle: again", "settle: dead", "zombie finish rejected"}),
    scenarios.RELAY_BY_STATEMENT: (2_500, {"publish again", "connection lost", "zombie finish rejected"}),
    scenarios.RELAY_GROUPS: (180, {"publish", "publish fails inside a group", "run alone"}),
    scenarios.TROUBLED_RELAY_GROUPS: (
        3_900,
        {"publish again", "publish fails inside a group", "taken over with a group", "zombie finish rejected"},
    ),
    scenarios.ONCE: (
        3_800,
        {
            "call fails, and was made",
            "call says that it was not made",
            "find the result",
            "resolve: it did not happen",
            "resolve: it happened",
            "settle: outcome unknown",
        },
    ),
    scenarios.IDEMPOTENT: (3_000, {"find the intent, call again", "find the result", "zombie finish rejected"}),
    scenarios.INLINE_NUMBERS: (
        6_300,
        {
            "inline: a number is missing, queue",
            "inline: run",
            "inline: skip",
            "inline: store dead, key goes on",
        },
    ),
    scenarios.TWO_INLINE_NUMBERS: (340, {"inline: store dead, key goes on", "hold", "skip"}),
    scenarios.STORED_FIRST: (2_100, {"store with a claim", "zombie claim refused", "taken over"}),
}


@pytest.mark.parametrize("scenario", EXPECTED, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong_in_any_state(scenario: Scenario) -> None:
    states, events = EXPECTED[scenario]
    report = explore(World(scenario))
    assert report.violation is None, str(report.violation)
    assert report.states > states
    assert set(report.events) >= events


def test_one_scenario_has_everything() -> None:
    scenario = scenarios.EVERYTHING
    assert len(scenario.messages) == 3
    assert len({name[0] for name in scenario.messages}) == 2
    assert len(scenario.deliveries) > len(set(scenario.deliveries))
    assert (scenario.budget.crashes, scenario.budget.stops, scenario.budget.redrives) == (2, 1, 1)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_each_variant_goes_wrong(variant: Variant) -> None:
    found = explore(variant.world(), only=variant.kind).violation
    assert found is not None
    assert found.kind == variant.kind
    assert found.trace
    print(found)  # noqa: T201 - the trace; `pytest -rP` shows it


def test_every_guard_has_a_variant() -> None:
    assert {variant.guard for variant in VARIANTS} == {guard.name for guard in fields(Guards)}


def test_variants_go_wrong_where_the_protocol_does_not() -> None:
    assert {variant.scenario for variant in VARIANTS} <= set(EXPECTED)
