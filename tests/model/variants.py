"""The protocol with one guard switched off at a time: each must go wrong, and go wrong in the expected way.

A model that finds nothing proves nothing unless it does find these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.model import scenarios
from tests.model.bounds import Scenario
from tests.model.guards import Guards
from tests.model.world import World


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
    Variant("head check blind to claims", "head_check_sees_claims", scenarios.ORDER, "overlap"),
    Variant("successor runs while the head backs off", "head_check_sees_retry", scenarios.ORDER, "order"),
    Variant("successor runs while the head is dead", "head_check_sees_dead", scenarios.ORDER, "order"),
    Variant("park behind a later message", "park_only_behind_earlier", scenarios.ORDER, "stuck"),
    Variant("promote without the key lock", "finish_takes_key_lock", scenarios.PAIR, "stuck"),
    Variant("finish does not count rows", "finish_counts_rows", scenarios.PAIR, "doubled"),
    Variant("finish by id", "finish_matches_claim", scenarios.PAIR, "overlap"),
    Variant("finish by worker, without token", "finish_matches_token", scenarios.WATCHDOG, "overlap"),
    Variant("no promote after finish", "promote_after_finish", scenarios.PAIR, "stuck"),
    Variant("promote by the view before the lock", "promote_has_new_view", scenarios.PAIR, "stuck"),
    Variant("promote another than the lowest", "promote_lowest", scenarios.SHORT_CHAIN, "stuck"),
    Variant("settle by id", "settle_matches_claim", scenarios.TROUBLED_ORDER, "overlap"),
    Variant("successor of one that runs alone runs", "alone_unclaims_successors", scenarios.GROUPS, "order"),
    Variant("successor of one settled runs", "settle_unclaims_successors", scenarios.LATE_GROUPS, "order"),
    Variant("take-over leaves the claims", "take_over_clears_claims", scenarios.PAIR, "stuck"),
    Variant("crash charges the whole group", "charge_only_alone", scenarios.GROUPS, "charged"),
    Variant("innocent charged", "charge_only_alone", scenarios.POISON, "charged"),
    Variant(
        "isolated message that must be alone runs with others", "isolated_runs_alone", scenarios.GROUPS, "not alone"
    ),
    Variant("isolated messages run together", "isolated_run_apart", scenarios.GROUPS, "not apart"),
    Variant("redrive of a running message", "redrive_only_dead", scenarios.ORDER, "overlap"),
    Variant("discard without promote", "discard_promotes", scenarios.ORDER, "stuck"),
    Variant("discard without the key lock", "discard_takes_key_lock", scenarios.ORDER, "stuck"),
    Variant("inline without the key lock", "inline_takes_key_lock", scenarios.INLINE, "overlap"),
    Variant("order by arrival where places are given", "order_is_by_place", scenarios.PLACES, "order"),
    Variant("early place beside a claimed late one", "head_check_sees_claims", scenarios.PLACES, "overlap"),
    Variant("early place parked behind a late one", "park_only_behind_earlier", scenarios.PLACED_GROUPS, "stuck"),
    Variant("adopt without promote", "adopt_promotes", scenarios.ADOPTED, "stuck"),
    Variant("adopt without the key lock", "adopt_takes_key_lock", scenarios.ADOPTED, "stuck"),
    Variant("successor of one given back runs", "giving_back_takes_successors", scenarios.PLACED_GROUPS, "order"),
    Variant("joins its key where it came", "joins_behind_the_others", scenarios.SCHEDULED, "order"),
    Variant("holds its key before it is due", "scheduled_holds_nobody", scenarios.SCHEDULED, "held by nobody"),
    Variant("a missing number does not matter", "gate_holds", scenarios.NUMBERS, "gap"),
    Variant("gate by the view before the lock", "gate_has_new_view", scenarios.TWO_NUMBERS, "stuck"),
    Variant("held number not promoted", "promote_after_finish", scenarios.TWO_NUMBERS, "stuck"),
    Variant("hold without a deadline", "hold_has_deadline", scenarios.GAP, "stuck"),
    Variant("stale number runs", "stale_is_skipped", scenarios.SAME_NUMBER, "stale"),
    Variant("given up beside an earlier one that is held", "late_only_at_head", scenarios.GAP, "skipped"),
    Variant("no progress by finish", "finish_advances", scenarios.TWO_NUMBERS, "stuck"),
    Variant("no progress by discard", "discard_advances", scenarios.TWO_NUMBERS, "stuck"),
    Variant("no progress by unblock", "unblock_advances", scenarios.TWO_NUMBERS, "stuck"),
    Variant("no progress when the key goes on", "continue_advances", scenarios.SAME_NUMBER, "stuck"),
    Variant("progress without a claim", "continue_advances_under_claim", scenarios.TROUBLED_NUMBERS, "skipped"),
    Variant("discard past an earlier number", "give_up_only_at_head", scenarios.TWO_NUMBERS, "skipped"),
    Variant("dead number given up past a late one", "give_up_only_at_head", scenarios.LATE_NUMBERS, "skipped"),
    Variant("inline past a missing number", "inline_asks_the_gate", scenarios.INLINE_NUMBERS, "gap"),
    Variant("inline with a stale number", "inline_asks_the_gate", scenarios.INLINE_NUMBERS, "stale"),
    Variant("go on without the key lock", "continue_takes_key_lock", scenarios.CONTINUE, "stuck"),
    Variant("go on without promote", "continue_promotes", scenarios.CONTINUE, "stuck"),
    Variant("kill and go on without the key lock", "continue_takes_key_lock", scenarios.FATAL, "stuck"),
    Variant("kill and go on without promote", "continue_promotes", scenarios.FATAL, "stuck"),
    Variant("take-over kills and holds the key", "take_over_continues", scenarios.FATAL, "stuck"),
    Variant("inline dead holds the key", "inline_continues", scenarios.TWO_INLINE_NUMBERS, "stuck"),
    Variant("inline goes on without the key lock", "continue_takes_key_lock", scenarios.TWO_INLINE_NUMBERS, "stuck"),
    Variant("inline goes on without promote", "continue_promotes", scenarios.TWO_INLINE_NUMBERS, "stuck"),
    Variant("unblock without the key lock", "unblock_takes_key_lock", scenarios.UNBLOCK, "stuck"),
    Variant("unblock without promote", "unblock_promotes", scenarios.UNBLOCK, "stuck"),
    Variant("redrive without its key", "redrive_restores_key", scenarios.UNBLOCK, "overlap"),
    Variant("discard by the key it had before", "discard_checks_key_again", scenarios.UNBLOCK, "stuck"),
    Variant("send outside of the transaction", "send_inside_transaction", scenarios.RELAY, "phantom"),
    Variant("send after the commit", "send_before_commit", scenarios.RELAY, "lost"),
    Variant("relay finishes before it publishes", "publish_before_finish", scenarios.RELAY, "lost"),
    Variant("publish past one that backs off", "head_check_sees_retry", scenarios.RELAY, "order"),
    Variant("failed publish undoes a group", "publish_failure_keeps_the_rest", scenarios.RELAY_GROUPS, "doubled"),
    Variant("intent in the handler's transaction", "intent_is_committed_first", scenarios.ONCE, "called twice"),
    Variant("unknown outcome is called again", "unknown_is_dead", scenarios.ONCE, "called twice"),
    Variant("outcome decided too soon", "resolve_after_process_is_gone", scenarios.ONCE, "called twice"),
    Variant("result before the call", "result_after_call", scenarios.IDEMPOTENT, "not called"),
    Variant("claim of a worker that is gone", "store_first_needs_worker_row", scenarios.STORED_FIRST, "stuck"),
)
