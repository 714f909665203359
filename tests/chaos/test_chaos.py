"""A short run under faults on each store, and a verdict that says what is wrong (R53, HZ-67; I1, I2, I5, I9)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from chaos import load
from chaos.service import build, create
from chaos.verifier import Verifier
from chaos.world import Plan, run
from tests.stores import PLAYS_ALL

if TYPE_CHECKING:
    from pathlib import Path

    from onceward import Inbox


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"])
def test_a_short_run_under_faults_is_clean(store: str) -> None:
    """Few faults do not reach every hard state; that nothing is wrong holds all the same."""
    seed = random.randrange(2**32)
    outcome = run(Plan(store, 200, 5, seed), print)
    assert outcome.verdict.clean, (seed, outcome.verdict)
    assert outcome.alarms == [], seed
    assert outcome.faults.total() == 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"] if PLAYS_ALL else ["sqlite"])
def test_two_releases_share_the_tables_through_upgrade_and_rollback(store: str) -> None:
    """R73: all of it under faults, on each store: `make skew`."""
    seed = random.randrange(2**32)
    outcome = run(Plan(store, 100, 4, seed, skew=True), print)
    assert outcome.verdict.clean, (seed, outcome.verdict)
    assert outcome.alarms == [], seed
    assert (outcome.seen["older code refused"], outcome.seen["process replaced"]) == (6, 12)
    assert all(outcome.seen[f"finished by {release}"] for release in ("N", "N+1", "N+2"))


class TestVerifier:
    """It is shown a service that got everything right but for one thing."""

    PARCELS = load.make(40, random.Random(2))[0]

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        url = f"sqlite:///{tmp_path}/verified.db"
        create(url)
        with build(url, "sync") as inbox:
            for parcel in self.PARCELS:
                data = {"key": parcel.key, "position": parcel.position}
                inbox.receive(source="broker", id=parcel.id, type=parcel.kind, data=data)
            wait_for_the_end(inbox, Verifier(url, self.PARCELS))
        return url

    def spoil(self, url: str, statement: str) -> Verifier:
        with build(url, "sync") as inbox, inbox.transaction() as tx:
            assert tx.execute(statement).rowcount >= 1
        return Verifier(url, self.PARCELS)

    def test_what_is_right_is_clean(self, url: str) -> None:
        verifier = Verifier(url, self.PARCELS)
        assert verifier.verdict().clean, verifier.verdict()
        assert verifier.glance() == []

    def test_a_lost_effect_is_seen(self, url: str) -> None:
        verifier = self.spoil(url, "DELETE FROM effect WHERE at = (SELECT max(at) FROM effect WHERE id LIKE 'p%')")
        assert len(verifier.verdict().lost) == 1

    def test_a_lost_echo_is_seen(self, url: str) -> None:
        verifier = self.spoil(url, "DELETE FROM effect WHERE at = (SELECT max(at) FROM effect WHERE id NOT LIKE 'p%')")
        assert verifier.verdict().lost == ["an echo"]

    def test_a_second_effect_is_seen(self, url: str) -> None:
        verifier = self.spoil(url, "INSERT INTO effect (id, position) SELECT id, 0 FROM effect WHERE at = 3")
        assert len(verifier.verdict().doubled) == 1
        assert verifier.glance() != []

    def test_disorder_is_seen(self, url: str) -> None:
        verifier = self.spoil(
            url,
            "UPDATE effect SET position = 0 WHERE at = (SELECT max(at) FROM effect WHERE account = ("
            "SELECT account FROM effect WHERE account IS NOT NULL AND id LIKE 'p%' GROUP BY account"
            " HAVING count(*) > 1 LIMIT 1))",
        )
        assert len(verifier.verdict().disordered) == 1
        assert verifier.glance() != []

    def test_a_message_that_stays_is_seen(self, url: str) -> None:
        verifier = self.spoil(url, "UPDATE onceward_queue SET state = 'ready' WHERE state = 'dead'")
        assert verifier.verdict().stuck
        assert verifier.unfinished()

    def test_an_effect_of_a_doomed_message_is_seen(self, url: str) -> None:
        doomed = next(parcel for parcel in self.PARCELS if not parcel.effects)
        verifier = self.spoil(url, f"INSERT INTO effect (id, position) VALUES ('{doomed.id}', 0)")
        assert len(verifier.verdict().odd) == 1


def wait_for_the_end(inbox: Inbox, verifier: Verifier) -> None:
    """Drain until what was put off is due and done too."""
    while verifier.unfinished():
        inbox.drain()
