"""Handlers in a transaction of the caller's: whatever that commits is whole."""

from __future__ import annotations

from mutants.mutant import Mutant

_TESTS = "tests/contract/test_inside.py"
_STEP, _MOVES = "steps/inside.py", "stores/relational/inline.py"


def _mutant(  # noqa: PLR0913, PLR0917 - the parts of one
    name: str, file: str, old: str, new: str, test: str, store: str = "sqlite"
) -> Mutant:
    return Mutant(name=f"inside, {name}", file=file, old=old, new=new, test=f"{_TESTS}::{test}", store=store)


INSIDE = (
    _mutant(
        "a message is not queued before its handler runs",
        _MOVES,
        'yield Each("enqueue", rows), Query("savepoint")',
        'yield Query("savepoint")',
        "test_a_transaction_that_was_ended_behind_our_back[sqlite-def-False]",
    ),
    _mutant(
        "the fence is passed last",
        _MOVES,
        'requests += [Query("release_savepoint"), Query("dequeue", {"seqs": sorted(finish.inside)})]',
        'requests += [Query("dequeue", {"seqs": sorted(finish.inside)})]',
        "test_a_transaction_that_was_ended_behind_our_back[sqlite-def-True]",
    ),
    _mutant(
        "what has raised leaves its beginning behind",
        _STEP,
        "        with suppress(OncewardError):  # the transaction is gone, and all of it\n            yield ROLLBACK\n",
        "",
        "test_a_failure_at_any_request_leaves_nothing_or_all[sqlite-def]",
    ),
    _mutant(
        "a handler's own writes past its connection stay when it raises",
        "steps/attempt.py",
        "if group.shares and (outcome.touched or lane.inside):",
        "if group.shares and outcome.touched:",
        "test_what_a_failed_handler_wrote_past_its_connection_goes[sqlite-def]",
    ),
    _mutant(
        "a setting of a handler's goes on in the caller's transaction",
        "stores/postgres/lent.py",
        "if examined.leaves and examined.error is None:",
        "if False:",
        "test_what_needs_a_transaction_of_its_own_waits_for_a_worker[postgres-def-setting]",
        store="postgres",
    ),
    _mutant(
        "a call for after the commit is made before it, or never",
        "steps/attempt.py",
        "if lane.inside and not lane.tells_commit and outcome.error is None and any(one.calls for one in used):",
        "if False:",
        "test_what_needs_a_transaction_of_its_own_waits_for_a_worker[sqlite-def-after_commit]",
    ),
    _mutant(
        "a view of its own is trusted with a key",
        _STEP,
        "keyed=not keeps_view",
        "keyed=True",
        "test_a_view_of_its_own_sees_too_little_of_a_key[def-SERIALIZABLE]",
        store="postgres",
    ),
    _mutant(
        "the caller's connection keeps the handler's factories",
        "stores/sqlite/lent.py",
        'self._callers.row_factory, self._callers.text_factory = self.__dict__["_usual"]',
        "pass",
        "test_the_callers_connection_is_as_it_was[sqlite-def]",
    ),
    _mutant(
        "the receipt does not say that it depends on the caller",
        "runtime/receiver.py",
        'return replace(receipt, pending=True) if receipt.status == "accepted" else receipt',
        "return receipt",
        "test_it_is_done_when_the_caller_commits[sqlite-def-True]",
    ),
)
