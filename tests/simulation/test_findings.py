"""What was found once stays found: the seeds and schedules of `simulation/findings`, and how a schedule is kept."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from simulation import runner, schedules
from simulation.__main__ import main
from simulation.mutants import ALL
from simulation.runner import MODES, place, recorded, replayed, run_one
from simulation.schedules import FINDINGS, Schedule
from simulation.workload import scenario

ROOT = Path(__file__).parents[2]


def test_seeds_that_once_failed_find_no_violation() -> None:
    known = schedules.seeds()
    assert len(known) >= 25
    for seed in known:
        for mode in MODES:
            _, wrong = run_one(seed, mode)
            assert not wrong, f"python -m simulation --seed {seed} --mode {mode} --trace"


SERVERS = {"postgres": "PostgreSQL", "mariadb": "MariaDB"}


def _kept(name: str) -> Any:
    """A schedule, and the server on which it is replayed."""
    server = SERVERS.get(Schedule.read(name).store)
    return pytest.param(name, marks=[pytest.mark.needs(server)] if server else [])


@pytest.mark.parametrize("name", [_kept(name) for name in schedules.names()])
def test_a_schedule_that_once_failed_finds_no_violation(name: str) -> None:
    schedule = Schedule.read(name)
    with place(schedule.store) as where:
        _, wrong = replayed(schedule, where)
    assert not wrong, f"python -m simulation --finding {name} --trace: {schedule.finding}"


def test_the_tests_of_findings_exist() -> None:
    for test in filter(None, schedules.seeds().values()):
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for schedules of the test."""
    monkeypatch.setattr(schedules, "FINDINGS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_is_the_same_history_when_the_generator_has_moved(
    mode: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = (3, 21, 25, 29, 31, 33, 35, 37)  # of several themes
    digests = [run_one(seed, mode)[0].history.digest for seed in seeds]
    for seed in seeds:
        recorded(seed, mode, "sqlite", store="sqlite", finding="nothing was wrong").write(f"seed-{seed}")
    monkeypatch.setattr(runner, "scenario", lambda _seed, mode: scenario(0, mode))
    again = [replayed(Schedule.read(f"seed-{seed}"), "sqlite")[0].history.digest for seed in seeds]
    assert again == digests
    assert all(path.stat().st_size < 400_000 for path in kept.glob("*.json"))


def test_a_schedule_shows_the_mistake_that_it_was_kept_for(kept: Path) -> None:
    (variant,) = (one for one in ALL if one.name == "acknowledge although the commit failed")
    with variant.patch():
        seed, mode = next((seed, mode) for seed in range(200) for mode in MODES if _shows(run_one(seed, mode)[1]))
        recorded(seed, mode, "sqlite", store="sqlite", finding="a receipt without a commit").write("loss")
        schedule = Schedule.read("loss")
        assert _shows(replayed(schedule, "sqlite")[1])
    assert not replayed(schedule, "sqlite")[1]
    assert list(kept.iterdir()) == [kept / "loss.json"]


def _shows(wrong: list[str]) -> bool:
    return any(text.startswith("loss") for text in wrong)


def test_a_finding_is_kept_and_replayed_by_its_name(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--mode", "safety", "--keep", "three", "it was three"]) == 0
    assert main(["--finding", "three"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"kept: {kept / 'three.json'}"
    assert lines[1].removeprefix("seed 3, safety") == lines[3].removeprefix("three, it was three")


def test_what_a_schedule_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match=r"add it to simulation/schedules\.py"):
        schedules._encoded(object())
    assert FINDINGS.is_dir()
