"""Direct batches: what is queued, what is stored first, who is charged."""

from __future__ import annotations

from mutants.mutant import Mutant

_SUITE = "tests/contract/test_store_suite.py::TestStores"
_TESTS = "tests/contract/test_direct.py"
_UNIT = "tests/unit/test_steps_process.py::TestInfrastructure"
_STEP, _LOST, _PLAN = "steps/direct.py", "steps/stored_first.py", "steps/wanted.py"


def _mutant(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name=name, file=file, old=old, new=new, test=f"{test}[sqlite-def]", store="sqlite")


DIRECT = (
    _mutant(
        "what follows a queued message of its key runs",
        _STEP,
        "                closed.add(key)",
        "                pass",
        f"{_SUITE}::test_what_follows_one_for_a_worker_waits_for_it",
    ),
    _mutant(
        "a batch runs past what is unfinished of a key",
        _STEP,
        "closed, applied = set(begun.busy), dict(begun.applied)",
        "closed, applied = set[int](), dict(begun.applied)",
        f"{_SUITE}::test_behind_what_is_unfinished_of_its_key_it_is_queued",
    ),
    _mutant(
        "a batch runs past a missing number",
        _STEP,
        "runs, is_stale = number <= wanted_number, number < wanted_number",
        "is_stale = number < wanted_number",
        f"{_SUITE}::test_numbers_of_a_key_are_kept",
    ),
    _mutant(
        "a batch goes on beside one that overran",
        _STEP,
        "isinstance(failure.error, HandlerTimeout) or group.is_spoiled",
        "group.is_spoiled",
        f"{_TESTS}::test_one_that_overruns_takes_the_batch_with_it_and_is_charged",
    ),
    _mutant(
        "who overran is not charged",
        _LOST,
        "if culprit is not None and not undone.lost.infrastructure and culprit.seq not in failures:",
        "failures = {}\n    if False:",
        f"{_TESTS}::test_one_that_overruns_takes_the_batch_with_it_and_is_charged",
    ),
    _mutant(
        "a text that the database refuses keeps a batch from being stored",
        _LOST,
        "{one: without_text(row) for one, row in attempts.items()}",
        "attempts",
        f"{_TESTS}::test_an_error_that_cannot_be_stored_is_stored_without_its_text",
    ),
    _mutant(
        "a handler that wants no company gets it",
        _PLAN,
        " or (handler is not None and handler.group == 1)",
        "",
        f"{_SUITE}::test_a_handler_that_wants_no_company_is_for_a_worker",
    ),
    _mutant(
        "a key of two kinds of handlers runs in both",
        _PLAN,
        "return {key for key, both in kinds.items() if len(both) > 1}",
        "return {key for key, both in kinds.items() if len(both) > 2}",
        f"{_SUITE}::test_handlers_of_both_kinds_have_a_transaction_each",
    ),
    _mutant(
        "after a death batches run as ever",
        _PLAN,
        "handler is None or context.clock() < catalog.store_first_until",
        "handler is None",
        f"{_TESTS}::test_after_a_death_a_batch_is_stored_first",
    ),
    Mutant(
        "after a conflict what another process has stored is taken for one's own",
        "steps/lane.py",
        "    except StoreUnavailable:\n        only",
        "    except Exception:\n        only",
        f"{_UNIT}::test_only_what_may_have_been_committed_is_its_own",
    ),
    Mutant(
        "after a conflict what was committed before it is a copy",
        _STEP,
        "    lane.committed.update(batch.wanted)\n",
        "",
        f"{_UNIT}::test_what_was_committed_before_a_conflict_is_its_own",
    ),
    Mutant(
        "what another process stored during a try that was lost is taken for one's own",
        "steps/receive.py",
        "        same = [seq for seq in same if seq in first_try.only]\n",
        "        pass\n",
        f"{_UNIT}::test_what_was_known_to_a_try_is_not_its_own",
    ),
)
"""Mutants that tests must catch."""
