"""The history checker: pure functions from a history to its violations."""

from __future__ import annotations

from collections.abc import Callable

from simulation.checks import budget, consumers, identity, once, order, outbox, people, services, states
from simulation.checks.facts import Facts, Violation
from simulation.history import History

Check = Callable[[Facts], list[Violation]]

CHECKS: tuple[Check, ...] = (
    identity.no_loss,
    consumers.everyone_gets_it,
    identity.echoes_are_marked,
    identity.no_double_effect,
    identity.forgotten_in_time,
    identity.effect_iff_done,
    identity.runs_and_results,
    identity.bodies_and_mismatches,
    identity.duplicates_are_recognised,
    order.effects_in_order,
    order.not_before_they_are_due,
    order.numbers_in_order,
    order.one_holder_per_key,
    outbox.sent_iff_committed,
    outbox.published_at_least_once,
    outbox.published_in_order,
    outbox.nobody_is_held_up,
    budget.attempts_are_exact,
    budget.deaths_are_justified,
    budget.charges_are_deserved,
    budget.suspicion_ends,
    services.answers_are_ones_own,
    services.sent_is_there,
    people.every_action_is_written_down,
    states.nobody_is_stuck,
    states.everything_is_settled,
    states.nothing_unexpected,
    once.calls_are_intended_and_single,
)


def violations(history: History) -> list[Violation]:
    """Everything that is wrong with a history."""
    facts = Facts(history)
    return [violation for check in CHECKS for violation in check(facts)]
