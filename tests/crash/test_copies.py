"""Copies of one message that arrive in many processes at the same instant."""

from __future__ import annotations

import fcntl
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.program import Job
from tests.crash.service import KINDS, Kind, Service, message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote


@contextmanager
def closed_gate(folder: Path) -> Iterator[str]:
    """A gate that keeps processes waiting until the block ends, and then lets all of them through at once."""
    gate = folder / "gate"
    with gate.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield str(gate)


@pytest.mark.parametrize("mode", ["receive", "process"])
@pytest.mark.parametrize(("copies", "kind"), [(2, "sync"), (2, "async"), (8, "sync"), (8, "async"), (50, "sync")])
def test_of_many_copies_at_once_one_is_accepted(
    copies: int, mode: str, kind: Kind, ground: Ground, zygote: Zygote
) -> None:
    """R01, R03, HZ-01, C20, C21: one is accepted, the rest are duplicates, and there is one effect."""
    with closed_gate(ground.folder) as gate:
        arguments: dict[str, Any] = {"mode": mode, "messages": [message("m1")], "gate": gate}
        racers = [
            zygote.start(Job(url=ground.url, act="deliver", output=ground.new_output(), kind=kind, arguments=arguments))
            for _ in range(copies)
        ]
        for racer in racers:
            racer.hear("ready")
    assert [racer.end() for racer in racers] == [0] * copies, [racer.errors for racer in racers]
    receipts = [racer.said("receipt")[0] for racer in racers]
    assert Counter(receipt["status"] for receipt in receipts) == {"accepted": 1, "duplicate": copies - 1}
    assert len({receipt["seq"] for receipt in receipts}) == 1
    if mode == "process":  # whoever came second waited for the first, and answers with its result
        assert all(receipt["finished"] for receipt in receipts)
        assert all(receipt["result"] == {"name": "m1"} for receipt in receipts)
    with Service(ground.url, kind) as service:
        assert service.drain() == (1 if mode == "receive" else 0)
        assert service.inbox.admin.stats().duplicates == copies - 1
    ground.check_settled()
    assert ground.statuses() == {"default/m1": "done"}


@pytest.mark.parametrize("kind", KINDS)
def test_many_batches_with_the_same_messages_at_once(kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R01, HZ-01, HZ-05: eight processes deliver the same ten messages, half of them backwards."""
    messages = [message(f"m{n}") for n in range(10)]
    with closed_gate(ground.folder) as gate:
        racers = []
        for number in range(8):
            arguments = {
                "mode": "process" if number % 3 == 0 else "receive",
                "messages": messages[:: -1 if number % 2 else 1],
                "gate": gate,
            }
            job = Job(url=ground.url, act="deliver", output=ground.new_output(), kind=kind, arguments=arguments)
            racers.append(zygote.start(job))
        for racer in racers:
            racer.hear("ready")
    assert [racer.end() for racer in racers] == [0] * 8, [racer.errors for racer in racers]
    accepted = Counter(said["id"] for racer in racers for said in racer.said("receipt") if said["status"] == "accepted")
    assert accepted == Counter(one["id"] for one in messages)
    with Service(ground.url, kind) as service:
        service.drain()
    ground.check_settled()
    assert set(ground.statuses().values()) == {"done"}
