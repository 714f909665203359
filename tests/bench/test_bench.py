"""The benchmark measures what it says: exact effects on both stores, a whole table, a loud failure where not exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import (
    before,
    brokers,
    direct,
    drain,
    handle,
    hard,
    lineup,
    origin,
    orm,
    page,
    plot,
    race,
    receive,
    report,
    sixty,
    sqlite,
)
from bench.figures import Figures, Inexact
from bench.ground import Ground, check_claims, check_drained, check_effects
from bench.inboxes import CLAIM
from bench.messages import messages
from bench.scale import FULL, QUICK, TINY, Scale
from tests.servers.postgres import PostgresServer

SMALL = replace(TINY, connections=1, least=60)
KEYS = {
    "drain_vs_limit", "drain_vs_best_peer", "drain_vs_pgmq_client", "drain_keyed", "handle_2pct_failing",
    "handle_vs_pgbench",
    "handle_pipelined_vs_pgbench", "handle_vs_textbook", "batch_vs_limit",
    "direct_vs_textbook", "direct_vs_store_first", "inline_vs_by_hand", "inline_vs_pgbench", "inline_vs_textbook",
    "receive_vs_pgbench", "receive_many_vs_limit", "sqlite_vs_by_hand", "sqlite_vs_textbook", "growth_5m",
    "growth_5m_random", "blocked_1m", "claim_pinned_60s", "latency_half_load_p99_ms", "latency_idle_vs_by_hand",
    "memory_growth", "fairness_lanes", "fairness_types_ms", "suspects_ms", "burst_max_vs_p50",
    "neighbour_repeats", "orm_vs_by_hand", "orm_group_vs_by_hand",
    "drain_wide", "e2e_kafka_vs_textbook", "e2e_rabbitmq_vs_textbook", "e2e_redis_vs_textbook",
}  # fmt: skip


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with PostgresServer() as server:
        yield Ground(server)


@pytest.mark.needs("PostgreSQL", "bench")
@pytest.mark.timeout(300)  # three dozen races, each of processes of their own
def test_a_small_run_is_exact_and_its_table_is_whole(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """R54: every contender on both stores; peers are not installed here, which the report says of each."""
    monkeypatch.setattr(race, "PEERS", race.ROOT / "bench" / "absent")
    lineup.versions.cache_clear()
    request.addfinalizer(lineup.versions.cache_clear)
    monkeypatch.setattr(handle, "HANDLERS", {kind: handle.HANDLERS[kind] for kind in ("update", "pipelined", "set")})
    figures = Figures()
    for workload in (drain, hard, handle, orm, direct, receive, brokers):
        workload.measure(ground, SMALL, figures)
    sqlite.measure(tmp_path, SMALL, figures)
    found = report.assembled(figures, SMALL, origin.found(ground.server, tmp_path) | {"seconds": 1})
    assert set(found["ratios"]) == KEYS
    without = {"drain_vs_best_peer", "drain_vs_pgmq_client"}
    assert {name for name, value in found["ratios"].items() if value} >= {row.name for row in report.ROWS} - without
    assert set(found["errors"]) == {*report.PEERS, *report.PGMQ, *(f"sqlite: {peer.name}" for peer in lineup.SQLITE)}
    assert plot.drawn(found).count("<rect") > 20
    assert [name for name, *_ in report.verdicts(found["ratios"])] == list(report.NAMES)
    _is_honest(found)


def _is_honest(found: dict[str, Any]) -> None:
    """E16: beside every rate stand its length, its cost and its settings; equal sizes and journals are compared."""
    measured = set(found["medians"])
    assert measured == set(found["runs"]) == set(found["processor_microseconds"])
    assert measured | set(found["errors"]) == set(found["contenders"])
    assert all(one["driver"] and one["source"] for one in found["contenders"].values())
    sizes = {name: one["settings"].get("group") for name, one in found["contenders"].items()}
    for one, other in (
        ("drain: onceward", "drain: pure SQL"),
        ("handle: onceward, set", "handle: pure SQL in batches"),
        ("sqlite: onceward", "sqlite: by hand, 100 at a time"),
    ):
        assert sizes[one] == sizes[other] is not None
    notes = found["settings"]["notes"]
    assert {value for name, value in notes.items() if name.endswith(": journal")} == {"wal"}
    assert notes["sqlite: textbook: journal"] == "wal"
    assert notes["drain: onceward: largest claim"] <= CLAIM
    assert len(found["origin"]["commit"]) == 40
    assert set(found["origin"]["file_systems"]) == {"postgres", "sqlite"}
    for part in (found["origin"]["commit"][:12], found["origin"]["file_systems"]["sqlite"], "largest claim"):
        assert part in page.page(found, *_others())


def _others() -> tuple[dict[str, Any], dict[str, Any]]:
    beside, was = (json.loads(path.read_text(encoding="utf-8")) for path in (sixty.SIXTY, before.BEFORE))
    return beside, was


@pytest.mark.needs("PostgreSQL")
def test_what_is_not_exact_fails(ground: Ground) -> None:
    """A missing effect, and a message that is still queued, are errors and not figures."""
    with ground.copy() as url:
        with pytest.raises(Inexact, match="effects: 0 instead of 1"):
            check_effects("handle", url, 1)
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO onceward_queue (seq, slot, place, state, type) VALUES (1, 0, 1, 'unhandled', 't')"
            )
        with pytest.raises(Inexact, match="left in the queue: 1 instead of 0"):
            check_drained("drain", url, 0)
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO onceward_run"
                " (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)"
                " VALUES (1, 1, '', 0, 1, 2, '{1,2}', 2), (1, 1, '', 0, 3, 3, '{3}', 1)"
            )
        assert check_claims("drain", url, 3) == 3
        with pytest.raises(Inexact, match="a claim of 3, and at most 2 are compared"):
            check_claims("drain", url, 2)


def test_one_message_in_ten_comes_twice() -> None:
    """And the copy is the same message."""
    deliveries = messages(2_000, "x")
    ids = [delivery["id"] for delivery in deliveries]
    assert (len(deliveries), len(set(ids))) == (2_200, 2_000)


@pytest.mark.parametrize("scale", [FULL, QUICK, TINY], ids=lambda scale: scale.name)
def test_every_scale_has_the_same_table(scale: Scale) -> None:
    """Also with nothing measured, the table has every key; what has no figure is neither reached nor short."""
    table = report.ratios(Figures(), scale)
    assert set(table) == KEYS
    assert {verdict for *_, verdict in report.verdicts(table)} == {"not measured", ""}


def test_the_page_is_made_from_the_report() -> None:
    """`python -m bench.page` writes it again; nobody types a figure. It warns where the machine was busy."""
    found = json.loads(report.REPORT.read_text(encoding="utf-8"))
    assert set(found["ratios"]) == KEYS
    for load, busy in ((2.9, False), (9.0, True)):
        machine = {"cores": 2, "load": [1.0, load, 1.0]}
        assert ("The machine was busy" in page.page(found | {"machine": machine}, *_others())) is busy
    assert page.PAGE.read_text(encoding="utf-8") == page.page(found, *_others())
    assert plot.PLOT.read_text(encoding="utf-8") == plot.drawn(found)
