"""A process is killed at any request to Redis: another one goes on, and everything takes effect once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nursery import Nursery
from tests.recorded.kills import CASES, killed_at_every_request, nursery_of_victims
from tests.recorded.service import Place


@pytest.fixture(scope="module")
def victims() -> Iterator[Nursery]:
    with nursery_of_victims() as nursery:
        yield nursery


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scenario", "kind"), CASES)
def test_a_process_is_killed_at_any_request(
    victims: Nursery, address: str, tmp_path: Path, scenario: str, kind: str
) -> None:
    killed_at_every_request(victims, tmp_path, lambda prefix: Place(address, prefix), scenario, kind)
