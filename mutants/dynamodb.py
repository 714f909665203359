"""The guards of the DynamoDB store."""

from __future__ import annotations

from mutants.mutant import Mutant

_FOLDER = "stores/dynamodb"
_SUITE = "tests/dynamodb/test_transactions.py"

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
)
