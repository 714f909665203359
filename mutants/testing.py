"""The test kit: a proof tells what it found, says what it did not look at, and touches nothing of production."""

from __future__ import annotations

from mutants.mutant import Mutant

_PROVING = "tests/cli/test_proving.py"
_PROOF = "tests/testing/test_proof.py"

TESTING = (
    Mutant(
        name="a stored message is proven on the file itself",
        file="cli/proving.py",
        old="with on_copy(inbox) if copies else nullcontext(), ",
        new="with nullcontext(), ",
        test=f"{_PROVING}::test_a_connection_of_its_own_to_production_is_refused",
        store="sqlite",
    ),
    Mutant(
        name="a proof on a stored message lets its handler call the outside",
        file="testing/outside.py",
        old="        if self.refuses:  #",
        new="        if False:  #",
        test=f"{_PROVING}::test_nothing_outside_is_reached",
        store="sqlite",
    ),
    Mutant(
        name="a proof on a stored message makes its external calls",
        file="testing/fault.py",
        old="        if self.recorded is None:",
        new="        if True:",
        test=f"{_PROVING}::test_external_calls_are_answered_from_the_record",
        store="sqlite",
    ),
    Mutant(
        name="a proof takes a server's database without asking whether it is for tests",
        file="cli/proving.py",
        old="    if source is None and not disposable:",
        new="    if False:",
        test=f"{_PROVING}::test_a_server_must_have_been_said_to_be_disposable",
        store="postgres",
    ),
    Mutant(
        name="a proof takes the rows from under running workers",
        file="testing/stored.py",
        old="worker.lease_seconds > 0",
        new="worker.lease_seconds < 0",
        test=f"{_PROVING}::test_a_server_that_workers_use_is_refused",
        store="postgres",
    ),
    Mutant(
        name="a proof runs what waits beside its message",
        file="testing/stored.py",
        old="            for table in _OF_MESSAGES:",
        new="            for table in ():",
        test=f"{_PROVING}::test_a_careful_handler_is_proven_on_a_copy",
        store="sqlite",
    ),
    Mutant(
        name="a proof does not say which connections it could not see",
        file="testing/proof.py",
        old="            if self._connections:",
        new="            if False:",
        test=f"{_PROOF}::test_a_connection_that_was_open_before_is_named[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a recorded day is played with the messages of a key in another order",
        file="testing/day.py",
        old="        if taken.isdisjoint(keys[message]):",
        new="        if True:",
        test="tests/testing/test_day.py::test_messages_of_a_key_stay_in_their_order_and_others_do_not",
        store="sqlite",
    ),
    Mutant(
        name="a message of a unit test keeps what JSON would not",
        file="testing/unit.py",
        old="        data=_read(delivery.body, kind) if is_model(kind) else _json(delivery.body),",
        new="        data=_read(delivery.body, kind) if is_model(kind) else data,",
        test="tests/testing/test_unit.py::test_models_come_as_they_would_arrive",
    ),
)
