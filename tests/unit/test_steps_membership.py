"""A process is known while it lives; what it held when it died is freed, and charged only where it was the only one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.settings import Settings
from onceward.steps.membership import (
    deregister,
    heartbeat,
    register,
    take_over_lapsed,
    take_over_process,
    unclaim_strays,
)
from tests.unit.builders import WORKER, context
from tests.unit.script import Lost, Script, Turns

HERE = context(settings=Settings(lease=timedelta(seconds=9), crash_limit=3))
TAKEN = [(7, 1), (8, 1), (9, 1)]
"""How each of these runs next, after its process has died."""


def test_a_process_registers() -> None:
    """One row for each start, with its lease; the answer is its worker number."""
    script = Script({"add_worker": [(41,)], "worker_of_process": []})
    assert script.run(register(HERE, process="p", host="h", pid=5, inline=True, draw=lambda: 41)) == 41
    assert script.transactions == ["begin worker_of_process add_worker commit"]
    assert script.params("add_worker") == [
        {
            "worker": 41,
            "process": "p",
            "host": "h",
            "pid": 5,
            "code_version": "v1",
            "handles": "",
            "lanes": 0,
            "inline": True,
            "lease": 9.0,
        }
    ]


def test_a_name_that_is_taken_changes_hands() -> None:
    """D25: what its last owner held is taken over in the same commit; one that came in between is replaced, too."""
    left = Turns([(2, 0, 55, "a")], [(3, 0, 56, "b")])
    script = Script({"worker_of_process": left, "take_over": TAKEN, "claimed_by": [], "add_worker": Turns([], [(42,)])})
    assert script.run(register(HERE, process="p", host="h", pid=5, inline=False, draw=lambda: 42)) == 42
    replaced = "begin worker_of_process claimed_by take_over forget_worker add_worker commit"
    assert script.transactions == [replaced, replaced]
    assert [one["worker"] for one in script.params("forget_worker")] == [2, 3]


def test_a_number_is_drawn_never_counted() -> None:
    """D54: what counts would count again after a failover."""
    script = Script({"worker_of_process": [], "add_worker": [(1,)]})
    for _ in range(100):
        script.run(register(HERE, process="p", host="h", pid=5, inline=False))
    numbers = {one["worker"] for one in script.params("add_worker")}
    assert len(numbers) == 100
    assert all(0 < number < 2**53 for number in numbers)


@pytest.mark.parametrize(("rows", "alive"), [([(WORKER,)], True), ([], False)])
def test_a_heartbeat_says_whether_it_still_lives(rows: list[Any], alive: bool) -> None:  # noqa: FBT001 - a parameter
    """No row back: it was declared dead and must register anew."""
    script = Script({"heartbeat": rows})
    assert script.run(heartbeat(HERE, WORKER, "p", inline=False)) is alive
    told = {"worker": WORKER, "process": "p", "lease": 9.0, "inline": False, "circuits": ""}
    assert script.params("heartbeat") == [told]


def test_deregistering_frees_everything_uncharged() -> None:
    """Its row locked, so that no claim comes in between; claims off and the worker gone in the same commit."""
    script = Script()
    script.run(deregister(HERE, WORKER))
    assert script.transactions == ["begin lock_worker unclaim_all forget_worker commit"]
    assert script.params("unclaim_all") == script.params("forget_worker") == [{"worker": WORKER}]


def test_claims_that_no_lane_holds_are_taken_off() -> None:
    """What lanes hold is asked after the tokens were read: a claim that is made in between is not taken for a stray."""
    script = Script({"tokens_of": [(9,), (3,), (5,)]})
    held: list[int] = []

    def looked() -> set[int]:
        held.append(len(script.trips))
        return {5, 6}

    assert script.run(unclaim_strays(HERE, WORKER, looked)) == 2
    assert script.transactions == ["begin tokens_of commit", "begin unclaim_tokens commit"]
    assert script.params("unclaim_tokens") == [{"worker": WORKER, "tokens": [3, 9]}]
    assert held == [1]


def test_nothing_to_unclaim_is_no_further_trip() -> None:
    script = Script({"tokens_of": [(5,)]})
    assert script.run(unclaim_strays(HERE, WORKER, lambda: {5})) == 0
    assert script.transactions == ["begin tokens_of commit"]


class TestTakeOver:
    """Somebody died."""

    def test_nobody_did(self) -> None:
        """One short look, which leaves this process itself out."""
        script = Script({"lapsed_workers": []})
        assert script.run(take_over_lapsed(HERE, WORKER)) == 0
        assert script.transactions == ["begin lapsed_workers commit"]
        assert script.params("lapsed_workers") == [{"worker": WORKER}]

    def test_with_one_message_that_message_is_charged(self) -> None:
        """It ran alone, so it is the cause: the crash is recorded and counted."""
        script = Script(
            {"lapsed_workers": [(2, 0, 55, "host")], "take_over": TAKEN, "claimed_by": [(7, 4, 1, None, "block", 0)]}
        )
        assert script.run(take_over_lapsed(HERE, WORKER)) == 1
        assert script.transactions == ["begin lapsed_workers claimed_by take_over add_attempt forget_worker commit"]
        assert script.params("claimed_by") == script.params("forget_worker") == [{"worker": 2}]
        assert script.params("take_over") == [{"worker": 2, "charge": 1, "crash_limit": 3, "level": 2}]
        assert script.params("add_attempt") == [
            {
                "seq": 7,
                "attempt": 4,
                "kind": "crash",
                "charged": True,
                "error": "crash 2 of 3: process 55 on host stopped renewing its lease "
                "while it handled this message alone",
                "traceback": None,
                "worker": 2,
                "code_version": "v1",
                "fingerprint": script.params("add_attempt")[0]["fingerprint"],
            }
        ]

    def test_with_several_messages_nobody_is_charged(self) -> None:
        """Any of them may have been it: each is told how it runs next."""
        script = Script(
            {
                "lapsed_workers": [(2, 0, 55, "host")],
                "claimed_by": [(7, 0, 0, None, "block", 0), (8, 2, 1, None, "block", 2)],
                "take_over": [(8, 1), (7, 2)],
            }
        )
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.params("take_over") == [{"worker": 2, "charge": 0, "crash_limit": 3, "level": 2}]
        attempts = script.params("add_attempt")
        assert [(one["seq"], one["attempt"], one["charged"]) for one in attempts] == [(7, 0, False), (8, 2, False)]
        assert "held 2 messages; not charged, it runs without another isolated message next" in attempts[0]["error"]
        assert "held 2 messages; not charged, it runs alone in its process next" in attempts[1]["error"]

    @pytest.mark.parametrize(
        ("before", "level"),
        [
            ([0, 0], 2),
            ([0] * 3, 2),
            ([0] * 4, 3),
            ([0] * 300, 151),
            ([151] * 90 + [0] * 12, 7),
            ([2, 0], 2),
            ([2, 5], 2),
        ],
    )
    def test_those_that_are_new_to_it_come_in_groups_of_half_as_many(self, before: list[int], level: int) -> None:
        """Beside those that were isolated already: what becomes of these is not decided by how many there are."""
        held = [(seq, 0, 0, None, "block", level) for seq, level in enumerate(before)]
        taken = [(seq, level) for seq, _ in enumerate(before)]
        script = Script({"lapsed_workers": [(2, 0, 55, "host")], "claimed_by": held, "take_over": taken})
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.params("take_over")[0]["level"] == level

    @pytest.mark.parametrize(
        ("level", "next_time"), [(3, "at most 1 other isolated message next"), (151, "149 other isolated messages")]
    )
    def test_each_is_told_how_many_others_run_with_it(self, level: int, next_time: str) -> None:
        """As many as its level says, less itself."""
        held = [(seq, 0, 0, None, "block", 0) for seq in (7, 8)]
        script = Script(
            {"lapsed_workers": [(2, 0, 55, "host")], "claimed_by": held, "take_over": [(7, level), (8, level)]}
        )
        script.run(take_over_lapsed(HERE, WORKER))
        assert all(next_time in one["error"] for one in script.params("add_attempt"))

    @pytest.mark.parametrize(
        ("held", "detached"),
        [
            ([(7, 4, 2, 70, "continue", 0)], True),
            ([(7, 4, 1, 70, "continue", 0)], False),
            ([(7, 4, 2, None, "continue", 0)], False),
            ([(7, 4, 2, 70, "block", 0)], False),
            ([(7, 4, 2, 70, "continue", 0), (8, 0, 0, None, "block", 0)], False),
        ],
    )
    def test_a_key_goes_on_without_one_that_is_dead_now(self, held: list[Any], detached: bool) -> None:  # noqa: FBT001
        """At the limit, where its handler continues: under the key lock, after it is dead, and the next is promoted."""
        script = Script(
            {"lapsed_workers": [(2, 0, 55, "host")], "take_over": TAKEN, "claimed_by": held, "detach": [(7,)]}
        )
        script.run(take_over_lapsed(HERE, WORKER))
        going_on = "lock_keys take_over add_attempt detach advance promote forget_worker"
        assert (going_on in script.transactions[0]) is detached
        assert ("detach" in script.transactions[0]) is detached

    def test_the_keys_of_several_dead_are_locked_together_and_in_order(self) -> None:
        """Whoever finishes a group locks its keys in order too: neither waits for the other in a circle."""
        held = Turns([(7, 0, 2, 90, "continue", 0)], [(8, 0, 2, 80, "continue", 0)], [(9, 0, 2, 70, "continue", 0)])
        dead = [(worker, 0, 55, "host") for worker in (2, 3, 4)]
        script = Script({"lapsed_workers": dead, "take_over": TAKEN, "claimed_by": held, "detach": [(7,)]})
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.params("lock_keys") == [{"key_hashes": [70, 80, 90]}]
        assert [one["key_hashes"] for one in script.params("promote")] == [[90], [80], [70]]

    def test_a_number_behind_an_earlier_one_is_not_given_up(self) -> None:
        """It stays dead in its key: counting it as applied would pass the earlier one by."""
        held = [(7, 4, 2, 70, "continue", 0)]
        script = Script({"lapsed_workers": [(2, 0, 55, "host")], "take_over": TAKEN, "claimed_by": held, "detach": []})
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.transactions[0].endswith("lock_keys take_over add_attempt detach forget_worker commit")

    def test_with_nothing_only_the_worker_goes(self) -> None:
        """An idle process leaves no attempt."""
        script = Script({"lapsed_workers": [(2, 0, 55, "host")], "take_over": TAKEN, "claimed_by": []})
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.transactions == ["begin lapsed_workers claimed_by take_over forget_worker commit"]
        assert script.params("take_over")[0]["charge"] == 0

    def test_after_inline_work_everybody_stores_first(self) -> None:
        """A message without a claim may have been the cause: receivers are told in the same commit."""
        script = Script({"lapsed_workers": [(2, 1, 55, "host")], "take_over": TAKEN, "claimed_by": []})
        script.run(take_over_lapsed(HERE, WORKER))
        assert script.transactions[0].endswith("forget_worker touch_catalog commit")
        assert script.params("touch_catalog") == [{"crash": True}]

    def test_several_dead_are_one_commit(self) -> None:
        """Each with its own count of isolated messages."""
        script = Script(
            {
                "lapsed_workers": [(2, 0, 55, "a"), (3, 1, 56, "b")],
                "take_over": TAKEN,
                "claimed_by": Turns(
                    [(7, 0, 0, None, "block", 0)], [(8, 0, 0, None, "block", 0), (9, 0, 0, None, "block", 0)]
                ),
            }
        )
        assert script.run(take_over_lapsed(HERE, WORKER)) == 2
        assert [one["charge"] for one in script.params("take_over")] == [1, 0]
        assert len(script.transactions) == 1

    def test_a_supervisor_knows_who_died(self) -> None:
        """By the name of the process, with the cause that was seen."""
        script = Script(
            {"worker_of_process": [(2, 1, 55, "a")], "take_over": TAKEN, "claimed_by": [(7, 0, 0, None, "block", 0)]}
        )
        assert script.run(take_over_process(HERE, "p", "killed by signal 9")) == 1
        assert script.transactions == [
            "begin worker_of_process claimed_by take_over add_attempt forget_worker touch_catalog commit"
        ]
        assert script.params("worker_of_process") == [{"process": "p"}]
        assert "killed by signal 9 while it handled this message alone" in script.params("add_attempt")[0]["error"]

    def test_a_process_that_deregistered_leaves_nothing(self) -> None:
        """The supervisor finds no row and does nothing."""
        script = Script({"worker_of_process": []})
        assert script.run(take_over_process(HERE, "p", "exited")) == 0
        assert script.transactions == ["begin worker_of_process commit"]

    @pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
    @pytest.mark.parametrize(
        "place", ["lapsed_workers", "claimed_by", "add_attempt", "take_over", "forget_worker", "commit"]
    )
    def test_half_a_take_over_never_happens(self, place: str, failure: Any) -> None:
        """Claims and worker go together or not at all: a failure comes out, and nothing more is sent."""
        script = Script(
            {
                "lapsed_workers": [(2, 1, 55, "a")],
                "take_over": TAKEN,
                "claimed_by": [(7, 0, 0, None, "block", 0)],
                place: failure,
            }
        )
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(take_over_lapsed(HERE, WORKER))
