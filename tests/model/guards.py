"""The guards of the protocol, each a sentence of the page that can be switched off.

Invariant: with all of them on, the model is the page. A broken variant (see `variants.py`) switches off exactly one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Guards:
    """What keeps the protocol right."""

    acknowledge_after_commit: bool = True
    insert_is_unique: bool = True
    park_at_claim: bool = True
    claim_takes_key_lock: bool = True
    claim_needs_worker_row: bool = True
    claim_locks_worker_row: bool = True
    claim_outcome_is_read: bool = True
    head_check_has_new_view: bool = True
    head_check_sees_claims: bool = True
    head_check_sees_retry: bool = True
    head_check_sees_dead: bool = True
    park_only_behind_earlier: bool = True
    finish_takes_key_lock: bool = True
    finish_counts_rows: bool = True
    finish_matches_claim: bool = True
    finish_matches_token: bool = True
    promote_after_finish: bool = True
    promote_has_new_view: bool = True
    promote_lowest: bool = True
    settle_matches_claim: bool = True
    alone_unclaims_successors: bool = True
    settle_unclaims_successors: bool = True
    take_over_clears_claims: bool = True
    charge_only_alone: bool = True
    isolated_runs_alone: bool = True
    isolated_run_apart: bool = True
    redrive_only_dead: bool = True
    discard_promotes: bool = True
    discard_takes_key_lock: bool = True
    inline_takes_key_lock: bool = True

    # Places: the order inside a key where the source or the handler gives one.
    order_is_by_place: bool = True
    adopt_promotes: bool = True
    adopt_takes_key_lock: bool = True
    giving_back_takes_successors: bool = True

    # Messages that are not due yet.
    joins_behind_the_others: bool = True
    scheduled_holds_nobody: bool = True

    # Numbers within a key.
    gate_holds: bool = True
    gate_has_new_view: bool = True
    hold_has_deadline: bool = True
    stale_is_skipped: bool = True
    late_only_at_head: bool = True
    finish_advances: bool = True
    discard_advances: bool = True
    unblock_advances: bool = True
    continue_advances: bool = True
    continue_advances_under_claim: bool = True
    give_up_only_at_head: bool = True
    inline_asks_the_gate: bool = True

    # Dead heads that leave their key.
    continue_takes_key_lock: bool = True
    continue_promotes: bool = True
    take_over_continues: bool = True
    inline_continues: bool = True
    unblock_takes_key_lock: bool = True
    unblock_promotes: bool = True
    redrive_restores_key: bool = True
    discard_checks_key_again: bool = True

    # The relay.
    send_inside_transaction: bool = True
    send_before_commit: bool = True
    publish_before_finish: bool = True
    publish_failure_keeps_the_rest: bool = True

    # Effects under `once`.
    intent_is_committed_first: bool = True
    result_after_call: bool = True
    unknown_is_dead: bool = True
    resolve_after_process_is_gone: bool = True

    # Inline, after a crash: stored and claimed first.
    store_first_needs_worker_row: bool = True


ALL_GUARDS: Final = Guards()
