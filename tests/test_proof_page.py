"""The page of figures says what the suites' own reports say, every suite is on it, and no record is stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proof import records, report
from proof.__main__ import PAGE, README, SUITES, VERDICT, main, page, record, undated, with_summary
from proof.fingerprint import ROOT, changed, fingerprint
from simulation import schedules

UNDATED = {
    *(f"bench/report{which}.json" for which in ("", "-60m", "-before")),
    "faults/report.json",
    *(
        f"proof/figures/{name}.json"
        for name in ({*SUITES, "brokers", "pulsar-speed", "redis-speed", "sizing"} - {"simulate"})
    ),
    *(f"proof/figures/engine-postgres{version}.json" for version in (13, 14, 16, 17, 18)),
    *(f"proof/figures/engine-{name}.json" for name in ("failover", "galera", "pulsar")),
}
"""Records that were written before records said what code they measured; one that is made anew leaves this set."""


def test_the_pages_are_made_from_the_figures() -> None:
    """`python -m proof` writes them again."""
    assert undated(PAGE.read_text(encoding="utf-8")) == undated(page())
    assert README.read_text(encoding="utf-8") == with_summary(README.read_text(encoding="utf-8"))


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_run_and_what_it_found_is_kept(suite: str) -> None:
    figures = record(suite)
    assert figures["run"] == suite
    for run in figures.get("runs", [figures]):
        assert len(run["commit"].rstrip("+")) == 40
        assert run["date"]
        known = {*schedules.seeds(), *schedules.seeds("open")}
        kept = [seed for seed, *_ in run.get("failing", []) if seed in known]
        assert run.get("violations", 0) == len(kept), "what was found is in simulation/findings"
        assert all(run.get(name, 0) == 0 for name in ("grown", *VERDICT))
    if suite == "mutants":
        assert figures["caught"] == figures["total"] >= 20


def test_no_record_is_stale() -> None:
    stale = [f"{age.name}: {age.text}; make it anew: {age.command}" for age in records.ages() if age.is_stale]
    assert not stale, "\n".join(stale)


def test_every_record_says_what_code_it_measured() -> None:
    undated = {age.name for age in records.ages() if age.changed is None}
    assert undated <= UNDATED


def test_every_record_is_made_again_by_a_command_that_exists() -> None:
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if "## " in line}
    for name in records.names():
        command = records.suite_of(name).command.split()
        assert command[1] in targets or (ROOT / command[2].replace(".", "/")).with_suffix(".py").exists()


def test_a_record_is_stale_when_its_code_has_changed_by_more_than_the_step(tmp_path: Path) -> None:
    """However much moves from one file to another; and the commit plays no part."""
    lines = [f"line_{number} = {number}" for number in range(10_000)]
    room = tmp_path / "room"
    room.mkdir()
    (room / "one.py").write_text("\n".join(lines))
    old = fingerprint(["room"], tmp_path)
    (room / "one.py").write_text("\n".join(lines[5000:]))
    (room / "two.py").write_text("\n".join(lines[:5000]))
    moved = fingerprint(["room"], tmp_path)
    assert old.digest != moved.digest
    assert changed(old.sample, moved.sample) == 0
    (room / "two.py").write_text("\n".join(f"new_{line}" for line in lines[:4000]))
    assert 0.4 < changed(old.sample, fingerprint(["room"], tmp_path).sample) < 0.6


def test_the_check_names_what_is_stale_and_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = records.read("proof/figures/fuzz.json")
    samples = {"of then": "abcdef 123456"}

    def read(_: str) -> dict[str, Any]:
        return {**found, "code_digest": "of then", "code": samples}

    monkeypatch.setattr(records, "read", read)
    assert main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "to make proof/figures/fuzz.json anew: make fuzz JSON=proof/figures/fuzz.json" in lines
    assert any("100% of its lines changed (stale)" in line for line in lines)
    now = fingerprint(records.suite_of("proof/figures/fuzz.json").rooms)
    monkeypatch.setattr(records, "names", lambda: ["proof/figures/fuzz.json"])
    samples["of then"] = now.sample
    assert main(["--check"]) == 0


def test_a_record_that_is_written_says_what_code_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    file = tmp_path / "proof" / "figures" / "fuzz.json"
    file.parent.mkdir(parents=True)
    report.write(str(file), {"run": "fuzz"}, ["sqlite"])
    written = json.loads(file.read_text())
    assert written["code"] == {
        written["code_digest"]: fingerprint(records.suite_of("proof/figures/fuzz.json").rooms).sample
    }
    report.add(str(file.with_name("chaos.json")), "chaos", [("sqlite", {"messages": 1}), ("sqlite", {"messages": 2})])
    added = json.loads(file.with_name("chaos.json").read_text())
    assert {run["code_digest"] for run in added["runs"]} == set(added["code"])
