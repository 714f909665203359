"""The protocol with one guard switched off at a time: each must go wrong, and go wrong in the expected way.

A model that finds nothing proves nothing unless it does find these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.model import scenarios
from tests.model.world import Guards, Scenario, World


@dataclass(frozen=True)
class Variant:
    """A broken protocol, the world that shows it, and what goes wrong there."""

    name: str
    guard: str  # the field of `Guards` that is switched off
    scenario: Scenario
    kind: str

    def world(self) -> World:
        """The scenario without the guard."""
        switched: dict[str, bool] = {self.guard: False}
        return World(self.scenario, replace(Guards(), **switched))


VARIANTS: Final = (
    Variant("acknowledge before commit", "acknowledge_after_commit", scenarios.TWICE, "lost"),
    Variant("check, then insert", "insert_is_unique", scenarios.TWICE, "doubled"),
    Variant("flag as waiting at insert", "park_at_claim", scenarios.ORDER, "stuck"),
    Variant("park without the key lock", "claim_takes_key_lock", scenarios.PAIR, "stuck"),
    Variant("claim without the key lock", "claim_takes_key_lock", scenarios.ORDER, "overlap"),
    Variant("zombie may claim", "claim_needs_worker_row", scenarios.PAIR, "stuck"),
    Variant("worker row checked, not locked", "claim_locks_worker_row", scenarios.PAIR, "stuck"),
    Variant("lost answer to a claim forgotten", "claim_outcome_is_read", scenarios.ORDER, "stuck"),
    Variant("head check by the view of the pick", "head_check_has_new_view", scenarios.PAIR, "stuck"),
    Variant("head check blind to notes", "head_check_sees_notes", scenarios.ORDER, "overlap"),
    Variant("successor runs while the head backs off", "head_check_sees_retry", scenarios.ORDER, "order"),
    Variant("successor runs while the head is dead", "head_check_sees_dead", scenarios.ORDER, "order"),
    Variant("park behind a later message", "park_only_behind_earlier", scenarios.ORDER, "stuck"),
    Variant("promote without the key lock", "finish_takes_key_lock", scenarios.PAIR, "stuck"),
    Variant("finish does not count rows", "finish_counts_rows", scenarios.PAIR, "doubled"),
    Variant("finish by id", "finish_matches_note", scenarios.PAIR, "overlap"),
    Variant("finish by worker, without token", "finish_matches_token", scenarios.WATCHDOG, "overlap"),
    Variant("no promote after finish", "promote_after_finish", scenarios.PAIR, "stuck"),
    Variant("promote by the view before the lock", "promote_has_new_view", scenarios.PAIR, "stuck"),
    Variant("promote another than the lowest", "promote_lowest", scenarios.SHORT_CHAIN, "stuck"),
    Variant("settle by id", "settle_matches_note", scenarios.TROUBLED_ORDER, "overlap"),
    Variant("successor of one put aside runs", "aside_releases_successors", scenarios.GROUPS, "order"),
    Variant("successor of one settled runs", "settle_releases_successors", scenarios.LATE_GROUPS, "order"),
    Variant("take-over leaves the notes", "take_over_clears_notes", scenarios.PAIR, "stuck"),
    Variant("crash charges the whole group", "charge_only_alone", scenarios.GROUPS, "charged"),
    Variant("innocent charged", "charge_only_alone", scenarios.POISON, "charged"),
    Variant("solo row runs with others", "solo_runs_alone", scenarios.GROUPS, "solo"),
    Variant("redrive of a running message", "redrive_only_dead", scenarios.ORDER, "overlap"),
    Variant("discard without promote", "discard_promotes", scenarios.ORDER, "stuck"),
    Variant("discard without the key lock", "discard_takes_key_lock", scenarios.ORDER, "stuck"),
    Variant("inline without the key lock", "inline_takes_key_lock", scenarios.INLINE, "overlap"),
)
