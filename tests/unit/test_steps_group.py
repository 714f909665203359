"""Every message of a group is in exactly one place, and none overtakes another of its key."""

from __future__ import annotations

from onceward.retry import Reject
from onceward.steps.group import Group
from tests.unit.builders import claimed, handler


def test_what_follows_a_failure_of_a_split_batch_goes_back_with_it() -> None:
    """The group ends, by its time, before the follower came to its turn: it is not to run alone either."""
    by = handler(batch=True, key="k")
    first, second, other = (claimed(seq, by, key=key) for seq, key in ((1, 7), (2, 7), (3, 8)))
    group = Group([first, second, other])
    group.fails(group.next(), ValueError("one of them"), infrastructure=False)
    group.fails(group.next(), Reject("never"), infrastructure=False)
    group.leave([])
    assert ([one.message for one in group.failures], group.given_back, group.alone) == ([first], [second], [other])
    assert group.rest == []
