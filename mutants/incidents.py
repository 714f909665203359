"""What operators do in an incident: retry now, pause, edit."""

from __future__ import annotations

from mutants.mutant import Mutant

_SUITE = "tests/contract/test_store_suite.py::TestStores"
_PAUSES = "tests/contract/test_pauses.py"

INCIDENTS: tuple[Mutant, ...] = (
    Mutant(
        name="retry-now in bulk is for what is scheduled",
        file="admin/decisions.py",
        old='their attempts stay.", ("retrying",)',
        new='their attempts stay.", ("scheduled",)',
        test=f"{_SUITE}::test_retrying_messages_are_chosen_by_how_they_failed[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a claim takes what is paused",
        file="steps/claim.py",
        old="    return pauses.handling(subscription.consumer, subscription.type) is not None",
        new="    return False",
        test=f"{_SUITE}::test_a_paused_type_waits_and_others_run[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a paused message is processed at once",
        file="steps/wanted.py",
        old="    return bool(catalog.pauses.rows) and",
        new="    return False and",
        test=f"{_SUITE}::test_what_is_paused_is_queued_instead_of_processed[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a running worker does not look whether something was paused",
        file="steps/isolated.py",
        old="        yield from stay_current(lane.context)",
        new="        yield from ()",
        test=f"{_SUITE}::test_workers_and_receivers_obey_an_operator_elsewhere[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a message ages while it is paused",
        file="steps/lane.py",
        old="        age -= rested(age, rests)",
        new="        age -= 0 * rested(age, rests)",
        test=f"{_PAUSES}::test_paused_time_does_not_age_a_message[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="the deadline of a number passes while it is paused",
        file="stores/moves/claims.py",
        old="        age = row.age - rested(row.age, rests.get(row.subscription, ())) if rests else row.age",
        new="        age = row.age",
        test=f"{_PAUSES}::test_a_number_waits_as_long_as_it_would_without_the_pause[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a copy of a corrected body is a mismatch",
        file="steps/revise.py",
        old="for one in (edited.before, edited.after)]",
        new="for one in (edited.before,)]",
        test=f"{_SUITE}::test_a_corrected_body_runs[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a corrected body takes a message to another key",
        file="steps/revise.py",
        old="    if after.key not in (before.key, found.key):",
        new="    if False:",
        test=f"{_SUITE}::test_key_and_number_of_a_message_stay[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a key waits for ever behind an interrupted message that it may leave",
        file="steps/operate.py",
        old="    leaves = found.key_hash if continues else None",
        new="    leaves = None",
        test=f"{_SUITE}::test_a_key_waits_behind_an_interrupted_message_unless_it_goes_on_without[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="the handler of an interrupted message runs on",
        file="runtime/watchdog.py",
        old="            if not one.seqs <= held:",
        new="            if False and not one.seqs <= held:",
        test="tests/contract/test_interrupt.py::test_the_handler_of_an_interrupted_message_ends[sqlite-async]",
        store="sqlite",
    ),
    Mutant(
        name="what is paused on purpose is a backlog",
        file="admin/backlog.py",
        old="    if not pauses.rows:",
        new="    if True:",
        test="tests/seeing/test_alerts.py::test_what_is_paused_on_purpose_is_not_told[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="what is paused on purpose keeps failing",
        file="admin/backlog.py",
        old="frozenset(one.id for one in rows.subscriptions if pauses",
        new="frozenset(one.id for one in () if pauses",
        test=f"{_SUITE}::test_what_is_paused_is_no_backlog[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a heartbeat does not tell of open circuits",
        file="steps/membership.py",
        old="for one in context.registry if one.is_paused)",
        new="for one in context.registry if False)",
        test=f"{_SUITE}::test_open_circuits_are_told_with_the_heartbeat[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a report waits for the writer of SQLite",
        file="stores/sqlite/guard.py",
        old="            if opening.reads:",
        new="            if False and opening.reads:",
        test="tests/contract/test_reading.py::test_reports_do_not_wait_for_the_writer[def]",
        store="sqlite",
    ),
    Mutant(
        name="a paused source is read on",
        file="brokers/consumer.py",
        old="                while not stopping.is_set() and not await is_paused(name):",
        new="                while not stopping.is_set():",
        test="tests/unit/test_consumer.py::test_a_paused_source_is_left_alone_until_it_is_resumed",
    ),
)
