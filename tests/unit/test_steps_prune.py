"""What is old goes in small transactions; a turn ends in time, and a retention that is too short removes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import ConfigurationError, RightsMissing, StoreConflict, StoreUnavailable
from onceward.flow import Wait
from onceward.settings import Settings
from onceward.steps.context import Context
from onceward.steps.prune import (
    BATCH,
    PARTITION_TIME,
    SHORTEST_PARTITION,
    Pruned,
    PruneProgress,
    declare,
    declare_sources,
    maintain,
    partition_time,
    prune,
    save_uses,
)
from tests.unit.builders import Clock, context, handler
from tests.unit.script import Lost, Script, Turns

DAY = timedelta(days=1)
SETTINGS = Settings(body_retention=DAY, dedupe_retention=10 * DAY, maintenance=timedelta(seconds=60))
NOTHING: dict[str, Any] = {
    "latest_source": [],
    "old_partitions": [],
    "next_bodies": [],
    "next_ledger": [],
    "next_runs": [],
}
WALKS = ["begin next_bodies commit", "begin next_ledger commit", "begin next_runs commit"]
BEFORE = ["begin latest_source commit", "begin rotate_partition commit", "begin old_partitions commit"]
AFTER = ["begin forget_effects commit"]


def here(**changes: Any) -> Context:
    return context(settings=replace(SETTINGS, **changes))


def run(script: Script, one: Context | None = None, **more: Any) -> tuple[bool, PruneProgress]:
    progress = PruneProgress()
    return script.run(prune(one or here(), progress, **more)), progress


class TestPrune:
    """One walk through the tables."""

    def test_where_nothing_is_old_nothing_is_locked(self) -> None:
        script = Script(NOTHING)
        done, progress = run(script)
        assert (done, progress.pruned, progress.walk) == (True, Pruned(), 0)
        assert script.transactions == [*BEFORE, *WALKS, *AFTER]
        assert script.params("rotate_partition") == [{"seconds": 21_600.0}]
        assert [one["keep"] for one in script.params("next_bodies") + script.params("next_ledger")] == [86_400, 864_000]

    def test_old_rows_are_locked_and_looked_at_again(self) -> None:
        """What is removed is what the deleting statement still finds, not what was seen."""
        script = Script(
            {
                **NOTHING,
                "next_bodies": [(1, 1), (2, 0), (3, 1)],
                "next_ledger": [(1, 1), (3, 1)],
                "next_runs": [(7, 1)],
                "lock_ledger": Turns([(1,), (3,)], [(3,)]),
                "drop_bodies": [(3,)],
                "forget_messages": [(3,)],
                "forget_runs": [(7,)],
            }
        )
        done, progress = run(script)
        assert done
        assert progress.pruned == Pruned(messages=1, bodies=1, runs=1)
        assert script.transactions[3:6] == [
            "begin next_bodies lock_ledger drop_bodies commit",
            "begin next_ledger lock_ledger forget_messages commit",
            "begin next_runs forget_runs commit",
        ]
        assert script.params("drop_bodies") == [{"seqs": [1, 3]}]
        (forgotten,) = script.params("forget_messages")
        assert forgotten == {"seqs": [3], "lowest": 3, "highest": 3, "keep": 864_000.0, "archive_first": False}

    def test_it_goes_on_where_a_batch_ended_and_rests_as_long_as_it_worked(self) -> None:
        """So that live traffic has its turn."""
        full = [(number, 1) for number in range(1, BATCH + 1)]
        script = Script(
            {**NOTHING, "next_bodies": Turns(full, []), "lock_ledger": [(1,)], "drop_bodies": [(1,)]},
        )
        one = here()
        one.clock = Clock(step=0.01)
        done, _ = run(script, one)
        assert done
        assert [batch["after"] for batch in script.params("next_bodies")] == [0, BATCH]
        (rest,) = script.all(Wait)
        assert rest.seconds == pytest.approx(0.01)

    def test_a_turn_ends_in_time_and_the_next_goes_on_from_there(self) -> None:
        full = [(number, 1) for number in range(1, BATCH + 1)]
        answers = {**NOTHING, "next_bodies": full, "lock_ledger": [(1,)], "drop_bodies": [(1,)]}
        one, progress = here(), PruneProgress()
        one.clock = Clock(step=1.0)
        assert Script(answers).run(prune(one, progress, seconds=0.5)) is False
        assert (progress.walk, progress.after) == (0, BATCH)
        script = Script(NOTHING)
        assert script.run(prune(here(), progress)) is True
        assert script.params("next_bodies")[0]["after"] == BATCH

    def test_what_is_told_is_the_sum_so_far(self) -> None:
        told: list[int] = []
        progress = PruneProgress(told=lambda pruned: told.append(pruned.bodies))
        answers = {**NOTHING, "next_bodies": [(1, 1)], "lock_ledger": [(1,)], "drop_bodies": [(1,)]}
        Script(answers).run(prune(here(), progress))
        assert told == [1, 1, 1]

    def test_with_an_archive_bodies_go_only_through_it(self) -> None:
        script = Script(NOTHING)
        run(script, here(archive_first=True))
        assert script.transactions == [*BEFORE, *WALKS[1:], *AFTER]

    def test_a_source_that_redelivers_for_longer_stops_it(self) -> None:
        """Before anything is removed."""
        script = Script({**NOTHING, "latest_source": [("stripe", 30 * 86_400.0)]})
        with pytest.raises(ConfigurationError, match=r"stripe.*30 days.*forgotten after 10 days"):
            run(script)
        assert script.transactions == BEFORE[:1]

    @pytest.mark.parametrize("place", ["next_bodies", "lock_ledger", "drop_bodies", "commit"])
    def test_a_batch_that_fails_counts_nothing(self, place: str) -> None:
        """The walk stays where it was."""
        answers = {**NOTHING, "next_bodies": [(1, 1)], "lock_ledger": [(1,)], "drop_bodies": [(1,)]}
        failure = Turns([], [], [], Lost()) if place == "commit" else Lost()
        progress = PruneProgress()
        with pytest.raises(StoreUnavailable):
            Script({**answers, place: failure, "reconnect": False}).run(prune(here(), progress))
        assert (progress.pruned, progress.walk, progress.after) == (Pruned(), 0, 0)


class TestPartitions:
    """Bodies in partitions go as a whole."""

    def test_old_ones_are_dropped_one_by_one(self) -> None:
        """One that holds what is unfinished stays."""
        script = Script({**NOTHING, "old_partitions": [(1,), (2,)], "drop_partition": Turns([(1,)], [(0,)])})
        _, progress = run(script)
        assert progress.pruned.partitions == 1
        assert script.transactions[3:5] == ["begin drop_partition commit"] * 2

    @pytest.mark.parametrize("error", [StoreUnavailable("locked"), StoreConflict("deadlock")])
    def test_one_that_is_in_use_is_tried_another_time(self, error: Exception) -> None:
        """And so are those behind it; rows go on going."""
        script = Script({**NOTHING, "old_partitions": [(1,), (2,)], "drop_partition": error})
        done, progress = run(script)
        assert (done, progress.pruned.partitions) == (True, 0)
        assert script.transactions[3:] == ["begin drop_partition rollback", *WALKS, *AFTER]

    def test_without_the_rights_bodies_go_row_by_row(self, caplog: pytest.LogCaptureFixture) -> None:
        """Said once for each set of tables."""
        one = here()
        one.prefix = "without_rights_"
        for _ in range(2):
            script = Script({**NOTHING, "rotate_partition": RightsMissing("no CREATE")})
            done, _ = run(script, one)
            assert done
            assert script.transactions == [BEFORE[0], "begin rotate_partition rollback", *WALKS, *AFTER]
        assert caplog.text.count("may not make and drop partitions (no CREATE)") == 1

    @pytest.mark.parametrize(
        ("keep", "used"), [(8 * DAY, PARTITION_TIME), (DAY, DAY / 4), (timedelta(0), SHORTEST_PARTITION)]
    )
    def test_a_partition_is_used_for_a_part_of_the_retention(self, keep: timedelta, used: timedelta) -> None:
        assert partition_time(here(body_retention=keep)) == used


class TestMaintain:
    """One process at a time."""

    def test_a_turn_that_is_due(self) -> None:
        script = Script({**NOTHING, "take_turn": [(1,)]})
        assert script.run(maintain(here(), PruneProgress())) == 0
        assert script.transactions == ["begin take_turn commit", *BEFORE, *WALKS, *AFTER]
        assert script.params("take_turn") == [{"task": "prune", "every": 60.0}]

    def test_another_has_it(self) -> None:
        script = Script({"take_turn": []})
        script.run(maintain(here(), PruneProgress()))
        assert script.transactions == ["begin take_turn commit"]

    def test_a_turn_that_was_not_enough_is_given_back(self) -> None:
        """The next is due at once."""
        full = [(number, 1) for number in range(1, BATCH + 1)]
        answers = {**NOTHING, "take_turn": [(1,)], "next_bodies": full, "lock_ledger": [(1,)], "drop_bodies": [(1,)]}
        one, script = here(), Script(answers)
        one.clock = Clock(step=1.0)
        script.run(maintain(one, PruneProgress()))
        assert script.transactions[-1] == "begin give_turn commit"

    def test_without_maintenance_nothing_is_asked(self) -> None:
        script = Script({})
        assert script.run(maintain(here(maintenance=None), PruneProgress())) == 0
        assert script.transactions == []

    def test_a_source_declared_by_another_program_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        """The thread goes on: it takes over dead processes, too."""
        script = Script({"take_turn": [(1,)], "latest_source": [("stripe", 30 * 86_400.0)]})
        script.run(maintain(here(), PruneProgress()))
        assert "nothing is pruned: source 'stripe'" in caplog.text


class TestSources:
    """How late a source may send a copy."""

    def test_the_longest_that_was_said_counts(self) -> None:
        one = here()
        for window in (2 * DAY, DAY):
            declare(one, "stripe", window)
        assert one.registry.sources == {"stripe": 2 * DAY}

    @pytest.mark.parametrize("window", [-DAY, 11 * DAY])
    def test_what_cannot_be_is_refused(self, window: timedelta) -> None:
        with pytest.raises(ConfigurationError, match="stripe"):
            declare(here(), "stripe", window)

    def test_they_are_written_down_and_the_latest_of_all_is_looked_at(self) -> None:
        """In one transaction; another program may have declared a later one."""
        one = here()
        declare(one, "shop", DAY)
        script = Script({"declare_source": [], "latest_source": [("other", 20 * 86_400.0)]})
        with pytest.raises(ConfigurationError, match=r"other.*20 days"):
            script.run(declare_sources(one, one.cache))
        assert script.transactions == ["begin declare_source latest_source commit"]
        assert script.params("declare_source") == [{"name": "shop", "seconds": 86_400.0}]


def test_what_is_known_of_a_handler_is_written_down_once() -> None:
    """Whether its effects are in this database; written again when more is known."""
    quiet, busy = handler("quiet"), handler("busy")
    one = context(quiet, busy)
    busy.use.through_tx = True
    script = Script({})
    for _ in range(2):
        script.run(save_uses(one))
    assert script.params("record_use") == [{"consumer": busy.consumer, "type": "busy", "apart": False}]
