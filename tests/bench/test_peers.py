"""Every adapter of a peer, with the peer itself: a few jobs, each run exactly once, with the settings of the line-up.

The peers are in an environment of their own: `make bench-peers` makes it and runs this; `make bench` begins with it.
The everyday run does not choose these cases, and says so at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import lineup
from bench.figures import Figures
from bench.ground import Ground
from bench.lineup import Peer
from bench.scale import TINY
from tests.servers.postgres import PostgresServer

JOBS = replace(TINY, least=30)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with PostgresServer() as server:
        yield Ground(server)


@pytest.mark.needs("peers", "PostgreSQL")
@pytest.mark.parametrize("peer", lineup.ALL, ids=lambda peer: peer.name)
def test_a_peer_runs_each_job_exactly_once(peer: Peer, ground: Ground, tmp_path: Path) -> None:
    """And its clock starts with its first job and ends at its empty table."""
    figures = Figures()
    if peer in lineup.SQLITE:
        lineup.measure_file(peer, tmp_path, JOBS, figures)
    else:
        lineup.measure(peer, ground, JOBS, figures)
    assert figures.errors == {}
    (name,) = figures.runs
    (run,) = figures.runs[name]
    assert run.messages == JOBS.least
    assert run.seconds > 0
    assert set(figures.notes.values()) <= {"wal"}
    assert {peer.package, peer.driver} - {"sqlite3"} <= set(lineup.versions())
