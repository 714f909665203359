"""The guards of the DynamoDB store."""

from __future__ import annotations

from mutants.mutant import Mutant

_FOLDER = "stores/dynamodb"
_SUITE = "tests/dynamodb/test_transactions.py"
_LOST = "tests/dynamodb/test_lost_answers.py"

DYNAMODB: tuple[Mutant, ...] = (
    Mutant(
        name="a change of an item does not ask whether it is as it was read",
        file=f"{_FOLDER}/unit.py",
        old='                condition = "#stamp = :stamp"',
        new='                condition = "attribute_exists(pk) OR #stamp = :stamp"',
        test="tests/dynamodb/test_units.py::test_of_two_units_that_read_an_item_one_commits",
    ),
    Mutant(
        name="what a handler records is not committed with its message",
        file=f"{_FOLDER}/sessions.py",
        old="(self.open_tx().writes if request.ends_tx else ())",
        new="()",
        test=f"{_SUITE}::test_every_kind_of_write_is_committed_with_the_message",
    ),
    Mutant(
        name="a handler may record more than fits beside its end",
        file=f"{_FOLDER}/recorder.py",
        old="return MOST_WRITES - self.needed()",
        new="return MOST_WRITES",
        test=f"{_SUITE}::test_one_write_too_many_is_refused_at_its_line_with_both_numbers",
    ),
    Mutant(
        name="a body that no item can hold is accepted",
        file=f"{_FOLDER}/ledger.py",
        old="    if size > LARGEST:",
        new="    if size > 100 * LARGEST:",
        test=f"{_SUITE}::test_what_it_cannot_do_is_refused_with_a_sentence",
    ),
    Mutant(
        name="a claim whose answer was lost is of no worker",
        file=f"{_FOLDER}/claims.py",
        old='return item is not None and (item.get("worker"), item.get("token")) == (claim.worker, claim.token)',
        new="return item is None",
        test="tests/dynamodb/test_units.py::test_a_claim_that_the_client_made_twice_is_ours[None]",
    ),
    Mutant(
        name="DynamoDB: a caller's single write has no token",
        file=f"{_FOLDER}/sessions.py",
        old="if len(writes) == 1 and not request.ends_tx else None",
        new="if len(writes) == 1 else None",
        test=f"{_LOST}::test_a_write_of_a_caller_s_own_is_applied_once_when_its_answer_is_lost",
    ),
    Mutant(
        name="DynamoDB: a hold whose answer was lost is of no call",
        file=f"{_FOLDER}/inline.py",
        old='if held is None or (held.get("fence"), held["n"]) != (begin.fence, number):',
        new="if held is None or held:",
        test=f"{_LOST}::test_a_key_whose_hold_has_lost_its_answer_is_held_all_the_same",
    ),
    Mutant(
        name="DynamoDB: what a session holds outlives it",
        file=f"{_FOLDER}/sessions.py",
        old="""    def close(self) -> None:
        self._roll_back()
""",
        new="""    def close(self) -> None:
        self.forget()
""",
        test=f"{_LOST}::test_a_key_whose_hold_is_not_known_is_let_go",
    ),
    Mutant(
        name="DynamoDB: what a cancelled call holds outlives it",
        file=f"{_FOLDER}/sessions.py",
        old="        if release or self._end is not None:",
        new="        if self._end is not None:",
        test=f"{_LOST}::test_a_key_is_free_when_the_call_that_held_it_was_cancelled",
    ),
    Mutant(
        name="DynamoDB: a key of a dead process stays held",
        file=f"{_FOLDER}/members.py",
        old="""        if worker.get("inline"):
            yield from let_go""",
        new="""        if False:
            yield from let_go""",
        test=f"{_LOST}::test_a_key_is_free_when_the_process_that_held_it_is_dead",
    ),
    Mutant(
        name="DynamoDB: a claim leaves a hold that has run out",
        file=f"{_FOLDER}/claims.py",
        old='dict.fromkeys(("due_at", *HOLD))',
        new='dict.fromkeys(("due_at",))',
        test=f"{_LOST}::test_a_key_that_was_taken_while_its_message_was_processed_is_not_written_to",
    ),
    Mutant(
        name="DynamoDB: a registration whose answer was lost is another's",
        file=f"{_FOLDER}/members.py",
        old="except Cancelled:  # it has this number already",
        new="except ZeroDivisionError:  # it has this number already",
        test=f"{_LOST}::test_a_registration_whose_answer_is_lost_has_happened",
    ),
    Mutant(
        name="DynamoDB: a key is put off although what it waits for has come",
        file=f"{_FOLDER}/ledger.py",
        old='"UpdateExpression": "REMOVE due_at SET #stamp = :stamp"',
        new='"UpdateExpression": "REMOVE due_at SET #stamp = if_not_exists(#stamp, :stamp)"',
        test=f"{_LOST}::test_what_comes_before_a_message_that_waits_is_not_put_off_with_it",
    ),
    Mutant(
        name="DynamoDB: an end whose answer and token are gone is another worker's",
        file=f"{_FOLDER}/queue.py",
        old='one.get("worker") == finish.worker for one in done)',
        new="one is None for one in done)",
        test=f"{_LOST}::test_what_has_ended_while_its_token_was_forgotten_has_ended_once[None]",
    ),
    Mutant(
        name="DynamoDB: inline, an end whose answer and token are gone is another call's",
        file=f"{_FOLDER}/inline.py",
        old='if there is not None and there["seq"] == seq:',
        new='if there is not None and there["seq"] == 0:',
        test=f"{_LOST}::test_what_has_ended_while_its_token_was_forgotten_has_ended_once[None]",
    ),
    Mutant(
        name="DynamoDB: a mismatch is kept of a message that is forgotten",
        file=f"{_FOLDER}/cases.py",
        old='    table.guard(Place(first["pk"], first["sk"]))',
        new="    table.guarded.clear()",
        test=f"{_LOST}::test_a_mismatch_of_a_message_that_is_forgotten_meanwhile_is_a_new_message",
    ),
)
