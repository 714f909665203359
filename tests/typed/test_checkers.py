"""mypy and pyright see what handlers do wrong, and nothing wrong in those that are right (R58).

pyright comes as `basedpyright`, its fork that PyPI has as a whole; in its standard mode it checks what pyright checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Checker = Callable[[Path], set[int]]


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """A type checker's output, as JSON."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def mypy(sample: Path) -> set[int]:
    """The lines in which mypy finds an error."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--output=json",
        "--config-file=",
        f"--cache-dir={sample.parent}",
    ]
    told = subprocess.run([*command, sample], capture_output=True, text=True, timeout=100, check=False)
    assert not told.stderr, told.stderr
    found = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert told.returncode == bool(found), told.stdout
    return {one["line"] for one in found if one["severity"] == "error"}


def pyright(sample: Path) -> set[int]:
    """The lines in which pyright finds an error."""
    (sample.parent / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    command: list[str | Path] = [
        Path(sys.executable).with_name("basedpyright"),
        "--outputjson",
        "--pythonpath",
        sys.executable,
    ]
    told = subprocess.run(
        [*command, "--project", sample.parent], capture_output=True, text=True, timeout=100, check=False
    )
    found = json.loads(told.stdout)["generalDiagnostics"]
    assert told.returncode in (0, 1), told.stdout
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("name", ["right", "wrong"])
def test_type_checkers_find_what_is_wrong_with_handlers(name: str, checker: Checker, tmp_path: Path) -> None:
    sample = tmp_path / f"{name}.py"
    sample.write_text((HERE / f"{name}.txt").read_text())
    lines = sample.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, start=1) if "# wrong" in line}
    found = checker(sample)
    assert {lines[number - 1] for number in found ^ wrong} == set()
    assert bool(wrong) == (name == "wrong")
