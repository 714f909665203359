"""Shards of the crash points are parts of one whole, whatever the seed; a seed decides everything else."""

from __future__ import annotations

import pytest

from tests.crash.points import boundaries, in_shard
from tests.crash.test_points import _injection


def test_shards_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for part in (1, 2, 3):
        monkeypatch.setenv("ONCEWARD_CRASH_SHARD", f"{part}/3")
        parts.append({number for number in range(300) if in_shard("sqlite receive new sync", number)})
    assert set.union(*parts) == set(range(300))
    assert sum(map(len, parts)) == 300
    assert min(map(len, parts)) > 50


def test_a_shard_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_CRASH_SHARD", "5/4")
    with pytest.raises(ValueError, match="5/4"):
        in_shard("sqlite receive new sync", 1)


def test_every_boundary_of_a_play_is_a_point_of_its_own() -> None:
    """The same statement in a second turn, too: what the first turn left behind is another state."""
    turn = ["begin", "claim", "commit"]
    found = boundaries([*turn, *turn], "sqlite", introduced=True)
    assert [one.number for one in found] == [1, 2, 3, 4, 5, 6]
    assert found[1].path == found[4].path == ("begin", "claim")


def test_the_seed_alone_decides_how_a_world_goes_on() -> None:
    first, second = boundaries(["begin", "claim", "commit"], "sqlite", introduced=True)[:2]
    drawn = [_injection(first, "kill", f"{seed} sqlite receive new sync") for seed in range(50)]
    assert drawn == [_injection(first, "kill", f"{seed} sqlite receive new sync") for seed in range(50)]
    assert {one.by_supervisor for one in drawn} == {True, False}
    assert _injection(second, "kill", "0").who != drawn[0].who
